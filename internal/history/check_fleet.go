package history

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

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

// abortsArrive is I10: an attempt that nobody waits for any more ends, unless its
// worker is out of reach. Nobody waits behind the request's end, nor once the next
// attempt of the leg has come.
func abortsArrive(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		r := &v.Requests[i]
		for _, rc := range v.receipts[r.ID] {
			until := r.End
			for _, next := range v.receipts[r.ID] {
				if next.Leg == rc.Leg && next.Received.After(rc.Received) && next.Received.Before(until) {
					until = next.Received
				}
			}
			switch {
			case rc.Lost || rc.Complete:
			case rc.Ended.IsZero():
				broken("%s: attempt %s at %s never ended", rc.Request, rc.Attempt, rc.Worker)
			case rc.Ended.Sub(until) > v.limits.Abort && !v.disturbed(rc.Worker, rc.Received, rc.Ended):
				broken("%s: attempt %s at %s ended %v after it was given up", rc.Request, rc.Attempt, rc.Worker, rc.Ended.Sub(until))
			}
		}
	}
}

// success is I12: when everything has been healed and has had time to settle,
// requests succeed, those of each model.
func success(v *view, broken func(string, ...any)) {
	models := map[string]bool{}
	for _, w := range v.Workers {
		models[w.Model] = true
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		ok, all := 0, 0
		var worst []string
		for i := range v.Requests {
			r := &v.Requests[i]
			if r.Model != model || !counts(v.History, r) {
				continue
			}
			if all++; r.OK() {
				ok++
			} else {
				worst = append(worst, r.ID+" "+cmp.Or(r.Code, "no code"))
			}
		}
		if float64(ok) < v.limits.Success*float64(all) {
			broken("%s: %d of %d requests succeeded after the fleet had settled: %s", model, ok, all, strings.Join(worst[:min(5, len(worst))], ", "))
		}
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
