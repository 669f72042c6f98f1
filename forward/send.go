package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"pointsman/fleet"
	"pointsman/prompt"
)

// Between two dials of one worker: long enough for a listener to come back, and
// spread so that many requests do not come back at once (failover 2B).
const (
	redialLeast = 10 * time.Millisecond
	redialMost  = 50 * time.Millisecond
)

// try is one dial of a worker and what came of it.
type try struct {
	id       string    // request ID, slash, letter of the leg, number: rid/m1
	named    string    // id, slash, the request's nonce: the name that engines know it by
	values   [2]string // of headers; of its own, for the legs of a pair are sent at once
	leg      leg
	n        byte // number within the leg, from 1
	worker   string
	progress Progress
	began    time.Duration // since the request's start; 0 but for the legs of a pair

	why  reason        // guarded by exchange.mu: legs of a pair end in their own time
	over time.Duration // since the request's start, when why was set
}

// sending is what goes to a worker on one leg.
type sending struct {
	leg      leg
	worker   *fleet.Worker
	affinity bool          // the worker was picked for what it holds: worth a second dial
	connect  time.Duration // longest dial; 0 for the transport's own
	timed    *attempt      // whose timers run; nil for none
}

// send tries w, and again while it cannot be dialed, as far as Config, the cap
// and the budget allow. Its error is the last try's; the last try is left open.
func (x *exchange) send(ctx context.Context, to *sending, req *Request) (*Response, *try, error) {
	tr, err := x.transport(to.worker)
	if err != nil {
		return nil, x.newTry(to), err
	}
	body := req.Body
	for redials := 0; ; redials++ {
		t := x.newTry(to)
		x.address(req, t, to, body)
		if to.timed != nil {
			to.timed.reached(StageDispatched, time.Since(x.start)) // for transports that tell nothing
		}
		resp, err := tr.Do(ctx, to.worker, req)
		dialed := !unreached(err)
		if redials > 0 && dialed {
			x.s.metrics.sameEPOK.Inc()
		}
		if dialed || ctx.Err() != nil || !to.affinity || redials >= x.cfg.ConnectRetrySameEP || !x.room(to.leg) || !x.mayRetry() {
			return resp, t, err
		}
		x.end(t, reasonOf(err, false), err)
		x.s.metrics.sameEP.Inc()
		pause(ctx, redialLeast+rand.N(redialMost-redialLeast)) //nolint:gosec // spread, not secrecy
	}
}

// unreached reports whether err says that a worker has seen nothing of a request.
func unreached(err error) bool {
	broken, ok := errors.AsType[*Error](err)
	return ok && broken.Stage == StageDial && !errors.Is(err, ErrBlameless)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// newTry notes a further try.
func (x *exchange) newTry(to *sending) *try {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent[to.leg]++
	t := &x.firstTry
	if len(x.tries) > 0 {
		t = new(try)
	}
	t.leg, t.n, t.worker = to.leg, x.sent[to.leg], to.worker.ID
	t.progress.start, t.progress.timed = x.start, to.timed
	if to.leg != legMixed {
		t.began = time.Since(x.start)
	}
	t.name(x.id, x.nonce[:])
	x.tries = append(x.tries, t)
	if to.timed != nil {
		to.timed.last = t
	}
	return t
}

// name makes t's names: one text, of which id is the beginning.
func (t *try) name(request string, nonce []byte) {
	var buf [64]byte
	b := append(append(buf[:0], request...), '/', t.leg.letter(), '0'+t.n)
	end := len(b)
	b = append(append(b, '/'), nonce...)
	t.named = string(b)
	t.id = t.named[:end]
}

// room reports whether the cap of tries leaves one for the leg (failover 2B:
// --max-attempts bounds dials and dispatches together).
func (x *exchange) room(l leg) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return int(x.sent[l]) < x.cfg.MaxAttempts
}

// mayRetry takes one repetition out of the budget of all requests together.
func (x *exchange) mayRetry() bool {
	ok := x.s.budget.take(time.Now(), x.cfg.RetryBudgetShare, x.cfg.RetryBudgetFloor)
	x.mu.Lock()
	x.denied = !ok
	x.mu.Unlock()
	return ok
}

// end notes how t has ended, once; err is why.
func (x *exchange) end(t *try, why reason, err error) {
	if t == nil {
		return
	}
	x.mu.Lock()
	first := t.why == tryOpen
	if first {
		t.why, t.over = why, time.Since(x.start)
	}
	x.mu.Unlock()
	if first {
		x.s.metrics.tried(t.stage(err), why)
		if t.leg != legMixed {
			x.s.metrics.pairs.ended(t, why, err, t.over-t.began)
		}
	}
}

// stage returns how far t has got: what the transport says of a failure, else
// what it reached.
func (t *try) stage(err error) Stage {
	if broken, ok := errors.AsType[*Error](err); ok {
		return broken.Stage
	}
	for s := StageBody; s > StageDial; s-- {
		if _, ok := t.progress.since(s); ok {
			return s
		}
	}
	return StageDial
}

// address puts what differs from try to try into req.
func (x *exchange) address(req *Request, t *try, to *sending, body []byte) {
	req.Progress, req.ConnectTimeout, req.Body = &t.progress, to.connect, body
	t.values[0] = t.id
	req.Header[headerAttemptID] = t.values[0:1:1]
	if !req.Named {
		t.values[1] = x.clientID
		req.Header[headerClientID] = t.values[1:2:2]
	}
	if left, ok := x.left(); ok {
		req.Header[headerBudget] = []string{strconv.FormatInt(max(left.Milliseconds(), 1), 10)}
	}
	if x.cfg.EngineRequestID {
		x.nameForEngine(req, t, to.worker)
	}
}

// nameForEngine makes a vLLM engine know the request by the try's ID, which its log
// and its API then say. A nonce keeps the names of two requests with one ID apart.
// A protocol that forges the header for its own use keeps it; SGLang, which reads
// no header, is named by its connector, in the body (failover 4.4).
func (x *exchange) nameForEngine(req *Request, t *try, w *fleet.Worker) {
	if w.Engine == fleet.VLLM && !req.Named && (x.kind == prompt.Chat || x.kind == prompt.Completions) {
		t.values[1] = t.named
	}
}
