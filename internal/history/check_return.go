package history

import (
	"maps"
	"slices"
	"time"
)

// allReturn is I11: whom something leaves out is left out no longer than that lasts,
// and once everything was healed every worker gets requests again.
func allReturn(v *view, broken func(string, ...any)) {
	last := map[string]*Sample{} // by source
	for i := range v.Samples {
		s := &v.Samples[i]
		before := last[s.Source]
		last[s.Source] = s
		for reason, most := range map[string]func(s, before *Sample) int{
			"circuit_open": v.mayBeOpen,
			"pair_open":    v.mayBeParted,
			"busy":         v.mayBeBusy,
			"unhealthy":    v.mayBeSick,
		} {
			if n := s.Excluded[reason]; n > 0 && n > most(s, before) {
				broken("%s leaves out %d as %s at %s, of which %d may be", s.Source, n, reason, s.At.Format(time.StampMilli), most(s, before))
			}
		}
	}
	v.allServe(broken)
}

// mayBeOpen counts the workers that their circuits may leave out. A program does not say
// all at one moment: a circuit that was not closed in the sample before may have become
// so while this one was taken, behind the count and before its state.
func (v *view) mayBeOpen(s, before *Sample) (n int) {
	for id, one := range s.Circuits {
		closes := before != nil && one.State == Closed && before.Circuits[id].State != Closed
		if closes || v.mayLeaveOut(one, id, s.At) {
			n++
		}
	}
	return n
}

// mayBeParted is the same for pairs, of which samples have those that are not closed.
func (v *view) mayBeParted(s, before *Sample) (n int) {
	for _, p := range s.Pairs {
		if v.mayLeaveOut(p.Circuit, p.Decode, s.At) {
			n++
		}
	}
	if before != nil {
		n += max(len(before.Pairs)-len(s.Pairs), 0)
	}
	return n
}

// mayLeaveOut reports whether the circuit's cooldown was not over longer than an
// exclusion may outlive it, or a probe may have been under way.
func (v *view) mayLeaveOut(c Circuit, worker string, at time.Time) bool {
	return c.State != Closed && (c.Until.Add(v.limits.Expiry).After(at) || c.State == HalfOpen && v.asked(worker, at))
}

// asked reports whether a request to the worker may have been under way.
func (v *view) asked(worker string, at time.Time) bool {
	return slices.ContainsFunc(v.Requests, func(r Request) bool {
		if r.Sent.After(at) || r.End.Add(v.limits.Race).Before(at) || r.Model != v.workers[worker].Model {
			return false
		}
		return len(r.Tries) == 0 || slices.ContainsFunc(r.Tries, func(t Try) bool { return t.Worker == worker }) ||
			slices.ContainsFunc(v.receipts[r.ID], func(rc *Receipt) bool { return rc.Worker == worker })
	})
}

// mayBeBusy counts the workers that may have said so a moment ago.
func (v *view) mayBeBusy(s, _ *Sample) int {
	said := map[string]bool{}
	for i := range v.Requests {
		r := &v.Requests[i]
		if r.Sent.After(s.At) || r.End.Add(v.limits.Busy+v.limits.Expiry).Before(s.At) {
			continue
		}
		if len(r.Tries) == 0 { // nobody knows
			return len(v.workers)
		}
		for _, t := range r.Tries {
			if t.Why == "busy" {
				said[t.Worker] = true
			}
		}
	}
	return len(said)
}

// mayBeSick counts the workers that something was wrong with in the time that probes
// take to see that it is over.
func (v *view) mayBeSick(s, _ *Sample) (n int) {
	for id := range v.workers {
		if slices.ContainsFunc(v.Faults, func(f Fault) bool {
			return !f.Tame && (f.Worker == id || f.Worker == "") && f.From.Before(s.At) && f.To.Add(v.limits.Health+v.limits.Expiry).After(s.At)
		}) {
			n++
		}
	}
	return n
}

// allServe looks at who got requests after everything was healed.
func (v *view) allServe(broken func(string, ...any)) {
	got := map[string]int{}
	kinds := map[string]int{}
	sizes := map[string]int{}
	for _, w := range v.Workers {
		sizes[w.Model+" "+w.Role]++
	}
	for i := range v.Receipts {
		rc := &v.Receipts[i]
		if rc.Received.After(v.Healed) && !rc.Received.After(v.End) {
			w := v.workers[rc.Worker]
			got[rc.Worker]++
			kinds[w.Model+" "+w.Role]++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(v.workers)) {
		w := v.workers[id]
		kind := w.Model + " " + w.Role
		if got[id] == 0 && kinds[kind] >= v.limits.LeastCount*sizes[kind] {
			broken("%s got none of the %d requests to its kind after everything was healed", id, kinds[kind])
		}
	}
}
