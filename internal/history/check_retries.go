package history

import (
	"slices"
	"time"
)

// fewAttempts is I5: no leg is dialed or dispatched more often than the cap says,
// and no forwarder repeats more than its budget allows.
func fewAttempts(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		r := &v.Requests[i]
		legs := map[string]int{}
		for _, rc := range v.receipts[r.ID] {
			legs[rc.Leg]++
		}
		for _, t := range r.Tries {
			legs[t.Leg]++
		}
		for leg, n := range legs {
			if n > v.limits.Attempts {
				broken("%s: %d %s attempts", r.ID, n, leg)
			}
		}
	}
	byForwarder := map[string][]*Request{}
	for i := range v.Requests {
		if w := v.Requests[i].forwarder(); w != "" {
			byForwarder[w] = append(byForwarder[w], &v.Requests[i])
		}
	}
	for worker, own := range byForwarder {
		v.withinBudget(worker, own, broken)
	}
}

// withinBudget compares what a forwarder has certainly repeated within some window
// with the most that it may have been allowed: of a request whose receipt is not
// known it may be the one that was given it.
func (v *view) withinBudget(worker string, own []*Request, broken func(string, ...any)) {
	slices.SortFunc(own, func(a, b *Request) int { return a.Sent.Compare(b.Sent) })
	const slot = 500 * time.Millisecond // forwarders count in such steps
	window := v.limits.RetryTime
	for _, first := range own {
		from, to := first.Sent, first.Sent.Add(window-slot)
		repeated, offered := 0, 0
		for _, r := range own {
			if !r.Sent.Before(from) && !r.End.After(to) {
				repeated += r.repetitions()
			}
		}
		for i := range v.Requests {
			r := &v.Requests[i]
			if f := r.forwarder(); (f == worker || f == "") && r.Sent.Before(to) && r.End.After(from.Add(-slot)) {
				offered++
			}
		}
		if allowed := v.limits.RetryShare*float64(offered) + v.limits.RetryFloor*window.Seconds(); float64(repeated) > allowed {
			broken("the forwarder beside %s repeated %d times within %v from %s, at most %d requests and so %.1f repetitions",
				worker, repeated, window-slot, from.Format(time.StampMilli), offered, allowed)
			return
		}
	}
}

// repetitions returns how often the request has certainly taken something out of
// the retry budget: both legs of a pair are repeated for one, and what finds no way
// to a worker takes nothing.
func (r *Request) repetitions() int {
	most := 0
	for _, leg := range [...]string{"m", "p", "d"} {
		tries, free := 0, 0
		for _, t := range r.Tries {
			if t.Leg != leg {
				continue
			}
			tries++
			if t.Why == "busy" || t.Why == "unusable" || t.Why == "blameless" {
				free++
			}
		}
		most = max(most, tries-1-free)
	}
	return most
}
