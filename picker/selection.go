package picker

import (
	"math"
	"time"

	"pointsman/fleet"
	"pointsman/kvindex"
)

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
	trails  *trails // what other replicas have sent where
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
	s.trails.begin()
	if len(s.scratch) < len(s.lists) {
		s.scratch = append(s.scratch, make([]kvindex.Scratch, len(s.lists)-len(s.scratch))...)
	}
	for j := range s.lists {
		b := &s.lists[j]
		s.total = max(s.total, float64(len(b.Hashes)*b.Size))
		if s.steer && len(b.Hashes) > 0 {
			index.Lookup(b.Hashes, &s.scratch[j])
			s.trails.find(b)
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
		depth := max(s.scratch[j].Depth(t.in), s.trails.depth(t, size))
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
// to hold are more than promised. What other replicas have sent is no more.
func (s *selection) real(j int, t *target, depth int) int {
	depth = min(depth, s.scratch[j].Depth(t.in))
	if t.pending == 0 || depth == 0 {
		return depth
	}
	return max(t.led.real(s.lists[j].Hashes, depth), s.scratch[j].ExactDepth(t.in))
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
