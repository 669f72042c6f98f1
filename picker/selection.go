package picker

import (
	"fmt"
	"math"
	"slices"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
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

// selection is the memory a pick works in: the trace, which an explain record
// copies, and what only the pick needs.
type selection struct {
	trace
	tab     *table
	lists   []kvindex.Blocks // what the pick knows of the prompt; nil without
	steer   bool             // the policy goes by the cache
	tell    bool             // what the pick sends is news for the index
	second  *policy          // the shadow; nil for none
	latency *Latency
	turns   *uint64 // picks so far
	scratch []kvindex.Scratch
	caps    *Caps
	left    int     // eligible rows
	pending float64 // requests without first token on them
	anyHit  bool
	anyMode bool
	cost    []float64
	other   []float64 // the shadow's
	ties    []int32
	marks   []uint32 // by row.n
	stamp   uint32
}

// begin prepares s for the given candidates, all of them eligible.
func (s *selection) begin(now time.Time, req *Request, pol *policy, tab *table, pl *pool, rows []*row, w weights) {
	s.trace.begin(now, req, pol, s.second, pl, rows, w)
	s.tab = tab
	s.lists = req.Blocks
	if req.ByLoad || len(s.lists) > 0 && s.lists[0].Size <= 0 {
		s.lists = nil
	}
	s.steer = (s.policy.cache || s.shadow.cache()) && !req.ByLoad
	// The engine hashes images into its blocks; the router cannot.
	s.tell = s.steer && !req.Multimodal
	s.left = len(rows)
	s.pending = 0
	if len(s.marks) < len(tab.rows) {
		s.marks, s.stamp = make([]uint32, len(tab.rows)), 0
	}
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

// fill looks the prompt up and writes every column.
func (s *selection) fill(req *Request, index *kvindex.Index, scale float64) {
	s.lookup(index)
	in := &s.in
	in.Unit = s.pool.unit
	if in.Prompt = max(s.total, float64(req.Tokens)); in.Prompt == 0 {
		in.Prompt = in.Unit
	}
	faint := faintest * in.Unit
	timed := len(in.Queue) > 0
	var fleet evidence
	var said answers
	for i, r := range s.rows {
		t := r.t
		in.Out[i] = s.why[i] != eligible
		if !in.Out[i] {
			s.pending += float64(t.pending) + t.external.now.Waiting
		}
		s.anyMode = s.anyMode || t.mode != kvindex.None
		recent := t.recent * scale
		if recent < faint {
			recent = 0
		}
		others := &t.external.now
		in.Active[i] = float64(t.active()) + others.ActiveTokens
		in.Recent[i] = recent
		in.Turn[i] = float64(t.turn)
		in.Requests[i] = float64(t.requests) + others.Requests
		in.Waiting[i] = float64(t.waiting) + others.PrefillTokens
		in.Decoders[i] = float64(t.requests-t.pending+t.past) + others.Decoders
		in.Context[i] = float64(t.context+t.pastTokens) + others.ContextTokens
		in.Missing[i] = 0
		if len(req.Images) > 0 {
			in.Missing[i] = float64(t.images.missing(req.Images))
		}
		s.size[i], s.mode[i] = t.size, t.mode
		if timed {
			fleet.add(t)
			said.add(&t.answers)
		}
	}
	limit := math.MaxInt
	if s.policy.fair || s.shadow.fair() {
		limit = s.herd()
	}
	now := s.at.UnixNano()
	if timed {
		in.FleetPace, in.Answer = s.latency.fleetPace(fleet), s.latency.answer(said)
	}
	for i, r := range s.rows {
		s.overlap(i, r.t, limit)
		if timed {
			s.fillTimed(i, r.t, now)
		}
	}
	if len(in.Draw) > 0 {
		s.fillCompared(index)
	}
}

// faintest is the recent charge, in blocks, that counts as none (Infera
// kv_event_aware.py drops values below 1e-3).
const faintest = 1e-3

func (s *selection) lookup(index *kvindex.Index) {
	s.total, s.anyHit, s.anyMode = 0, false, false
	if len(s.scratch) < len(s.lists) {
		s.scratch = append(s.scratch, make([]kvindex.Scratch, len(s.lists)-len(s.scratch))...)
	}
	for j := range s.lists {
		b := &s.lists[j]
		s.total = max(s.total, float64(len(b.Hashes)*b.Size))
		if s.steer && len(b.Hashes) > 0 {
			index.Lookup(b.Hashes, &s.scratch[j])
		}
	}
}

// herdFloor is how many requests without a first token may always gather on a
// target; see herd.
const herdFloor = 4

// herd returns the number of pending requests from which a target's promises do
// not count as hits.
//
// A burst of requests with one new prefix must go together, yet not all to one
// worker: the first pick predicts the prefix there, and at a high overlap weight
// no load would ever outweigh it. So a hit that is only promised by requests
// which have no first token themselves counts while the target has fewer of
// these than the mean.
func (s *selection) herd() int {
	return max(herdFloor, int(math.Ceil(s.pending/float64(max(1, s.left)))))
}

// overlap writes the columns Hit and Miss of row i. A worker whose block size is
// unknown misses everything; it is not free (Infera defect P2).
func (s *selection) overlap(i int, t *target, limit int) {
	hit, size := 0, 0
	s.promised[i] = 0
	if j := listFor(s.lists, s.approx, t.size); s.steer && j >= 0 && len(s.lists[j].Hashes) > 0 {
		size = s.lists[j].Size
		depth := s.scratch[j].Depth(t.in)
		hit = depth
		if depth > 0 && t.pending+int(t.external.now.Waiting) >= limit {
			hit = s.real(j, t, depth)
			s.promised[i] = (depth - hit) * size
		}
		s.anyHit = s.anyHit || depth > 0 && s.why[i] == eligible
	}
	s.in.Hit[i] = float64(hit * size)
	s.in.Miss[i] = s.total - float64(hit*size)
}

// real returns how many of the depth leading blocks of list j that t is believed
// to hold are more than promised.
func (s *selection) real(j int, t *target, depth int) int {
	if t.pending == 0 || depth == 0 {
		return depth
	}
	return max(t.led.real(s.lists[j].Hashes, depth), s.scratch[j].ExactDepth(t.in))
}

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

// weightOf returns the configured overlap weight of a leg.
func (c *Config) weightOf(role fleet.Role) float64 {
	switch {
	case role == fleet.Prefill && c.PrefillWeight != nil:
		return *c.PrefillWeight
	case role == fleet.Decode && c.DecodeWeight != nil:
		return *c.DecodeWeight
	}
	return c.OverlapWeight
}
