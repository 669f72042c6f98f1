package picker

import (
	"time"
)

// Told is a prompt that is believed to be in a worker's cache, for another replica of
// the picker to begin with.
type Told struct {
	Worker, Incarnation string
	Rank                int // -1 for a worker without ranks
	Trail               Trail
	Left                time.Duration // for which it is believed
}

// memories is the prompts of this picker's own picks that have had their first token:
// a ring, kept once [Picker.Remember] is called. The picker's mutex guards it.
type memories struct {
	all  []memory // nil for not kept
	next int
}

type memory struct {
	Trail
	t  *target // nil for none
	at time.Time
}

// Remember makes the picker keep the last 4,096 prompts of its own for [Picker.Recall].
func (p *Picker) Remember() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.memories.all == nil {
		p.memories.all = make([]memory, maxTrails)
	}
}

func (s *memories) add(l *leg, now time.Time) {
	if s.all == nil {
		return
	}
	if tr := trailOf(l.node.hashes, l.node.size); tr.N > 0 {
		s.all[s.next] = memory{tr, l.t, now}
		s.next = (s.next + 1) % len(s.all)
	}
}

// Recall returns what this replica has sent to workers of the fleet, and heard of
// others' picks, in the last ten minutes, the oldest first.
func (p *Picker) Recall(now time.Time) (out []Told) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := map[*target]*row{}
	for _, r := range p.sync().rows {
		rows[r.t] = r
	}
	tell := func(t *target, tr *Trail, left time.Duration) {
		if r := rows[t]; r != nil && left > 0 {
			out = append(out, Told{r.Worker.ID, r.Worker.Incarnation, r.Rank, *tr, left})
		}
	}
	for i := range p.trails.all {
		if f := &p.trails.all[(p.trails.next+i)%maxTrails]; f.t != nil && f.ref == (Foreign{}) {
			tell(f.t, &f.Trail, time.Unix(0, f.until).Sub(now))
		}
	}
	for i := range p.memories.all {
		if m := &p.memories.all[(p.memories.next+i)%len(p.memories.all)]; m.t != nil {
			tell(m.t, &m.Trail, presentTTL-now.Sub(m.at))
		}
	}
	return out
}

// Learn takes what another replica recalls. It reports whether that is of use: the
// worker is in the fleet, the same process still, and has blocks of that size.
func (p *Picker) Learn(told *Told, now time.Time) bool {
	tr := &told.Trail
	if tr.N < 1 || tr.N > MaxMarks || tr.Blocks < 1 || tr.Size < 1 || told.Left <= 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.sync().ids[told.Worker] {
		if r.Rank == told.Rank && r.Worker.Incarnation == told.Incarnation && (r.t.size == 0 || r.t.size == tr.Size) {
			at := p.trails.add(foreign{Trail: *tr, t: r.t}, now)
			p.trails.all[at].until = now.Add(min(told.Left, presentTTL)).UnixNano()
			return true
		}
	}
	return false
}
