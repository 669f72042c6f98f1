package forward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/picker"
)

// admitted is a request's way through the gate. It is pooled for its ticket, whose
// functions are made once.
type admitted struct {
	x       *exchange
	ticket  admission.Request
	pass    admission.Pass
	gated   bool // pass is valid
	attempt int  // the attempt that is picked for
	got     *picker.Decision
	cache   *fleet.Worker // prefill worker of which only another decode worker is picked; nil for a whole attempt
}

// reserve picks the worker of attempt n. The first pick is made by the gate, when
// it lets the request in: with direct headers, whose request an endpoint picker
// has admitted, only the worker's own cap can make it wait. Further attempts wait
// within what is left of the request's time in the queue.
func (x *exchange) reserve(n int, d *picker.Decision) error {
	gate := x.s.deps.Gate
	if gate == nil || x.bypasses() {
		if gate != nil && n == 0 {
			gate.Bypass()
		}
		return x.next(n, d)
	}
	if x.gate != nil && x.gate.gated {
		x.gate.attempt, x.gate.got, x.gate.cache = n, d, nil
		return x.gate.pass.Again(x.ctx, x.among(x.localTo))
	}
	a := x.s.ticket(x)
	a.attempt, a.got = n, d
	r := &a.ticket
	if x.body != nil {
		r.Bytes = int64(cap(*x.body))
	}
	if x.direct {
		if r.Key = x.route.worker; x.route.prefill != "" {
			r.Key += "\x00" + x.route.prefill
		}
	} else {
		h := &x.cfg.Admission
		r.Key, r.Units = x.pick.Model, admission.UnitsOf(x.scan.N, x.scan.BestOf)
		if h.Tenant != "" {
			r.Tenant = x.r.Header.Get(h.Tenant)
		}
		if h.Priority != "" {
			r.Priority = admission.PriorityOf(x.r.Header.Get(h.Priority))
		}
	}
	pass, err := gate.Enter(x.ctx, r)
	if err != nil {
		return err
	}
	a.pass, a.gated = pass, true
	return nil
}

// reserveDecode picks another decode worker for the cache that prefill has computed,
// and waits for one as a whole attempt does, for as long as ctx lasts.
func (x *exchange) reserveDecode(ctx context.Context, prefill *fleet.Worker, d *picker.Decision) error {
	if x.gate == nil || !x.gate.gated {
		return x.alternate(prefill, d)
	}
	x.gate.got, x.gate.cache = d, prefill
	return x.gate.pass.Again(ctx, x.among("decode for "+prefill.ID))
}

// among names the workers that a further attempt can go to, for the gate: all of
// the model's but those that it has tried, and of these what is said by only.
func (x *exchange) among(only string) string {
	return x.pick.Model + "\x00" + only + "\x00" + strings.Join(x.tried, "\x00")
}

// ticket returns what x goes through the gate with.
func (s *Server) ticket(x *exchange) *admitted {
	a, ok := s.tickets.Get().(*admitted)
	if !ok {
		a = new(admitted)
		a.ticket.Pick, a.ticket.Places = a.choose, a.places
	}
	a.x, x.gate = x, a
	return a
}

// choose is the gate's way to pick.
func (a *admitted) choose(time.Time) error {
	d := a.got
	var err error
	if a.cache != nil {
		err = a.x.alternate(a.cache, d)
	} else {
		err = a.x.next(a.attempt, d)
	}
	switch {
	case err == nil && d.OverCap:
		return admission.ErrOverCap
	case errors.Is(err, picker.ErrFull):
		return admission.ErrFull
	case errors.Is(err, picker.ErrNoWorker), errors.Is(err, errStale):
		return noCapacity(err)
	}
	return err
}

func noCapacity(err error) error { return fmt.Errorf("%w: %w", admission.ErrNoCapacity, err) }

// bypasses reports whether a request takes no capacity worth a bound: engines
// compute for POST alone.
func (x *exchange) bypasses() bool { return x.r.Method != http.MethodPost }

// places counts the workers that the request could go to.
func (a *admitted) places() int {
	x := a.x
	if x.direct {
		return 1
	}
	n := 0
	for _, w := range x.s.deps.Store.Snapshot().Workers {
		if w.Status == fleet.Active && w.Role != fleet.Decode && (x.pick.AnyModel || w.Model == x.pick.Model) {
			n++
		}
	}
	return n
}

// leaveGate gives back what the gate has lent.
func (x *exchange) leaveGate() {
	a := x.gate
	if a == nil || !a.gated {
		return // a ticket that was refused is left to the garbage collector
	}
	x.gate = nil
	a.pass.Release()
	a.x, a.got, a.cache, a.pass, a.gated = nil, nil, nil, admission.Pass{}, false
	r := &a.ticket
	r.Tenant, r.Priority, r.Bytes, r.Units, r.Key = "", 0, 0, 0, ""
	x.s.tickets.Put(a)
}

// streamBegan tells the adaptive limit of a stream's first token.
func (x *exchange) streamBegan(now time.Time) {
	if x.gate != nil && x.gate.gated && x.scan.Stream {
		x.gate.pass.FirstToken(now)
	}
}

// tellGate puts into the response how full the gate is.
func (x *exchange) tellGate() {
	gate := x.s.deps.Gate
	if gate == nil || x.direct || !x.cfg.Admission.Tells(gate.Mode()) {
		return
	}
	inflight, queued, limit := gate.Counts()
	h := x.w.Header()
	h.Set(admission.HeaderInflight, strconv.Itoa(inflight))
	h.Set(admission.HeaderQueued, strconv.Itoa(queued))
	h.Set(admission.HeaderLimit, strconv.Itoa(limit))
}

// unplaced is a request that has waited in vain for a worker for another attempt.
type unplaced struct {
	refusal *admission.Refusal
	last    error // how the former attempt ended
}

func (e *unplaced) Error() string   { return "no room for another attempt: " + e.last.Error() }
func (e *unplaced) Unwrap() []error { return []error{e.refusal, e.last} }

// noOther returns what a request ends with whose last attempt ended with last, and
// that gets no other worker because of err. Where none was waited for, the failure is
// what there is to tell.
func (x *exchange) noOther(ctx context.Context, last, err error) error {
	if why := context.Cause(ctx); errors.Is(why, context.Canceled) {
		return errClientGone
	} else if why != nil {
		return why
	}
	if r, ok := errors.AsType[*admission.Refusal](err); ok && r.Status == http.StatusGatewayTimeout {
		return &unplaced{r, last}
	}
	return last
}

// describeUnplaced is what the client is told of it.
func describeUnplaced(e *unplaced) apiError {
	out, _ := describeRefusal(e.refusal)
	if out.mayHaveRun = describe(e.last).mayHaveRun; out.mayHaveRun {
		out.message = "a worker failed, and no capacity came free in time for another attempt"
	}
	return out
}

// describeRefusal is what the client is told that the gate has refused.
func describeRefusal(err error) (apiError, bool) {
	var r *admission.Refusal
	if !errors.As(err, &r) {
		if errors.Is(err, admission.ErrFull) { // of a request that the gate does not see
			return apiError{status: http.StatusTooManyRequests, kind: rateLimit, code: admission.CodeCapacity, message: admission.ErrFull.Error(), retryAfter: 1}, true
		}
		return apiError{}, false
	}
	e := apiError{status: r.Status, kind: serverError, code: r.Code, message: r.Message, retryAfter: r.Seconds(), refusal: r}
	if r.Status == http.StatusTooManyRequests {
		e.kind = rateLimit
	}
	return e, true
}
