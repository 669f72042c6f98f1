package forward

import (
	"context"
	"errors"
	"net/http"

	"pointsman/picker"
)

var (
	errPrefillTimeout = errors.New("the prefill worker did not answer in time")
	errFirstToken     = errors.New("the first token did not come in time")
)

// legError is a failure of the pair that is not its decode worker's: of the
// prefill leg, or of what the two registered.
type legError struct{ err error }

func (e *legError) Error() string { return "prefill leg: " + e.err.Error() }
func (e *legError) Unwrap() error { return e.err }

// atPrefill reports whether err is no fault of the decode worker.
func atPrefill(err error) bool {
	_, ok := errors.AsType[*legError](err)
	return ok
}

// decodeDialError is a decode leg that has reached no worker.
type decodeDialError struct{ err error }

func (e *decodeDialError) Error() string { return "decode leg: " + e.err.Error() }
func (e *decodeDialError) Unwrap() error { return e.err }

// mayRepeatPair reports whether a request that failed with err may go to another
// pair, in another room (failover 2B).
//
// A prefill leg only computes a cache: it is repeated once, whatever it had done,
// as long as the decode leg has produced nothing. A decode leg is repeated only
// when it cannot have run: what was sent to a decode worker may be generating, and
// no Config.RetrySafety makes it safe to run beside a second one.
func (x *exchange) mayRepeatPair(err error) bool {
	var ans *answer
	var broken *Error
	switch {
	case errors.As(err, new(*unplaced)): // it has had its time in the queue
		return false
	case errors.Is(err, errNoTransport), errors.Is(err, ErrPairParams):
		return true
	case errors.As(err, &ans) && ans.refused():
		return true
	case atPrefill(err):
		return x.mayRepeatPrefill(err)
	case errors.As(err, &broken) && broken.Stage == StageDial:
		return x.undialed < decodeDials
	}
	return errors.As(err, &broken) && broken.Stage == StageWrite
}

// mayRepeatPrefill decides by Config.PrefillFailure about a prefill leg that
// failed with err.
func (x *exchange) mayRepeatPrefill(err error) bool {
	var ans *answer
	var broken *Error
	again := errors.As(err, &broken) || errors.Is(err, ErrHandoff) || errors.As(err, &ans) && ans.status >= http.StatusInternalServerError
	if !again || x.redispatched || x.cfg.PrefillFailure == PrefillError {
		return false
	}
	x.redispatched = true
	return true
}

// failed notes the workers that err, of the attempt with d, speaks against.
func (x *exchange) failed(d *picker.Decision, err error) {
	asked := x.workers[len(x.workers)-1] // d's, or the one that took its place
	switch {
	case uncarried(err) && atPrefill(err):
		x.passOver(d.Prefill)
	case uncarried(err):
		x.passOver(d.Worker)
	case errors.Is(err, ErrPairParams):
		x.tried = append(x.tried, d.Prefill.ID, asked)
	case atPrefill(err):
		x.tried = append(x.tried, d.Prefill.ID)
		x.redispatch(asked)
	default:
		x.tried = append(x.tried, asked)
	}
}

// redispatch counts what the failed prefill leg of a pair with the decode worker
// comes to.
func (x *exchange) redispatch(decode string) {
	if !x.redispatched {
		return // it was refused, which costs nothing
	}
	if x.cfg.PrefillFailure == PrefillLocal {
		x.localTo = decode
		x.s.metrics.prefillLocal.Inc()
		return
	}
	x.s.metrics.redispatches.Inc()
}

// reasonOfPrefill says how a prefill leg has ended. One that was ended because of
// its partner says nothing about its worker.
func reasonOfPrefill(ctx context.Context, err error) reason {
	if err != nil && ctx.Err() != nil && !errors.Is(err, errPrefillTimeout) {
		return tryAborted
	}
	return reasonOf(err, false)
}

// describePair handles what only a pair can fail with.
func describePair(err error) (apiError, bool) {
	var pool *picker.PairError
	var broken *Error
	var ans *answer
	switch {
	case errors.As(err, &pool):
		return apiError{status: 503, kind: serverError, code: "pd_pool_unavailable", message: pool.Error(), retryAfter: 1}, true
	case errors.Is(err, errPrefillTimeout):
		return apiError{status: 504, kind: serverError, code: "pd_prefill_timeout", message: errPrefillTimeout.Error(), mayHaveRun: true}, true
	case errors.Is(err, errFirstToken):
		return apiError{status: 504, kind: serverError, code: "first_token_timeout", message: errFirstToken.Error(), mayHaveRun: true}, true
	case errors.Is(err, ErrHandoff):
		return apiError{status: 502, kind: serverError, code: "pd_handoff_failed", message: ErrHandoff.Error()}, true
	case errors.Is(err, ErrPairParams):
		return apiError{status: 502, kind: serverError, code: "pd_registration", message: ErrPairParams.Error()}, true
	case errors.As(err, new(*decodeDialError)) && errors.As(err, &broken):
		return apiError{status: 502, kind: serverError, code: "decode_connect_failed", message: "no decode worker could be reached"}, true
	case errors.As(err, &ans):
	case atPrefill(err) && errors.As(err, &broken):
		out := describeBroken(broken)
		out.message = "the prefill leg failed: " + out.message
		return out, true
	}
	return apiError{}, false
}
