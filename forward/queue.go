package forward

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
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
		x.gate.attempt, x.gate.got = n, d
		return x.gate.pass.Again(x.ctx)
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
	err := a.x.next(a.attempt, d)
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
	a.x, a.got, a.pass, a.gated = nil, nil, admission.Pass{}, false
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
