//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

// Events are applied in pieces, so that no one waits for the writer's lock longer
// than a few hundred blocks take.
const (
	storePiece  = 256
	removePiece = 1024
)

// applier is the memory that applying a batch needs.
type applier struct {
	hashes []Hash
	drops  []uint32
}

// apply makes one event part of a target's view. Holders of t.feed only.
func (x *Index) apply(t *target, e *Event, a *applier) {
	switch e.Kind {
	case Stored:
		x.applyStored(t, e, a)
	case Removed:
		t.counts.removed.Add(1)
		for hs := e.Hashes; len(hs) > 0; {
			n := min(len(hs), removePiece)
			x.remove(t, hs[:n], e.tier())
			hs = hs[n:]
		}
	case Cleared:
		t.counts.cleared.Add(1)
		x.sweep(t)
		t.partial.Store(false)
		t.resync.Store(false)
	default:
		x.counts.skipped[skipKind].Add(1)
	}
}

func (x *Index) applyStored(t *target, e *Event, a *applier) {
	if e.BlockSize < 1 {
		x.counts.skipped[skipBlockSize].Add(1)
		return
	}
	if len(e.Tokens)/e.BlockSize != len(e.Hashes) {
		x.counts.skipped[skipHashCount].Add(1)
		return
	}
	t.counts.stored.Add(1)
	if known := t.blockSize.Load(); known != int64(e.BlockSize) {
		if known != 0 {
			t.counts.blockSizes.Add(1)
			x.reset(t, ResetBlockSize)
		}
		t.blockSize.Store(int64(e.BlockSize))
	}
	seed := e.Extra
	if e.HasParent {
		ref, ok := t.engine.get(e.Parent)
		if !ok {
			t.counts.orphans.Add(1)
			t.partial.Store(true)
			if !t.seq.replayed {
				t.resync.Store(true)
			}
			return
		}
		seed = *x.tree.arena.word(ref) // held by t, so it stays while t.feed is locked
	}
	a.hashes = HashTokens(a.hashes[:0], seed, e.Tokens, e.BlockSize)
	parent, hasParent := e.Parent, e.HasParent
	for hs, eng := a.hashes, e.Hashes; len(hs) > 0; {
		n := min(len(hs), storePiece)
		x.store(t, parent, hasParent, hs[:n], eng[:n], e.tier(), a)
		parent, hasParent = eng[n-1], true
		hs, eng = hs[n:], eng[n:]
	}
}

// store adds blocks that follow the block of an engine hash, or start a prompt.
func (x *Index) store(t *target, parent uint64, hasParent bool, hs []Hash, eng []uint64, tier Tier, a *applier) {
	x.mu.Lock()
	defer x.mu.Unlock()
	tr := &x.tree
	var at cursor
	if hasParent {
		if ref, ok := t.engine.get(parent); ok {
			id, off := tr.runAt(ref)
			at = cursor{run: id, off: off + 1}
		}
	}
	a.drops = a.drops[:0]
	fresh := 0
	for len(hs) > 0 {
		id, off, m := tr.place(at, hs)
		before, added := tr.hold(id, t.exactHolding(), off, m)
		fresh += added
		ref := baseOf(tr.run(id).w0.Load()) + uint32(off)
		a.drops = t.link(ref, off, eng[:m], tier, &before, a.drops)
		at = cursor{run: id, off: off + m}
		hs, eng = hs[m:], eng[m:]
	}
	t.blocks.Add(int64(fresh))
	// Only now: dropping at once could free the run that is being built.
	for _, ref := range a.drops {
		x.release(t, ref)
	}
	tr.collect()
}

// link makes engine hashes name the blocks from ref on, and appends to drops the
// refs that they named before.
func (t *target) link(ref uint32, off int, eng []uint64, tier Tier, before *heldState, drops []uint32) []uint32 {
	for i, e := range eng {
		to := ref + uint32(i)
		old, existed := t.engine.put(e, to)
		if tier != Device || t.tiers != nil {
			t.addTier(e, tier, existed)
		}
		if existed && old == to {
			continue
		}
		if existed {
			drops = append(drops, old)
		}
		if before.has(off + i) {
			if t.extra == nil {
				t.extra = map[uint32]uint32{}
			}
			t.extra[to]++
			t.counts.extra.Store(int64(len(t.extra)))
		}
	}
	return drops
}

// addTier notes that an engine hash is on one more tier.
func (t *target) addTier(e uint64, tier Tier, existed bool) {
	set := tier
	if existed {
		set |= t.tierOf(e)
	}
	t.setTier(e, set)
}

func (t *target) tierOf(e uint64) Tier {
	if set, ok := t.tiers[e]; ok {
		return set
	}
	return Device
}

func (t *target) setTier(e uint64, set Tier) {
	if set == Device || set == 0 {
		delete(t.tiers, e)
		if len(t.tiers) == 0 {
			t.tiers = nil
		}
	} else {
		if t.tiers == nil {
			t.tiers = map[uint64]Tier{}
		}
		t.tiers[e] = set
	}
	t.counts.tiered.Store(int64(len(t.tiers)))
}

// remove takes engine hashes off a tier, and those that are then on none out of
// the view.
func (x *Index) remove(t *target, eng []uint64, tier Tier) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range eng {
		if (tier != Device || t.tiers != nil) && !t.leaveTier(e, tier) {
			continue
		}
		if ref, ok := t.engine.del(e); ok {
			x.release(t, ref)
		}
	}
	x.tree.collect()
}

// leaveTier reports whether an engine hash is on no tier any more.
func (t *target) leaveTier(e uint64, tier Tier) bool {
	if _, ok := t.engine.get(e); !ok {
		return false
	}
	set := t.tierOf(e)
	if left := set &^ tier; left != 0 {
		if left != set {
			t.setTier(e, left)
		}
		return false
	}
	t.setTier(e, 0)
	return true
}

// release takes back one engine hash's hold on a block.
func (x *Index) release(t *target, ref uint32) {
	if t.extra != nil {
		if n := t.extra[ref]; n > 0 {
			t.dropExtra(ref, n-1)
			return
		}
	}
	id, off := x.tree.runAt(ref)
	if t.predicted.Load() > 0 {
		x.cut(t, id, off) // first: it may be all else that keeps the run
	}
	if x.tree.unhold(id, t.exactHolding(), off) {
		t.blocks.Add(-1)
	}
}

func (t *target) dropExtra(ref, n uint32) {
	if n == 0 {
		delete(t.extra, ref)
	} else {
		t.extra[ref] = n
	}
	if len(t.extra) == 0 {
		t.extra = nil
	}
	t.counts.extra.Store(int64(len(t.extra)))
}

// sweepPiece is how many buckets of an engine map are swept under one lock.
const sweepPiece = 512

// sweep empties a target's views. Holders of t.feed only.
func (x *Index) sweep(t *target) {
	old := t.engine.buckets
	for len(old) > 0 {
		n := min(len(old), sweepPiece)
		x.sweepBuckets(t, old[:n])
		old = old[n:]
	}
	t.engine, t.extra, t.tiers = engineMap{}, nil, nil
	t.counts.extra.Store(0)
	t.counts.tiered.Store(0)
	t.blocks.Store(0)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropPredictions(t)
	x.tree.collect()
}

// sweepBuckets drops the target's holding of each run that the buckets name. A
// run of which an earlier bucket dropped the last holding may be another one by
// now, in which the target holds nothing: that is no harm.
func (x *Index) sweepBuckets(t *target, buckets []bucket) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := uint32(0)
	for i := range buckets {
		b := &buckets[i]
		for _, ref := range b.refs[:b.n] {
			id := x.tree.arena.owner[ref/groupWords]
			if id != last && id&freeTag == 0 && id != 0 {
				x.tree.drop(id, t.exactHolding())
			}
			last = id
		}
	}
	x.tree.collect()
}
