package forward

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pointsman/prompt"
)

// longestBudget is what a client may allow at most; more means no more than that.
const longestBudget = 7 * 24 * time.Hour

// clientBudget returns how long the client waits for all of the answer, 0 when it
// does not say. Its error is a [*prompt.BadRequest].
func clientBudget(h http.Header) (time.Duration, error) {
	text := field(h, headerBudget)
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 1 {
		return 0, &prompt.BadRequest{
			Status: http.StatusBadRequest, Code: prompt.CodeInvalidValue, Param: strings.ToLower(headerBudget),
			Message: "the header x-request-timeout-ms takes a number of milliseconds of 1 or more",
		}
	}
	return min(time.Duration(min(ms, int64(longestBudget/time.Millisecond)))*time.Millisecond, longestBudget), nil
}

// limit bounds the whole request by Config.MaxDuration and what the client allows,
// whichever is less. The function that it returns frees the timer.
func (x *exchange) limit() context.CancelFunc {
	budget, err := clientBudget(x.r.Header)
	x.badBudget = err // admit refuses it
	most, why := x.cfg.MaxDuration, errMaxDuration
	if budget > 0 && (most == 0 || budget < most) {
		most, why = budget, errClientBudget
	}
	if most == 0 {
		return func() {}
	}
	if budget > 0 {
		x.deadline = x.start.Add(most)
	}
	ctx, cancel := context.WithTimeoutCause(x.ctx, most, why)
	x.ctx = ctx
	return cancel
}

// left returns what is left of the time that the client allows; false when it
// allows any.
func (x *exchange) left() (time.Duration, bool) {
	if x.deadline.IsZero() {
		return 0, false
	}
	return time.Until(x.deadline), true
}

// nonce are eight random hexadecimal digits. They keep names apart and need not be
// secret.
type nonce [8]byte

func newNonce() (n nonce) {
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], rand.Uint32()) //nolint:gosec // see above
	hex.Encode(n[:], raw[:])
	return n
}
