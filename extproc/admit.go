package extproc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/picker"
	"pointsman/trust"
)

// errStreamEnded ends the wait of a request whose stream has ended.
var errStreamEnded = errors.New("the gateway ended the stream while the request waited")

// pick picks a worker for x.req, when the gate lets the request in. It returns
// with a reservation or an error, possibly after a wait in which nothing has
// been sent upstream: Envoy waits for the answer to the headers or the body.
func (x *exchange) pick(ctx context.Context) error {
	gate := x.s.deps.Gate
	switch {
	case gate == nil:
		return x.choose(x.s.now())
	case x.bypasses():
		gate.Bypass()
		return x.choose(x.s.now())
	}
	r := x.ticket
	r.Tenant, r.Priority, r.Bytes = x.tenant, x.priority, int64(x.body.size)
	r.Units = admission.UnitsOf(x.scan.N, x.scan.BestOf)
	r.Key = x.req.Model
	if x.req.HasSubset {
		r.Key += "\x00" + strings.Join(x.req.Subset, ",")
	}
	if gate.Mode() == admission.Enforce && x.watch != nil {
		waiting, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		r.OnPark = func() { x.watch(cancel) }
		ctx = waiting
	}
	pass, err := gate.Enter(ctx, r)
	if r.OnPark = nil; err != nil {
		return err
	}
	x.pass = pass
	return nil
}

// bypasses reports whether a request takes no capacity worth a bound: engines
// compute for POST alone.
func (x *exchange) bypasses() bool { return string(x.method) != http.MethodPost }

// choose reserves a worker; it is the ticket's Pick.
func (x *exchange) choose(now time.Time) error {
	dec, err := x.s.deps.Picker.Pick(now, &x.req)
	switch {
	case errors.Is(err, picker.ErrFull):
		return admission.ErrFull
	case errors.Is(err, picker.ErrNoWorker):
		return fmt.Errorf("%w: %w", admission.ErrNoCapacity, err)
	case err != nil:
		return err
	}
	x.dec, x.picked = dec, true
	x.route.to(&dec, x.cfg.DestinationPort)
	x.number()
	if x.cfg.Conformance {
		x.route.extra = append(x.route.extra[:0], header{headerEcho, headerConformance + ":" + string(x.route.destination)})
	}
	x.sign(now)
	if dec.OverCap && x.s.deps.Gate != nil && !x.bypasses() {
		return admission.ErrOverCap
	}
	return nil
}

// sign vouches for the route, where forwarders ask for that. A request without an
// ID gets one: a ticket of no request would be good for any.
func (x *exchange) sign(now time.Time) {
	keys := x.s.deps.Keys
	if keys == nil {
		return
	}
	r := &x.route
	if r.id = ""; x.rid == "" {
		r.id = trust.NewID(now)
		x.rid = r.id
	}
	signed := trust.Route{
		RequestID: x.rid, Worker: r.worker, Prefill: r.prefill, Fallback: string(r.fallback), Host: string(x.host),
		Rank: string(r.rank), PrefillRank: string(r.prefillRank),
	}
	if r.alone {
		signed.PrefillSkip = skip
	}
	r.ticket = keys.Sign(r.ticket[:0], now, &signed)
}

// places counts the workers that x's request could go to, for the bound of the
// queues per worker.
func (x *exchange) places() int {
	if x.req.HasSubset {
		return len(x.req.Subset)
	}
	n := 0
	for _, w := range x.s.deps.Store.Snapshot().Workers {
		if w.Status == fleet.Active && w.Role != fleet.Decode && (x.req.AnyModel || w.Model == x.req.Model) {
			n++
		}
	}
	return n
}
