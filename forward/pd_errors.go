package forward

import (
	"context"
	"errors"
	"net/http"

	"pointsman/breaker"
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
	var leg *legError
	return errors.As(err, &leg)
}

// mayRepeatPair reports whether a request that failed with err may go to another
// pair, in another room (failover 2B). A prefill leg only computes a cache: it is
// repeated once, whatever it had done. A decode leg is repeated when it cannot
// have run, or has said itself that it failed.
func (x *exchange) mayRepeatPair(err error) bool {
	var ans *answer
	var broken *Error
	isAnswer, isBroken := errors.As(err, &ans), errors.As(err, &broken)
	switch {
	case errors.Is(err, errNoTransport), errors.Is(err, ErrPairParams):
		return true
	case isAnswer && ans.refused():
		return true
	case atPrefill(err):
		again := isBroken || errors.Is(err, ErrHandoff) || isAnswer && ans.status >= 500
		if x.redispatched || !again {
			return false
		}
		x.redispatched = true
		x.s.metrics.redispatches.Inc()
		return true
	case isAnswer:
		return x.cfg.RetrySafety == BeforeFirstToken && ans.status >= 500 && ans.status != http.StatusNotImplemented
	}
	return isBroken && (broken.Stage <= StageWrite || x.cfg.RetrySafety == BeforeFirstToken && x.repeatable())
}

// failed notes the workers that err, of the attempt with d, speaks against.
func (x *exchange) failed(d *picker.Decision, err error) {
	asked := x.workers[len(x.workers)-1] // d's, or the one that took its place
	switch {
	case errors.Is(err, ErrPairParams):
		x.tried = append(x.tried, d.Prefill.ID, asked)
	case atPrefill(err):
		x.tried = append(x.tried, d.Prefill.ID)
	default:
		x.tried = append(x.tried, asked)
	}
}

// prefillOutcome says what a prefill leg's end means for its worker's circuit.
func prefillOutcome(ctx context.Context, err error) breaker.Outcome {
	var ans *answer
	var broken *Error
	switch {
	case err == nil:
		return breaker.Success
	case errors.As(err, &ans) && ans.refused():
		return breaker.Busy
	case errors.As(err, &ans):
		return breaker.OutcomeOf(ans.status)
	case errors.Is(err, errPrefillTimeout), errors.Is(err, ErrHandoff):
		return breaker.Origin
	case ctx.Err() != nil, errors.Is(err, ErrBlameless), errors.Is(err, errNoTransport):
		return breaker.Neutral
	case errors.As(err, &broken) && broken.Stage == StageBody:
		return breaker.Stream
	}
	return breaker.Connect
}

// prefillLabel is how a failed prefill leg ended, for the metric.
func prefillLabel(ctx context.Context, err error) string {
	var ans *answer
	switch {
	case errors.As(err, &ans) && ans.refused():
		return "refused"
	case errors.As(err, &ans):
		return statusLabel(ans.status)
	case errors.Is(err, errPrefillTimeout):
		return "timeout"
	case errors.Is(err, ErrHandoff):
		return "handoff"
	case ctx.Err() != nil:
		return "canceled"
	}
	return "error"
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
	case errors.As(err, &ans):
	case atPrefill(err) && errors.As(err, &broken):
		out := describeBroken(broken)
		out.message = "the prefill leg failed: " + out.message
		return out, true
	}
	return apiError{}, false
}
