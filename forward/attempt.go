package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

// answerTime bounds the reading of an answer that may be thrown away for an
// alternate's: a worker that answers 500 and hangs must not hold up the retry.
const answerTime = time.Second

// attempt is one try of a request at one worker.
type attempt struct {
	x         *exchange
	id        string // request ID and number of the attempt
	prefillID string // the same of a pair's prefill leg
	decision  *picker.Decision
	begin     func() error    // called when the worker has produced something: its error ends the attempt; may be nil
	ctx       context.Context //nolint:containedctx // its life is the attempt's
	cancel    context.CancelCauseFunc
	idle      *time.Timer // cancels when the worker is silent; nil without a limit
	status    int         // of the worker's response; 0 before it

	handed atomic.Bool // the pair's prefill worker has answered well
}

// attempts tries workers until one serves the request. Its error is the last
// attempt's.
func (x *exchange) attempts() error {
	var last error
	for n := 0; ; n++ {
		d, err := x.reserve(n)
		if err != nil {
			if last != nil { // no alternate: the failure is what there is to tell
				return last
			}
			return err
		}
		if n > 0 {
			x.s.metrics.retries.WithLabelValues(stageOf(last).String()).Inc()
		}
		x.workers = append(x.workers, d.Worker.ID)
		last = x.try(n, &d)
		if last == nil || n >= x.maxRetries() || !x.mayRepeat(last, d.Prefill != nil) {
			return last
		}
		x.failed(&d, last)
	}
}

func (x *exchange) maxRetries() int {
	if x.direct && !x.cfg.DirectFailover {
		return 0
	}
	return x.cfg.MaxRetries
}

// mayRepeat reports whether a request that failed with err may go to another
// worker (failover 2B).
func (x *exchange) mayRepeat(err error, pair bool) bool {
	if x.committed || x.r.Context().Err() != nil {
		return false
	}
	if pair {
		return x.mayRepeatPair(err)
	}
	repeatable := x.cfg.RetrySafety == BeforeFirstToken && x.repeatable()
	var ans *answer
	var broken *Error
	switch {
	case errors.As(err, &ans):
		return ans.refused() || repeatable && ans.status >= 500 && ans.status != http.StatusNotImplemented
	case errors.Is(err, errNoTransport):
		return true
	case errors.Is(err, errIdle):
		return repeatable
	case errors.As(err, &broken):
		return broken.Stage <= StageWrite || repeatable
	}
	return false
}

// try sends the request to the worker of d and relays what it answers. It
// returns d to the picker whatever happens.
func (x *exchange) try(n int, d *picker.Decision) (err error) {
	outcome := breaker.Neutral

	ctx, cancel := context.WithCancelCause(x.ctx)
	number := strconv.Itoa(n + 1)
	a := &attempt{x: x, id: x.id + "/m" + number, decision: d, ctx: ctx, cancel: cancel}
	if d.Prefill != nil {
		a.id, a.prefillID = x.id+"/d"+number, x.id+"/p"+number
	}
	defer func() { a.decision.Done(time.Now(), outcome) }()
	defer cancel(nil)
	if idle := x.cfg.IdleTimeout; idle > 0 {
		a.idle = time.AfterFunc(idle, func() { cancel(errIdle) })
		defer a.idle.Stop()
	}
	err = a.run()
	var result string
	outcome, result = a.verdict(err)
	x.note(a.decision.Worker, outcome) // in a pair another one may have taken d's place
	x.s.metrics.attempts.WithLabelValues(a.stage(err).String(), result).Inc()
	return err
}

func (a *attempt) run() error {
	x, d := a.x, a.decision
	if d.Prefill != nil {
		return a.runPair()
	}
	tr, err := x.transport(d.Worker)
	if err != nil {
		return err
	}
	return a.relay(tr, d.Worker, a.request())
}

// relay sends req to w and what w answers to the client.
func (a *attempt) relay(tr Transport, w *fleet.Worker, req *Request) error {
	x := a.x
	resp, err := tr.Do(a.ctx, w, req)
	if err != nil {
		return a.cause(err)
	}
	defer func() { _ = resp.Body.Close() }()
	a.status = resp.Status
	if x.identity() {
		if err := plain(resp); err != nil {
			return err
		}
	}
	switch {
	case resp.Status >= 500 || resp.Status == http.StatusTooManyRequests:
		return a.keep(resp)
	case isStream(resp):
		return x.relayStream(a, resp)
	}
	return x.relayBody(a, resp)
}

// request returns what goes to the worker.
func (a *attempt) request() *Request {
	x := a.x
	h := x.outHeader
	h[headerAttemptID] = x.value(a.id)
	if rank := a.decision.Rank; rank >= 0 {
		h[headerRank] = []string{strconv.Itoa(rank)}
	} else {
		delete(h, headerRank)
	}
	req := &Request{ID: x.id, Method: x.r.Method, Target: x.target, Header: h}
	if x.body != nil {
		req.Body = x.retained(a.decision.Worker, *x.body)
	}
	return req
}

// read reads from the worker under the idle timer.
func (a *attempt) read(body io.Reader, p []byte) (int, error) {
	if a.idle != nil {
		a.idle.Reset(a.x.cfg.IdleTimeout)
	}
	n, err := body.Read(p)
	if a.idle != nil {
		a.idle.Stop() // the client's slowness is not the worker's
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = a.cause(err)
	}
	return n, err
}

// cause returns why the attempt was canceled, or else err.
func (a *attempt) cause(err error) error {
	switch cause := context.Cause(a.ctx); {
	case cause == nil:
		return err
	case errors.Is(cause, context.Canceled):
		return errClientGone
	default:
		return cause
	}
}

// keep reads a worker's failure to the end, within answerTime and smallBody.
func (a *attempt) keep(resp *Response) error {
	ans := &answer{status: resp.Status, header: resp.Header}
	late := time.AfterFunc(answerTime, func() { a.cancel(errIdle) })
	defer late.Stop()
	buf := make([]byte, 0, 512)
	for len(buf) < smallBody {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			ans.complete = errors.Is(err, io.EOF)
			break
		}
	}
	if a.x.ctx.Err() != nil {
		return a.cause(errClientGone)
	}
	ans.body = buf
	return ans
}

// verdict says what err means for the worker's circuit, and for the attempts
// metric. Backpressure (429, and 503 with Retry-After) and what the client or
// we ended is no news about the worker's health (seed "Routing & transport",
// Circuit breaker; infera.md P21).
func (a *attempt) verdict(err error) (breaker.Outcome, string) {
	if err == nil {
		return breaker.OutcomeOf(a.status), statusLabel(a.status)
	}
	var ans *answer
	var event *errorEvent
	var broken *Error
	switch {
	case atPrefill(err):
		return breaker.Neutral, "prefill"
	case errors.Is(err, errFirstToken):
		return a.failedAfterHead(), "idle"
	case errors.As(err, &ans):
		if ans.refused() {
			return breaker.Busy, "refused"
		}
		o := breaker.OutcomeOf(ans.status)
		if o == breaker.Origin {
			o = a.failedAfterHead()
		}
		return o, statusLabel(ans.status)
	case errors.As(err, &event):
		if event.status < http.StatusInternalServerError {
			return breaker.Neutral, "error_event"
		}
		return a.failedAfterHead(), "error_event"
	case errors.Is(err, errIdle):
		return a.failedAfterHead(), "idle"
	case errors.Is(err, errClientGone):
		return breaker.Neutral, "canceled"
	case errors.Is(err, errDraining), errors.Is(err, errMaxDuration), errors.Is(err, errNoTransport), errors.Is(err, errPD), errors.Is(err, ErrBlameless):
		return breaker.Neutral, "ended"
	}
	if a.status == 0 && !(errors.As(err, &broken) && broken.Stage == StageBody) {
		return breaker.Connect, "error" // reset before the head, or never reached
	}
	return a.failedAfterHead(), "error"
}

// failedAfterHead says what a worker that was reached has failed with. Before its
// first token a decode worker may have waited for a cache that never came: that is
// the pair's fault (failover 2A, pair memory).
func (a *attempt) failedAfterHead() breaker.Outcome {
	switch {
	case !a.x.firstAt.IsZero():
		return breaker.Stream
	case a.decision.Prefill != nil && a.handed.Load():
		return breaker.Transfer
	}
	return breaker.Origin
}

func statusLabel(status int) string {
	switch {
	case status < 400:
		return outcomeOK
	case status < 500:
		return outcome4xx
	}
	return outcome5xx
}

// stage returns how far the attempt got.
func (a *attempt) stage(err error) Stage {
	if err == nil {
		return StageBody
	}
	var broken *Error
	switch {
	case errors.As(err, &broken):
		return broken.Stage
	case a.status != 0:
		return StageBody
	}
	return stageOf(err)
}

// stageOf returns the stage of an attempt's error.
func stageOf(err error) Stage {
	var broken *Error
	var ans *answer
	switch {
	case errors.As(err, &broken):
		return broken.Stage
	case errors.As(err, &ans):
		return StageHead
	case errors.Is(err, errIdle):
		return StageDispatched
	}
	return StageDial
}
