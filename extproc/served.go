package extproc

import (
	"bytes"

	"pointsman/breaker"
	"pointsman/fleet"
)

// firstOf returns the first endpoint of a destination.
func firstOf(destination []byte) []byte {
	first, _, _ := bytes.Cut(destination, []byte(","))
	return first
}

// move corrects the books when the gateway says that another endpoint than the
// first of its list has served the request: the workers that it passed over could
// not be reached, and what was reserved on the first is on the one that served
// (failover.md §2A, EPP observation). A worker that is not known, or that cannot
// be reserved any more, leaves the request without a reservation.
func (x *exchange) move(served, details []byte) {
	if !x.picked || len(served) == 0 || sameEndpoint(firstOf(x.route.destination), served) {
		return
	}
	skipped, to := x.servedBy(served)
	if to == nil {
		return
	}
	now := x.s.now()
	req := x.req
	req.Running = true // it is there, whatever the caps say
	prefill, prefillRank := "", x.dec.PrefillRank
	if x.dec.Prefill != nil {
		if prefill = x.dec.Prefill.ID; prefillRank >= 0 {
			prefill = fleet.RankKey(prefill, prefillRank)
		}
	}
	req.Alone = to.Role == fleet.Decode && prefill == ""
	x.picked = false
	x.dec.Done(now, breaker.Connect)
	for _, w := range skipped {
		if d, err := x.s.deps.Picker.Direct(now, w.ID, prefill, &req); err == nil {
			d.Done(now, breaker.Connect)
		}
	}
	x.outcome, x.ours = breaker.Neutral, false
	dec, err := x.s.deps.Picker.Direct(now, to.ID, prefill, &req)
	if err != nil {
		return
	}
	x.s.metrics.moved.Inc()
	x.dec, x.picked, x.ours = dec, true, true
	x.route.destination = append(x.route.destination[:0], served...)
	switch o := breaker.OutcomeOf(x.status); {
	case bytes.HasPrefix(details, []byte(unreached)):
		x.ours, x.outcome = false, breaker.Connect
	case o != breaker.Success:
		x.outcome = o
	}
}

// servedBy returns the worker whose endpoint served, nil when it is not known, and
// those of the list that were tried before it, beside the first.
func (x *exchange) servedBy(served []byte) (skipped []*fleet.Worker, to *fleet.Worker) {
	snap := x.s.deps.Store.Snapshot()
	_, ends, _ := bytes.Cut(x.route.destination, []byte(","))
	ids := x.route.fallback
	for len(ends) > 0 && len(ids) > 0 {
		var end, id []byte
		end, ends, _ = bytes.Cut(ends, []byte(","))
		id, ids, _ = bytes.Cut(ids, []byte(","))
		w := snap.Worker(string(id))
		if sameEndpoint(end, served) {
			return skipped, w
		}
		if w != nil {
			skipped = append(skipped, w)
		}
	}
	for _, w := range snap.Workers { // beyond the list: the gateway's own choice
		if w.Destination(x.cfg.DestinationPort) == string(served) {
			return skipped, w
		}
	}
	return nil, nil
}
