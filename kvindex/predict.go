//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"sync/atomic"
	"time"
)

// Predict says that a prompt was sent to a target, whose cache will hold its
// blocks soon: they count as held until now + ttl, or for longer where an earlier
// call said so. A ttl of 0 means Config.PredictedTTL. It is cheap when most of hs
// is known and allocates nothing then. A stale or unknown instance is ignored.
func (x *Index) Predict(in Instance, hs []Hash, now time.Time, ttl time.Duration) {
	if ttl <= 0 {
		ttl = x.cfg.PredictedTTL
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.target(in); t != nil {
		x.predict(t, hs, now.UnixNano(), ttl)
	}
	x.expireSome(now)
}

// Present says that a target has produced a first token for a prompt, so its
// cache holds the prompt's blocks now: they count as held for
// Config.PresentTTL, until an event removes them. This heals what lost events
// would have told. A stale or unknown instance is ignored.
func (x *Index) Present(in Instance, hs []Hash, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.target(in); t != nil {
		x.watchSilence(t, hs, now.UnixNano())
		x.predict(t, hs, now.UnixNano(), x.cfg.PresentTTL)
	}
	x.expireSome(now)
}

// Expire drops all predictions that are over at now. Predict, Present and
// [Feed.Apply] drop a few each, so an index in use needs no call; call it before
// a lookup after idle time. It costs one atomic load when nothing is over.
func (x *Index) Expire(now time.Time) {
	at := now.UnixNano()
	x.tick(at)
	if x.nextDue.Load() > at {
		return
	}
	for x.nextDue.Load() <= at {
		x.mu.Lock()
		x.expire(at, expireBatch)
		x.mu.Unlock()
	}
}

// expireBatch is how many ended guesses are dropped at most under one lock: more
// than a prompt of 60,000 tokens adds.
const expireBatch = 64

func (x *Index) expireSome(now time.Time) {
	x.tick(now.UnixNano())
	x.expire(now.UnixNano(), expireBatch)
}

// tick remembers the time for what has no clock of its own: scrapes.
func (x *Index) tick(now int64) {
	if now > x.clock.Load() {
		x.clock.Store(now)
	}
}

func (x *Index) expire(now int64, limit int) {
	s := &x.tree.guesses
	for range limit {
		g := s.ended(now)
		if g == 0 {
			break
		}
		x.forgetGuess(g)
	}
	x.tree.collect()
	next := int64(never)
	if len(s.heap) > 0 {
		next = s.heap[0].at
	}
	x.nextDue.Store(next)
}

// predict adds guesses for all of hs, which start a prompt.
func (x *Index) predict(t *target, hs []Hash, now int64, ttl time.Duration) {
	until := now + int64(ttl)
	if until > t.guessedTo.Load() {
		t.guessedTo.Store(until)
	}
	var at cursor
	var newer uint32 // beginnings of a chain are used later than its end: that goes first
	for rest := hs; len(rest) > 0; {
		id, off, m := x.tree.place(at, rest)
		newer = x.guess(t, id, off+m, until, newer)
		at = cursor{run: id, off: off + m}
		rest = rest[m:]
	}
	for int(t.predicted.Load()) > x.cfg.PredictedBlocks && t.recent.oldest != 0 {
		x.forgetGuess(t.recent.oldest)
	}
}

// guess makes the first depth blocks of a run predicted until a time, and returns
// the guess that says so.
func (x *Index) guess(t *target, id uint32, depth int, until int64, newer uint32) uint32 {
	tr := &x.tree
	r := tr.run(id)
	recs := tr.records(r)
	i, rec := findRecord(recs, t.predictedHolding())
	s := &tr.guesses
	if i < 0 {
		g := x.newGuess(t, id, depth, until, newer)
		tr.addRecord(id, r, makeRecord(t.predictedHolding(), depth, g))
		if depth == lenOf(r.w0.Load()) {
			tr.side[id].tail++
		}
		t.predicted.Add(int64(depth))
		return g
	}
	// Pass the deeper steps that end earlier; stop at one that says as much.
	prev, g := uint32(0), rec.ext()
	for g != 0 && int(s.all[g].depth) > depth && s.all[g].until < until {
		prev, g = g, s.all[g].next
	}
	switch {
	case g != 0 && int(s.all[g].depth) >= depth && s.all[g].until >= until:
		x.use(t, g, newer)
		return g
	case g != 0 && s.all[g].until <= until: // a step that says less: let it say this
		s.all[g].depth, s.all[g].until = uint16(depth), until
		x.use(t, g, newer)
		for n := s.all[g].next; n != 0 && s.all[n].until <= until; n = s.all[g].next {
			s.all[g].next = s.all[n].next
			x.freeGuess(t, n)
		}
	default:
		shallower := g
		g = x.newGuess(t, id, depth, until, newer)
		s.all[g].next = shallower
		if prev != 0 {
			s.all[prev].next = g
		}
	}
	if prev == 0 {
		x.deepen(t, id, r, &recs[i], rec, depth, g)
	}
	return g
}

// deepen makes step, which is at least as deep as the record, its deepest.
func (x *Index) deepen(t *target, id uint32, r *run, at *uint64, rec record, depth int, step uint32) {
	if old := rec.depth(); depth > old {
		if depth == lenOf(r.w0.Load()) {
			x.tree.side[id].tail++
		}
		t.predicted.Add(int64(depth - old))
	}
	atomic.StoreUint64(at, uint64(makeRecord(rec.holding(), depth, step)))
}

func (x *Index) newGuess(t *target, id uint32, depth int, until int64, newer uint32) uint32 {
	s := &x.tree.guesses
	g := s.alloc()
	s.all[g] = guess{until: until, target: uint32(t.in.slot()), run: id, depth: uint16(depth)}
	s.push(g, until)
	t.recent.insert(s, g, newer)
	return g
}

// use moves a guess to the end of its target's list, or before newer.
func (x *Index) use(t *target, g, newer uint32) {
	s := &x.tree.guesses
	if g == newer {
		return
	}
	t.recent.remove(s, g)
	t.recent.insert(s, g, newer)
}

func (x *Index) freeGuess(t *target, g uint32) {
	s := &x.tree.guesses
	s.take(int(s.all[g].heapAt))
	t.recent.remove(s, g)
	s.free = append(s.free, g)
}

// forgetGuess takes one guess back; the record shrinks to the next step.
func (x *Index) forgetGuess(g uint32) {
	tr := &x.tree
	s := &tr.guesses
	t := x.slots[s.all[g].target]
	id := s.all[g].run
	next := s.all[g].next
	x.freeGuess(t, g)
	recs := tr.records(tr.run(id))
	i, rec := findRecord(recs, t.predictedHolding())
	if i < 0 {
		return
	}
	if rec.ext() == g {
		x.lower(t, id, recs, i, rec, next)
		return
	}
	for prev := rec.ext(); prev != 0; prev = s.all[prev].next {
		if s.all[prev].next == g {
			s.all[prev].next = next
			return
		}
	}
}

// lower makes step, 0 for none, the deepest of a predicted record.
func (x *Index) lower(t *target, id uint32, recs []uint64, i int, rec record, step uint32) {
	tr := &x.tree
	covered := rec.depth() == lenOf(tr.run(id).w0.Load())
	var next record
	if step != 0 {
		next = makeRecord(rec.holding(), int(tr.guesses.all[step].depth), step)
	}
	t.predicted.Add(int64(next.depth() - rec.depth()))
	tr.setRecord(id, recs, i, next, covered)
}

// cut drops the predicted blocks of a run from off on.
func (x *Index) cut(t *target, id uint32, off int) {
	tr := &x.tree
	recs := tr.records(tr.run(id))
	i, rec := findRecord(recs, t.predictedHolding())
	if i < 0 || rec.depth() <= off {
		return
	}
	s := &tr.guesses
	step := rec.ext()
	for step != 0 && int(s.all[step].depth) > off {
		next := s.all[step].next
		if off > 0 && (next == 0 || int(s.all[next].depth) < off) {
			s.all[step].depth = uint16(off) // the longest lasting of the deep ones
			break
		}
		x.freeGuess(t, step)
		step = next
	}
	x.lower(t, id, recs, i, rec, step)
}

// dropPredictions takes back all of a target's guesses.
func (x *Index) dropPredictions(t *target) {
	for t.recent.oldest != 0 {
		x.forgetGuess(t.recent.oldest)
	}
}
