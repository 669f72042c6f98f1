//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"slices"
	"sync/atomic"
)

// Scratch is one reader's memory: where a lookup leaves its result. The zero
// value is ready to use. It is not safe for concurrent use; keep one per request
// goroutine, or pool them.
type Scratch struct {
	owner  *Index
	ticket *ticket
	table  []*target // the targets at the last lookup
	stamp  uint64    // number of the last lookup, in the upper half
	depth  []uint64  // by holding: the stamp of the lookup that wrote it | its depth
}

// Depth returns how many leading blocks of the last lookup's prompt a target
// holds: the larger of what its events say and what is predicted of it. It is 0
// for an instance that is not known, and before any lookup.
func (s *Scratch) Depth(in Instance) int {
	i := in.slot()
	if i >= len(s.table) || s.table[i] == nil || s.table[i].in != in {
		return 0
	}
	return max(s.of(2*i), s.of(2*i+1))
}

// ExactDepth returns the part of [Scratch.Depth] that events alone account for.
func (s *Scratch) ExactDepth(in Instance) int {
	i := in.slot()
	if i >= len(s.table) || s.table[i] == nil || s.table[i].in != in {
		return 0
	}
	return s.of(2 * i)
}

func (s *Scratch) of(holding int) int {
	if d := s.depth[holding]; d&^0xffffffff == s.stamp {
		return int(uint32(d))
	}
	return 0
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
	if s.stamp += 1 << 32; s.stamp == 0 {
		clear(s.depth)
		s.stamp = 1 << 32
	}
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
	depth, reached, most := s.depth, s.stamp|uint64(pos), 0
	for i := range recs {
		rec := record(atomic.LoadUint64(&recs[i]))
		h := int(rec.holding())
		if h >= len(depth) || pos > 0 && depth[h] != reached {
			continue // empty, younger than this lookup, or a gap before this run
		}
		d := min(rec.depth(), m)
		depth[h] = reached + uint64(d)
		most = max(most, d)
	}
	return most == m && m > 0
}
