package simengine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// maxBody bounds a request body, so that a test can't exhaust the machine.
const maxBody = 256 << 20

// keptHeaders are the request headers that a receipt keeps, when they came.
// Authorization is never kept, only noted.
func keptHeaders() []string {
	return []string{
		"Accept", "Accept-Encoding", "Baggage", "Connection", "Content-Encoding", "Content-Type", "Expect", "Te",
		"Traceparent", "Tracestate", "User-Agent", "X-Data-Parallel-Rank", "X-Forwarded-For", "X-Gateway-Destination-Endpoint",
		"X-Infera-Attempt-Id", "X-Infera-Request-Id", "X-Prefill-Instance-Id", "X-Request-Id", "X-Worker-Instance-Id",
	}
}

// newReceipt notes what is known before the body.
func (e *Engine) newReceipt(r *http.Request) Receipt {
	rc := Receipt{
		RequestID: r.Header.Get("X-Request-Id"), InferaRequestID: r.Header.Get("X-Infera-Request-Id"),
		AttemptID: r.Header.Get("X-Infera-Attempt-Id"), Leg: e.cfg.Role.String(), WorkerID: e.id,
		Method: r.Method, Path: r.URL.Path, Proto: r.Proto, Outcome: OutcomeRunning, ReceivedAt: time.Now(),
		Authorization: r.Header.Get("Authorization") != "",
		ContentLength: r.ContentLength, TransferEncoding: r.TransferEncoding,
		Headers: map[string]string{"host": r.Host},
	}
	for _, name := range keptHeaders() {
		if v := r.Header.Values(name); len(v) > 0 {
			rc.Headers[strings.ToLower(name)] = strings.Join(v, ", ")
		}
	}
	return rc
}

// readBody reads and notes the whole body.
func readBody(r *http.Request, rc *entry) ([]byte, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	sum := sha256.Sum256(raw)
	rc.update(func(c *Receipt) {
		c.BytesIn = int64(len(raw))
		if err == nil {
			c.BodySHA256 = hex.EncodeToString(sum[:])
		}
		c.Trailer = strings.Join(slices.Sorted(maps.Keys(r.Trailer)), ",")
	})
	return raw, err
}

// bodyError is the answer to a body that could not be read.
func bodyError(err error) *apiError {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError", message: err.Error()}
	}
	return badRequest("", "the body could not be read: %v", err)
}
