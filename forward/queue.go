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

// admitted is a request's way through the gate.
type admitted struct {
	ticket  admission.Request
	pass    admission.Pass
	gated   bool // pass is valid
	attempt int  // the attempt that is picked for
	got     picker.Decision
}

// reserve picks the worker of attempt n. The first pick is made by the gate, when
// it lets the request in: with direct headers, whose request an endpoint picker
// has admitted, only the worker's own cap can make it wait. Further attempts wait
// within what is left of the request's time in the queue.
func (x *exchange) reserve(n int) (picker.Decision, error) {
	gate := x.s.deps.Gate
	if gate == nil || x.bypasses() {
		if gate != nil && n == 0 {
			gate.Bypass()
		}
		return x.next(n)
	}
	a := &x.gate
	a.attempt = n
	if a.gated {
		err := a.pass.Again(x.ctx)
		return a.got, err
	}
	r := &a.ticket
	r.Pick, r.Places = x.choose, x.places
	if x.body != nil {
		r.Bytes = int64(cap(*x.body))
	}
	if x.direct {
		r.Key = x.route.worker + "\x00" + x.route.prefill
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
		return picker.Decision{}, err
	}
	a.pass, a.gated = pass, true
	return a.got, nil
}

// choose is the gate's way to pick for x.
func (x *exchange) choose(time.Time) error {
	d, err := x.next(x.gate.attempt)
	switch {
	case errors.Is(err, picker.ErrFull):
		return admission.ErrFull
	case errors.Is(err, picker.ErrNoWorker), errors.Is(err, errStale):
		return fmt.Errorf("%w: %w", admission.ErrNoCapacity, err)
	case err != nil:
		return err
	}
	x.gate.got = d
	if d.OverCap {
		return admission.ErrOverCap
	}
	return nil
}

// bypasses reports whether a request takes no capacity worth a bound: engines
// compute for POST alone.
func (x *exchange) bypasses() bool { return x.r.Method != http.MethodPost }

// places counts the workers that the request could go to.
func (x *exchange) places() int {
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
	if x.gate.gated {
		x.gate.pass.Release()
	}
}

// streamBegan tells the adaptive limit of a stream's first token.
func (x *exchange) streamBegan(now time.Time) {
	if x.gate.gated && x.scan.Stream {
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
