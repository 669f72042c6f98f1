package forward

import (
	"errors"
	"net/http"
	"time"

	"pointsman/fleet"
)

// attempts tries workers until one serves the request. Its error is the last
// attempt's.
func (x *exchange) attempts() error {
	var last error
	for n := 0; ; n++ {
		a := x.newAttempt(n)
		d := &a.picked
		if n > 0 { // the endpoint picker need not wait for what may be waited for here
			x.flight.Moved(time.Now(), x.receipt(nil, 0))
		}
		if err := x.reserve(n, d); err != nil {
			if last != nil {
				return x.noOther(x.ctx, last, err)
			}
			return err
		}
		if n > 0 {
			x.moved(last)
		}
		x.workers = append(x.workers, d.Worker.ID)
		x.fly(d)
		last = a.try()
		if last == nil || x.spent >= x.maxRetries() || !x.mayRepeat(last, d.Prefill != nil) || !x.roomFor(d.Prefill != nil) {
			return x.withinBudget(last)
		}
		if !uncarried(last) { // else nobody was asked: the alternate is still to come
			if x.spent++; !x.mayRetry() {
				return x.withinBudget(last)
			}
		}
		x.failed(d, last)
	}
}

// withinBudget returns last, and tells of it when it was not repeated for want of
// repetitions: of a dial, of a decode leg or of the whole attempt.
func (x *exchange) withinBudget(last error) error {
	x.mu.Lock()
	denied := x.denied
	x.mu.Unlock()
	if last == nil || !denied {
		return last
	}
	x.s.metrics.exhausted.Inc()
	return &exhausted{last}
}

// newAttempt returns the memory of attempt n. Legs of the former one may still run.
func (x *exchange) newAttempt(n int) *attempt {
	a := &x.first
	if n > 0 {
		a = new(attempt)
	}
	a.x, a.decision = x, &a.picked
	return a
}

// uncarried reports whether err says that there is no way to a worker from here,
// so that it was not asked.
func uncarried(err error) bool {
	var ans *answer
	return errors.Is(err, errNoTransport) || errors.As(err, &ans) && ans.down
}

// passOver leaves out the workers that are reached as w is: what is not there for
// one is not there for the others.
func (x *exchange) passOver(w *fleet.Worker) {
	for _, other := range x.s.deps.Store.Snapshot().Workers {
		if other.Transport == w.Transport {
			x.tried = append(x.tried, other.ID)
		}
	}
}

// moved counts a request that goes to another worker because of last.
func (x *exchange) moved(last error) {
	stage := StageDial
	x.mu.Lock()
	if n := len(x.tries); n > 0 {
		stage = x.tries[n-1].stage(last)
	}
	x.mu.Unlock()
	x.s.metrics.retries.WithLabelValues(reasonOf(last, false).String(), stage.String()).Inc()
	x.s.metrics.failovers.Inc()
}

// roomFor reports whether the cap leaves a try for each leg of a further attempt.
func (x *exchange) roomFor(pair bool) bool {
	if pair {
		return x.room(legPrefill) && x.room(legDecode)
	}
	return x.room(legMixed)
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
	if x.committed || x.over() {
		return false
	}
	if pair {
		return x.mayRepeatPair(err)
	}
	repeatable := x.cfg.RetrySafety == BeforeFirstToken && x.repeatable()
	if ans, ok := errors.AsType[*answer](err); ok {
		return ans.refused() || repeatable && ans.status >= 500 && ans.status != http.StatusNotImplemented
	}
	switch {
	case errors.Is(err, errNoTransport):
		return true
	case errors.Is(err, errIdle), errors.Is(err, errFirstToken):
		return repeatable
	}
	broken, ok := errors.AsType[*Error](err)
	return ok && (broken.Stage <= StageWrite || repeatable)
}
