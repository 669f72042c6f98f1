package history

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// openMeansOut is I8: a worker whose circuit is open in the eyes of every picker
// gets no first attempt. (A probe makes the circuit half-open; fail-over goes by
// the forwarders' own circuits; when all circuits are open, one is tried anyway.)
func openMeansOut(v *view, broken func(string, ...any)) {
	for worker, spans := range v.openSpans() {
		for i := range v.Receipts {
			rc := &v.Receipts[i]
			if rc.Worker != worker || !strings.HasSuffix(rc.Attempt, "1") {
				continue
			}
			for _, s := range spans {
				if rc.Received.After(s.from.Add(v.limits.Race)) && rc.Received.Before(s.to.Add(-v.limits.Race)) {
					broken("%s: attempt %s at %s, whose circuit was open from %s to %s", rc.Request, rc.Attempt, worker,
						s.from.Format(time.StampMilli), s.to.Format(time.StampMilli))
				}
			}
		}
	}
}

type span struct{ from, to time.Time }

// openSpans returns when each worker's circuit was open for all sources, while
// that of another worker of its kind was not.
func (v *view) openSpans() map[string][]span {
	sources := map[string][]string{} // latest word of each
	for i := range v.Samples {
		sources[v.Samples[i].Source] = nil
	}
	heard := map[string]bool{}
	since := map[string]time.Time{}
	out := map[string][]span{}
	for i := range v.Samples {
		s := &v.Samples[i]
		sources[s.Source], heard[s.Source] = s.Open, true
		if len(heard) < len(sources) {
			continue
		}
		for id, w := range v.workers {
			open := v.openForAll(sources, id) && !v.allOpen(sources, w)
			from, was := since[id]
			switch {
			case open && !was:
				since[id] = s.At
			case !open && was:
				// It was seen open up to some sample before: one of the same source
				// is the latest that can be relied on.
				out[id] = append(out[id], span{from, v.before(i)})
				delete(since, id)
			}
		}
	}
	return out
}

// before returns the time of the sample that the source of sample i gave last
// before it.
func (v *view) before(i int) time.Time {
	for k := i - 1; k >= 0; k-- {
		if v.Samples[k].Source == v.Samples[i].Source {
			return v.Samples[k].At
		}
	}
	return v.Samples[i].At
}

func (v *view) openForAll(sources map[string][]string, id string) bool {
	for _, open := range sources {
		if !slices.Contains(open, id) {
			return false
		}
	}
	return true
}

// allOpen reports whether some source has nobody left of w's kind.
func (v *view) allOpen(sources map[string][]string, w Worker) bool {
	for _, open := range sources {
		left := 0
		for id, other := range v.workers {
			if other.Model == w.Model && other.Role == w.Role && !slices.Contains(open, id) {
				left++
			}
		}
		if left == 0 {
			return true
		}
	}
	return false
}

// isolation is I9: a request whose every leg met healthy workers succeeds,
// whatever happens to others. One that left no receipt may have met anyone.
func isolation(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		r := &v.Requests[i]
		if r.OK() || !r.Canceled.IsZero() || r.Status == 429 || v.disturbed("", r.Sent, r.End) || !v.metAll(r) {
			continue
		}
		healthy := true
		for _, rc := range v.receipts[r.ID] {
			healthy = healthy && !v.disturbed(rc.Worker, r.Sent, r.End)
		}
		for _, t := range r.Tries { // engines have no receipt of who could not reach them
			healthy = healthy && !v.disturbed(t.Worker, r.Sent, r.End)
		}
		if healthy {
			broken("%s: status %d, code %q, though nothing was wrong with %s", r.ID, r.Status, r.Code, v.met(r))
		}
	}
}

// metAll reports whether the request's receipts show all of its legs.
func (v *view) metAll(r *Request) bool {
	roles := map[string]bool{}
	for _, rc := range v.receipts[r.ID] {
		roles[v.workers[rc.Worker].Role] = true
	}
	return roles["mixed"] || roles["prefill"] && roles["decode"]
}

// met returns the workers of a request's receipts.
func (v *view) met(r *Request) string {
	var ids []string
	for _, rc := range v.receipts[r.ID] {
		ids = append(ids, rc.Worker)
	}
	return strings.Join(ids, ", ")
}

// abortsArrive is I10: an attempt that nobody waits for any more ends, unless
// its worker is out of reach.
func abortsArrive(v *view, broken func(string, ...any)) {
	ends := make(map[string]time.Time, len(v.Requests))
	for i := range v.Requests {
		ends[v.Requests[i].ID] = v.Requests[i].End
	}
	for i := range v.Receipts {
		rc := &v.Receipts[i]
		end, known := ends[rc.Request]
		switch {
		case !known || rc.Lost || rc.Complete:
		case rc.Ended.IsZero():
			broken("%s: attempt %s at %s never ended", rc.Request, rc.Attempt, rc.Worker)
		case rc.Ended.Sub(end) > v.limits.Abort && !v.disturbed(rc.Worker, rc.Received, rc.Ended):
			broken("%s: attempt %s at %s ended %v behind its request", rc.Request, rc.Attempt, rc.Worker, rc.Ended.Sub(end))
		}
	}
}

// allReturn is I11: nobody stays left out. Once everything was healed, every
// worker gets requests again.
func allReturn(v *view, broken func(string, ...any)) {
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

// success is I12: when everything has been healed and has had time to settle,
// requests succeed.
func success(v *view, broken func(string, ...any)) {
	ok, all := AfterHeal(v.History)
	if all > 0 && float64(ok) < v.limits.Success*float64(all) {
		var worst []string
		for i := range v.Requests {
			r := &v.Requests[i]
			if counts(v.History, r) && !r.OK() {
				worst = append(worst, r.ID+" "+cmp.Or(r.Code, "no code"))
			}
		}
		broken("%d of %d requests succeeded after the fleet had settled: %s", ok, all, strings.Join(worst[:min(5, len(worst))], ", "))
	}
}

// AfterHeal returns how many of the requests sent after Settled succeeded. Those
// whose clients left are not counted.
func AfterHeal(h *History) (ok, all int) {
	for i := range h.Requests {
		r := &h.Requests[i]
		if !counts(h, r) {
			continue
		}
		all++
		if r.OK() {
			ok++
		}
	}
	return ok, all
}

func counts(h *History, r *Request) bool {
	return !h.Settled.IsZero() && !r.Sent.Before(h.Settled) && r.Canceled.IsZero()
}
