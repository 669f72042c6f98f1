package picker

import (
	"math"
	"slices"
	"time"

	"pointsman/breaker"
)

// price adds up the terms of the policy.
func (s *selection) price() {
	s.cost = s.trace.price(s.policy, s.cost)
}

// tieTolerance is the relative difference below which costs are equal: more than
// the rounding of sums of tokens, less than any difference that is meant.
const tieTolerance = 1e-9

// choose returns the eligible row to take, with left > 0. Unless the policy has its
// own rule, of equal costs a candidate that holds part of the prompt wins, unless it
// has more in flight than one that holds nothing (contract, infera.md §14.3); then the
// lower load; what is still equal is spread by spin.
func (s *selection) choose(spin func(n int) int) int {
	if s.pinned > 0 {
		return s.pinned - 1
	}
	if s.allOpen {
		return s.leastRecentlyFailed()
	}
	return s.cheapest(s.policy, s.cost, spin)
}

// cheapest returns the eligible row that a policy takes at the given costs.
func (s *selection) cheapest(pol *policy, cost []float64, spin func(n int) int) int {
	slack := 0.0
	if pol.ties == fewest {
		slack = s.latency.Slack
	}
	s.tied(cost, slack)
	if len(s.ties) > 1 {
		switch pol.ties {
		case warmThenIdle:
			if pol.cache {
				s.preferWarm()
			}
			s.preferIdle(pol)
		case fewest:
			s.preferFewest()
		case anyOfThem:
		}
	}
	if len(s.ties) == 1 {
		return int(s.ties[0])
	}
	return int(s.ties[spin(len(s.ties))])
}

// leastRecentlyFailed returns the eligible row to take when none can be trusted:
// whichever fails fastest has the least load, so load is no guide. One request at
// a time goes to each worker, to the one first that failed longest ago; when each
// has one, to the one with the fewest (failover §2A, all-open).
func (s *selection) leastRecentlyFailed() int {
	best := -1
	var least int
	var oldest time.Time
	for i, r := range s.rows {
		if s.why[i] != eligible {
			continue
		}
		n, at := r.t.host.risky, r.t.circuit.FailedAt()
		if r.t.circuit.Closed() { // unhealthy: it never failed a request
			n = r.t.host.requests
		}
		switch {
		case best < 0, n < least, n == least && at.Before(oldest),
			n == least && at.Equal(oldest) && s.in.Turn[i] < s.in.Turn[best]:
			best, least, oldest = i, n, at
		}
	}
	return best
}

// tied sets ties to the eligible rows whose cost is the lowest, or above it by the
// given share at most.
func (s *selection) tied(cost []float64, slack float64) {
	low := math.Inf(1)
	for i, c := range cost {
		if c < low && s.why[i] == eligible {
			low = c
		}
	}
	low *= 1 + slack
	low += tolerance(low)
	s.ties = s.ties[:0]
	for i, c := range cost {
		if c <= low && s.why[i] == eligible {
			s.ties = append(s.ties, int32(i))
		}
	}
}

func tolerance(v float64) float64 { return tieTolerance * max(1, math.Abs(v)) }

func (s *selection) preferWarm() {
	if !s.anyHit {
		return
	}
	in := &s.in
	cold := math.Inf(1)
	for _, i := range s.ties {
		if in.Hit[i] == 0 {
			cold = min(cold, in.Active[i])
		}
	}
	warm := func(i int32) bool { return in.Hit[i] > 0 && in.Active[i] <= cold }
	if slices.ContainsFunc(s.ties, warm) {
		s.ties = slices.DeleteFunc(s.ties, func(i int32) bool { return !warm(i) })
	}
}

// preferFewest keeps the rows with the fewest requests in flight.
func (s *selection) preferFewest() {
	in := &s.in
	low := math.Inf(1)
	for _, i := range s.ties {
		low = min(low, in.Requests[i])
	}
	s.ties = slices.DeleteFunc(s.ties, func(i int32) bool { return in.Requests[i] > low })
}

// preferIdle keeps the rows with the least load. What a pick has charged its worker is
// load to policies that go by the cache only.
func (s *selection) preferIdle(pol *policy) {
	in := &s.in
	load := func(i int32) float64 {
		if pol.cache {
			return in.Active[i] + in.Recent[i]
		}
		return in.Active[i]
	}
	low := math.Inf(1)
	for _, i := range s.ties {
		low = min(low, load(i))
	}
	low += tolerance(low)
	s.ties = slices.DeleteFunc(s.ties, func(i int32) bool { return load(i) > low })
}

// acquire chooses until the chosen row's circuit lends a permit: between the
// filter and here another request may have taken the probe.
func (s *selection) acquire(now time.Time, spin func(n int) int) (int, breaker.Permit) {
	for {
		i := s.choose(spin)
		circuit := s.rows[i].t.circuit
		if s.allOpen {
			return i, circuit.Force(now)
		}
		if permit, ok := circuit.Acquire(now); ok {
			return i, permit
		}
		s.pinned = 0
		if s.exclude(i, opened); s.left == 0 {
			s.readmit(now, opened)
		}
		if s.left == 0 { // it was at its cap
			s.why[i] = eligible
			return i, circuit.Force(now)
		}
	}
}
