package picker

import (
	"fmt"
	"slices"
	"time"
)

// exclusion is why a candidate may not be chosen.
type exclusion uint8

const (
	eligible   exclusion = iota
	tried                // failed for this request already
	outside              // not within the gateway's subset
	opened               // its circuit lets nothing through
	inactive             // draining or dead
	otherRole            // one leg of a prefill/decode pair
	otherPeers           // no partner, or another protocol than the chosen pair's
	unhealthy            // the prober says so
	full                 // at its cap
	busy                 // said so a moment ago
	pairOpen             // the circuit of it and its partner lets nothing through
	exclusions           // their number
)

func (e exclusion) String() string {
	return [...]string{"", "tried", "outside_subset", "circuit_open", "not_active", "role", "protocol", "unhealthy", "at_cap", "busy", "pair_open"}[e]
}

// mark starts a new set of marked rows.
func (s *selection) mark() {
	if s.stamp++; s.stamp == 0 {
		clear(s.marks)
		s.stamp = 1
	}
}

func (s *selection) exclude(i int, why exclusion) {
	s.why[i] = why
	s.left--
}

// filter excludes what the request rules out, then what the breaker does. When
// that leaves nothing but open circuits, all of these are eligible again:
// a probably bad worker beats none (seed, Circuit breaker).
func (s *selection) filter(now time.Time, req *Request) error {
	if s.left == 0 {
		return s.nobody()
	}
	if s.within(req); s.left == 0 {
		return fmt.Errorf("%v: %w", s.pool, ErrNoEndpoint)
	}
	if s.skipTried(req); s.left == 0 {
		return fmt.Errorf("%v: %w: all were tried", s.pool, ErrNoWorker)
	}
	return s.judge(now)
}

// within keeps what the gateway's subset allows.
func (s *selection) within(req *Request) {
	if !req.HasSubset && len(req.Subset) == 0 {
		return
	}
	s.mark()
	for _, end := range req.Subset {
		for _, r := range s.tab.ends[end] {
			s.marks[r.n] = s.stamp
		}
	}
	s.keep(outside, true)
}

func (s *selection) skipTried(req *Request) {
	if len(req.Tried) == 0 {
		return
	}
	s.mark()
	for _, id := range req.Tried {
		for _, r := range s.tab.ids[id] {
			s.marks[r.n] = s.stamp
		}
	}
	s.keep(tried, false)
}

// keep excludes the eligible rows whose mark is not as wanted.
func (s *selection) keep(why exclusion, marked bool) {
	for i, r := range s.rows {
		if s.why[i] == eligible && (s.marks[r.n] == s.stamp) != marked {
			s.exclude(i, why)
		}
	}
}

// judge leaves out the workers that seem unable to serve, and takes back the best
// of a bad lot when that leaves none: first those that are only busy, for they
// answer for themselves; then, unless one that works is merely at its cap and
// worth waiting for, those whose circuits are open; last those that the prober
// holds for dead.
func (s *selection) judge(now time.Time) error {
	s.leaveOut(now)
	for _, why := range [...]exclusion{busy, full, opened, unhealthy} {
		if s.left > 0 {
			return nil
		}
		if why == full && slices.Contains(s.why, full) {
			return fmt.Errorf("%v: %w", s.pool, ErrFull)
		}
		s.readmit(now, why)
	}
	if s.left == 0 && slices.Contains(s.why, full) {
		return fmt.Errorf("%v: %w", s.pool, ErrFull)
	}
	return nil
}

// leaveOut excludes the eligible rows that are unhealthy, open, at their cap or
// busy.
func (s *selection) leaveOut(now time.Time) {
	for i, r := range s.rows {
		if s.why[i] != eligible {
			continue
		}
		switch c := r.t.circuit; {
		case r.t.host.sick:
			s.exclude(i, unhealthy)
		case !c.Allows(now):
			s.exclude(i, opened)
		case s.atCap(now, r):
			s.exclude(i, full)
		case c.Busy(now):
			s.exclude(i, busy)
		}
	}
}

func (s *selection) atCap(now time.Time, r *row) bool {
	return s.caps != nil && s.caps.Enforce && s.caps.full(now, r)
}

// readmit makes the rows eligible again that were excluded for the given reason and
// are below their cap.
func (s *selection) readmit(now time.Time, was exclusion) {
	if was == full {
		return
	}
	for i, why := range s.why {
		switch {
		case why != was:
		case s.atCap(now, s.rows[i]):
			s.why[i] = full
		default:
			s.why[i] = eligible
			s.left++
			s.allOpen = s.allOpen || was != busy
		}
	}
}

// nobody says why a known model has no candidate.
func (s *selection) nobody() error {
	pl := s.pool
	if p, d := len(pl.prefill), len(pl.decode); p > 0 || d > 0 {
		return &PairError{Model: pl.model, Prefill: p, Decode: d, Paired: pl.pairs}
	}
	return fmt.Errorf("%v: %w: %d are draining or dead", pl, ErrNoWorker, len(pl.rest))
}
