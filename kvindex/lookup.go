package kvindex

import (
	"slices"
	"sync/atomic"
)

// Scratch is one reader's memory: where a lookup leaves its result. The zero
// value is ready to use. It is not safe for concurrent use; keep one per request
// goroutine, or pool them.
type Scratch struct {
	owner   *Index
	ticket  *ticket
	table   []*target // the targets at the last lookup
	depth   []uint32  // by holding; all zero but those in touched
	touched []uint32
}

// Depth returns how many leading blocks of the last lookup's prompt a target
// holds: the larger of what its events say and what is predicted of it. It is 0
// for an instance that is not known, and before any lookup.
func (s *Scratch) Depth(in Instance) int {
	i := in.slot()
	if i >= len(s.table) || s.table[i] == nil || s.table[i].in != in || 2*i+1 >= len(s.depth) {
		return 0
	}
	return int(max(s.depth[2*i], s.depth[2*i+1]))
}

// ExactDepth returns the part of [Scratch.Depth] that events alone account for.
func (s *Scratch) ExactDepth(in Instance) int {
	i := in.slot()
	if i >= len(s.table) || s.table[i] == nil || s.table[i].in != in || 2*i >= len(s.depth) {
		return 0
	}
	return int(s.depth[2*i])
}

// Lookup fills s with how many leading blocks of a prompt each target holds. It
// takes no lock, and allocates only the first time s is used and after the fleet
// has grown.
func (x *Index) Lookup(hs []Hash, s *Scratch) {
	if s.owner != x {
		s.owner, s.ticket = x, x.tree.readers.join()
	}
	epoch := &s.ticket.slot.epoch
	epoch.Store(x.tree.readers.epoch.Load())
	s.prepare(*x.table.Load())
	if len(hs) > 0 {
		x.tree.walk(hs, s)
	}
	epoch.Store(0)
}

// prepare forgets the last result. It takes the table within the epoch, so that
// no slot of it changes hands before the lookup is over.
func (s *Scratch) prepare(table []*target) {
	for _, h := range s.touched {
		s.depth[h] = 0
	}
	s.touched = s.touched[:0]
	s.table = table
	if need := 2 * len(table); len(s.depth) < need {
		s.depth = slices.Grow(s.depth, need-len(s.depth))[:need]
	}
}

// walk follows a chain through its runs, one hash compare per run.
func (t *tree) walk(hs []Hash, s *Scratch) {
	pos := 0
	for id := t.find(hs[0]); id != 0; id = t.find(hs[pos]) {
		r := t.run(id)
		w0 := r.w0.Load()
		m := match(t.arena.words(baseOf(w0), lenOf(w0)), hs[pos:])
		alive := s.add(t.records(r), pos, m)
		pos += m
		if !alive || pos == len(hs) {
			return
		}
	}
}

// add adds what the records of one run, m blocks of which match from pos on, say.
// It reports whether some holding holds all up to there.
func (s *Scratch) add(recs []uint64, pos, m int) (alive bool) {
	depth := s.depth
	for i := range recs {
		rec := record(atomic.LoadUint64(&recs[i]))
		d := min(rec.depth(), m)
		h := int(rec.holding())
		if d == 0 || h >= len(depth) || int(depth[h]) != pos {
			continue // empty, younger than this lookup, or a gap before this run
		}
		if pos == 0 {
			s.touched = append(s.touched, uint32(h))
		}
		depth[h] = uint32(pos + d)
		alive = alive || d == m
	}
	return alive
}
