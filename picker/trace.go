package picker

import (
	"slices"
	"time"

	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/scorer"
)

// trace is all that one pick looked at and what came of it: enough to compute
// every cost again. The ring keeps the last ones: a pick works in the memory of the
// oldest.
type trace struct {
	at        time.Time
	id        []byte
	pool      *pool
	rows      []*row
	policy    *policy
	weights   weights
	retention Retention
	tokens    int     // as the request said
	total     float64 // in full blocks; what Hit and Miss add up to
	approx    bool
	byLoad    bool
	role      fleet.Role // of the leg; Mixed for none
	receives  bool       // the prompt's KV cache comes from a partner
	partner   string     // key of the pair's other leg

	in       scorer.Input
	source   []RateSource // of column Pace
	promised []int        // tokens predicted there but, for fairness, not counted
	size     []int        // block sizes
	mode     []kvindex.Mode
	why      []exclusion

	shadow  shade
	chosen  int // -1 for none
	overCap bool
	pinned  int // 1 + the row that the conversation is bound to; 0 for none
	allOpen bool
	reason  string
	err     error
}

// begin empties t for a pick among rows.
func (t *trace) begin(now time.Time, req *Request, pol, second *policy, pl *pool, rows []*row, w weights) {
	n := len(rows)
	t.at, t.id = now, append(t.id[:0], req.ID[:min(len(req.ID), maxID)]...)
	t.policy, t.pool, t.rows, t.weights = pol, pl, rows, w
	t.retention, t.tokens, t.approx, t.byLoad = req.Retention, req.Tokens, req.Approx, req.ByLoad
	t.role, t.receives, t.partner = fleet.Mixed, false, ""
	t.total = 0
	t.shadow = shade{policy: second, chosen: -1}
	reads := pol.reads
	if second != nil {
		reads |= second.reads | scorer.Timed // what the two choices differ by is told in time
	}
	t.in.Resize(n, reads)
	t.source = slices.Grow(t.source[:0], n)[:n]
	t.promised = slices.Grow(t.promised[:0], n)[:n]
	t.size = slices.Grow(t.size[:0], n)[:n]
	t.mode = slices.Grow(t.mode[:0], n)[:n]
	t.why = slices.Grow(t.why[:0], n)[:n]
	clear(t.why)
	t.pinned, t.overCap = 0, false
	t.chosen, t.allOpen, t.reason, t.err = -1, false, req.Reason, nil
}

// copyFrom makes t a copy of src in t's own memory.
func (t *trace) copyFrom(src *trace) {
	id, in, promised, size, mode, why, source := t.id, t.in, t.promised, t.size, t.mode, t.why, t.source
	*t = *src
	t.id = append(id[:0], src.id...)
	in.CopyFrom(&src.in)
	t.in = in
	t.promised = append(promised[:0], src.promised...)
	t.size = append(size[:0], src.size...)
	t.mode = append(mode[:0], src.mode...)
	t.why = append(why[:0], src.why...)
	t.source = append(source[:0], src.source...)
}

// price returns what every row costs by a policy, in cost's memory.
func (t *trace) price(pol *policy, cost []float64) []float64 {
	n := t.in.Len()
	cost = slices.Grow(cost[:0], n)[:n]
	clear(cost)
	for i := range pol.terms {
		t.term(&pol.terms[i], cost)
	}
	return cost
}

// term adds a term of a policy to cost.
func (t *trace) term(term *term, cost []float64) {
	if w := term.weight(&t.weights); w != 0 {
		term.score(&t.in, w, cost)
	}
}

// ring keeps the last traces. The picker's mutex guards it.
type ring struct {
	slots []trace
	next  int // where the next one goes
	held  int
}

// keep takes t's content and gives it the memory of the oldest.
func (r *ring) keep(t *trace) {
	if len(r.slots) == 0 {
		return
	}
	r.slots[r.next], *t = *t, r.slots[r.next]
	r.next = (r.next + 1) % len(r.slots)
	r.held = min(r.held+1, len(r.slots))
}

// refused keeps a pick that found no worker.
func (r *ring) refused(t *trace, err error) {
	t.err = err
	t.blank()
	r.keep(t)
}

// blank zeroes the columns of a pick that ended before they were filled.
func (t *trace) blank() {
	t.in.Clear()
	clear(t.promised)
	clear(t.size)
	clear(t.mode)
	clear(t.source)
}
