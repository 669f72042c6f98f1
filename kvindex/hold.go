//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import "sync/atomic"

// findRecord returns the holding's record in recs and its place, -1 for none.
func findRecord(recs []uint64, holding uint32) (int, record) {
	for i := range recs {
		if rec := record(recs[i]); uint32(rec>>42) == holding+1 {
			return i, rec
		}
	}
	return -1, 0
}

// addRecord stores a record for a holding that has none in the run.
func (t *tree) addRecord(id uint32, r *run, rec record) {
	t.side[id].live++
	w1 := r.w1.Load()
	recs := t.records(r)
	for i := range recs {
		if recs[i] == 0 {
			atomic.StoreUint64(&recs[i], uint64(rec))
			return
		}
	}
	used, log := usedOf(w1), logOf(w1)
	switch {
	case log == 0 && used < inlineHolders:
		atomic.StoreUint64(&r.inline[used], uint64(rec))
		r.w1.Store(makeW1(0, used+1, 0))
	case log != 0 && used < 1<<log:
		atomic.StoreUint64(&t.holders.block(baseOf(w1), used+1)[used], uint64(rec))
		r.w1.Store(makeW1(baseOf(w1), used+1, log))
	default:
		next := max(minHolderLog, log+1)
		base := t.holders.alloc(next)
		block := t.holders.block(base, used+1)
		for i, w := range recs {
			atomic.StoreUint64(&block[i], w)
		}
		atomic.StoreUint64(&block[used], uint64(rec))
		r.w1.Store(makeW1(base, used+1, next))
		if log != 0 {
			t.retire(retiredHolders, baseOf(w1), uint32(log))
		}
	}
}

// hold makes an exact holding hold the blocks [off, off+m) of a run, and reports
// how many of them it did not hold before. The state before is returned for
// heldBefore.
func (t *tree) hold(id, holding uint32, off, m int) (before heldState, fresh int) {
	r := t.run(id)
	recs := t.records(r)
	n := lenOf(r.w0.Load())
	i, rec := findRecord(recs, holding)
	to := off + m
	if i < 0 {
		t.addFresh(id, r, holding, off, to, n)
		return before, m
	}
	before.depth = rec.depth()
	ext := rec.ext()
	if ext == 0 && off <= rec.depth() {
		if to <= rec.depth() {
			return before, 0
		}
		atomic.StoreUint64(&recs[i], uint64(makeRecord(holding, to, 0)))
		if to == n {
			t.side[id].tail++
		}
		return before, to - rec.depth()
	}
	if ext == 0 {
		ext = t.holes.alloc()
		t.holes.all[ext].set(0, rec.depth())
	}
	b := &t.holes.all[ext]
	before.holes, before.bits = true, *b
	had, end := b.count(), b.end()
	b.set(off, to)
	if to == n && end < n {
		t.side[id].tail++
	}
	fresh = b.count() - had
	atomic.StoreUint64(&recs[i], uint64(t.settle(holding, ext)))
	return before, fresh
}

// addFresh adds the record of a holding that held nothing of the run.
func (t *tree) addFresh(id uint32, r *run, holding uint32, off, to, n int) {
	rec := makeRecord(holding, to, 0)
	if off > 0 {
		ext := t.holes.alloc()
		t.holes.all[ext].set(off, to)
		rec = makeRecord(holding, 0, ext)
	}
	t.addRecord(id, r, rec)
	if to == n {
		t.side[id].tail++
	}
}

// settle returns the record of a bitmap, without it when it has no hole.
func (t *tree) settle(holding, ext uint32) record {
	b := &t.holes.all[ext]
	depth := b.depth()
	if depth != b.end() {
		return makeRecord(holding, depth, ext)
	}
	t.holes.release(ext)
	if depth == 0 {
		return 0
	}
	return makeRecord(holding, depth, 0)
}

// heldState is what a holding held of a run before [tree.hold].
type heldState struct {
	depth int
	holes bool
	bits  bitmap
}

func (s *heldState) has(off int) bool {
	if s.holes {
		return s.bits.has(off)
	}
	return off < s.depth
}

// unhold makes an exact holding let go of one block of a run.
func (t *tree) unhold(id, holding uint32, off int) (held bool) {
	r := t.run(id)
	recs := t.records(r)
	i, rec := findRecord(recs, holding)
	if i < 0 {
		return false
	}
	n := lenOf(r.w0.Load())
	covered := t.end(rec) == n
	ext := rec.ext()
	switch {
	case ext == 0 && off >= rec.depth():
		return false
	case ext == 0 && off == rec.depth()-1:
		rec = 0
		if off > 0 {
			rec = makeRecord(holding, off, 0)
		}
	default:
		if ext == 0 {
			ext = t.holes.alloc()
			t.holes.all[ext].set(0, rec.depth())
		}
		b := &t.holes.all[ext]
		if !b.has(off) {
			return false
		}
		b.clear(off)
		rec = t.settle(holding, ext)
	}
	t.setRecord(id, recs, i, rec, covered)
	return true
}

// setRecord stores a record that holds less than before, and trims or frees the
// run when that was the last to hold its end or anything. covered says whether
// the record held the run's last block before.
func (t *tree) setRecord(id uint32, recs []uint64, i int, rec record, covered bool) {
	atomic.StoreUint64(&recs[i], uint64(rec))
	s := &t.side[id]
	if covered && (rec.empty() || t.end(rec) < lenOf(t.run(id).w0.Load())) {
		s.tail--
	}
	if rec.empty() {
		s.live--
	}
	switch {
	case s.live == 0:
		t.freeRun(id)
	case s.tail == 0:
		t.trim(id)
	}
}

// drop makes an exact holding let go of a whole run, if it has any of it.
func (t *tree) drop(id, holding uint32) {
	r := t.run(id)
	recs := t.records(r)
	i, rec := findRecord(recs, holding)
	if i < 0 {
		return
	}
	covered := t.end(rec) == lenOf(r.w0.Load())
	if ext := rec.ext(); ext != 0 {
		t.holes.release(ext)
	}
	t.setRecord(id, recs, i, 0, covered)
}
