package kvindex

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// model is the index done naively: sets per target. It knows two predicted views,
// because the index may drop more predictions than the removed block: in less the
// blocks that follow a removed one are gone too, in more they are not.
type model struct {
	targets []*modelTarget
}

type modelTarget struct {
	engine map[uint64]*modelEntry // by engine hash
	held   map[Hash]int           // how many engine hashes name a block
	less   map[Hash]int64         // predicted blocks and when they end
	more   map[Hash]int64         // the same, see model
	next   map[Hash]map[Hash]bool // block -> the blocks that were predicted after it
}

type modelEntry struct {
	hash Hash
	tier Tier
}

func newModel(n int) *model {
	m := &model{}
	for range n {
		m.targets = append(m.targets, newModelTarget())
	}
	return m
}

func newModelTarget() *modelTarget {
	return &modelTarget{
		engine: map[uint64]*modelEntry{}, held: map[Hash]int{},
		less: map[Hash]int64{}, more: map[Hash]int64{}, next: map[Hash]map[Hash]bool{},
	}
}

func (t *modelTarget) holds(h Hash) bool { return t.held[h] > 0 }

// unname takes back one engine hash of a block.
func (t *modelTarget) unname(h Hash) {
	if t.held[h]--; t.held[h] > 0 {
		return
	}
	delete(t.held, h)
	delete(t.more, h)
	t.forgetFrom(h)
}

func (t *modelTarget) forgetFrom(h Hash) {
	delete(t.less, h)
	for n := range t.next[h] {
		t.forgetFrom(n)
	}
	delete(t.next, h)
}

// store applies a stored event naively; hashes are the blocks' own.
func (t *modelTarget) store(eng []uint64, hashes []Hash, tier Tier) {
	var gone []Hash
	for i, e := range eng {
		old := t.engine[e]
		if old == nil {
			t.engine[e] = &modelEntry{hash: hashes[i], tier: tier}
			t.held[hashes[i]]++
			continue
		}
		if old.hash != hashes[i] {
			gone = append(gone, old.hash)
			t.held[hashes[i]]++
		}
		old.hash = hashes[i]
		old.tier |= tier
	}
	for _, h := range gone {
		t.unname(h)
	}
}

func (t *modelTarget) remove(eng []uint64, tier Tier) {
	for _, e := range eng {
		entry := t.engine[e]
		if entry == nil {
			continue
		}
		if entry.tier &^= tier; entry.tier != 0 {
			continue
		}
		delete(t.engine, e)
		t.unname(entry.hash)
	}
}

func (t *modelTarget) clear() {
	*t = *newModelTarget()
}

func (t *modelTarget) predict(hs []Hash, until int64) {
	var prev Hash
	for _, h := range hs {
		t.less[h] = max(t.less[h], until)
		t.more[h] = max(t.more[h], until)
		if t.next[prev] == nil {
			t.next[prev] = map[Hash]bool{}
		}
		t.next[prev][h] = true
		prev = h
	}
}

func (t *modelTarget) expire(now int64) {
	for _, view := range []map[Hash]int64{t.less, t.more} {
		for h, until := range view {
			if until <= now {
				delete(view, h)
			}
		}
	}
}

// depths returns the least and the most that the index may answer.
func (t *modelTarget) depths(hs []Hash) (least, most int) {
	prefix := func(has func(Hash) bool) int {
		for i, h := range hs {
			if !has(h) {
				return i
			}
		}
		return len(hs)
	}
	exact := prefix(t.holds)
	in := func(view map[Hash]int64) int {
		return prefix(func(h Hash) bool { _, ok := view[h]; return ok })
	}
	return max(exact, in(t.less)), max(exact, in(t.more))
}

func (t *modelTarget) blocks() int { return len(t.held) }

// world runs the same operations on an index and on the model.
type world struct {
	t      *testing.T
	x      *Index
	m      *model
	feeds  []*Feed
	ins    []Instance
	now    time.Time
	chains [][]uint32 // token sequences with shared beginnings
	size   int
	s      Scratch
	trace  []func() string
}

const modelTargets = 3

func newWorld(t *testing.T, size int, chains [][]uint32) *world {
	t.Helper()
	w := &world{t: t, x: New(Config{PresentTTL: 300 * time.Second}), m: newModel(modelTargets), now: time.Unix(1000, 0), chains: chains, size: size}
	for i := range modelTargets {
		key := fmt.Sprint("w", i)
		w.ins = append(w.ins, w.x.Instance(key))
		w.feeds = append(w.feeds, w.x.Feed(key))
	}
	return w
}

// engineHash names block i of a chain by its own hash, in one of two ways: the
// second is the engine's other hash for the same tokens.
func engineHash(h Hash, alt bool) uint64 {
	if alt {
		return h ^ 0xabcdef0123456789
	}
	return h * 3
}

func (w *world) hashes(chain, blocks int) []Hash {
	return HashTokens(nil, 0, w.chains[chain][:blocks*w.size], w.size)
}

// log notes an operation, to be formatted only if a check fails.
func (w *world) log(format string, args ...any) {
	w.trace = append(w.trace, func() string { return fmt.Sprintf(format, args...) })
}

// store stores blocks [from, to) of a chain on a target.
func (w *world) store(target, chain, from, to int, alt bool, tier Tier) {
	w.log("store target %d chain %d [%d,%d) alt %v tier %d", target, chain, from, to, alt, tier)
	hs := w.hashes(chain, to)
	mt := w.m.targets[target]
	e := Event{Kind: Stored, BlockSize: w.size, Tokens: w.chains[chain][from*w.size : to*w.size], Tier: tier}
	for _, h := range hs[from:] {
		e.Hashes = append(e.Hashes, engineHash(h, alt))
	}
	known := true
	if from > 0 {
		e.HasParent, e.Parent = true, engineHash(hs[from-1], alt)
		var entry *modelEntry
		entry, known = mt.engine[e.Parent]
		if known && entry.hash != hs[from-1] { // re-pointed: the chain goes on elsewhere
			hs = append(hs[:from:from], HashTokens(nil, entry.hash, e.Tokens, w.size)...)
		}
	}
	w.apply(target, e)
	if known {
		mt.store(e.Hashes, hs[from:], e.tier())
	}
}

// repoint gives a block of one chain the engine hash of another block.
func (w *world) repoint(target, chain, other, at int) {
	w.log("repoint target %d: first block of chain %d gets the hash of block %d of chain %d", target, chain, at, other)
	hs := w.hashes(chain, 1)
	e := Event{
		Kind: Stored, BlockSize: w.size, Tokens: w.chains[chain][:w.size],
		Hashes: []uint64{engineHash(w.hashes(other, at+1)[at], false)},
	}
	w.apply(target, e)
	w.m.targets[target].store(e.Hashes, hs, Device)
}

func (w *world) remove(target, chain int, blocks []int, alt bool, tier Tier) {
	w.log("remove target %d chain %d blocks %v alt %v tier %d", target, chain, blocks, alt, tier)
	hs := w.hashes(chain, len(w.chains[chain])/w.size)
	e := Event{Kind: Removed, Tier: tier}
	for _, b := range blocks {
		e.Hashes = append(e.Hashes, engineHash(hs[b], alt))
	}
	w.apply(target, e)
	w.m.targets[target].remove(e.Hashes, e.tier())
}

func (w *world) clear(target int) {
	w.log("clear target %d", target)
	w.apply(target, Event{Kind: Cleared})
	w.m.targets[target].clear()
}

func (w *world) predict(target, chain, blocks int, ttl time.Duration) {
	w.log("predict target %d chain %d %d blocks for %v", target, chain, blocks, ttl)
	hs := w.hashes(chain, blocks)
	if ttl == 0 {
		w.x.Present(w.ins[target], hs, w.now)
		ttl = 300 * time.Second
	} else {
		w.x.Predict(w.ins[target], hs, w.now, ttl)
	}
	w.m.targets[target].predict(hs, w.now.Add(ttl).UnixNano())
}

func (w *world) pass(d time.Duration) {
	w.log("%v pass", d)
	w.now = w.now.Add(d)
	w.x.Expire(w.now)
	for _, t := range w.m.targets {
		t.expire(w.now.UnixNano())
	}
}

func (w *world) forget(target int) {
	w.log("forget target %d", target)
	key := fmt.Sprint("w", target)
	stale := w.ins[target]
	w.x.Forget(key)
	w.ins[target] = w.x.Instance(key)
	w.m.targets[target] = newModelTarget()
	w.x.Predict(stale, w.hashes(0, 1), w.now, time.Hour) // must be harmless
}

func (w *world) apply(target int, e Event) {
	b := Batch{Rank: -1, Events: []Event{e}}
	if g := w.feeds[target].Apply(&b, w.now); g != nil {
		w.t.Fatalf("gap %v of a feed without numbers", g)
	}
}

func (w *world) check(chain int) {
	w.t.Helper()
	hs := w.hashes(chain, len(w.chains[chain])/w.size)
	w.x.Lookup(hs, &w.s)
	for i, mt := range w.m.targets {
		least, most := mt.depths(hs)
		if got := w.s.Depth(w.ins[i]); got < least || got > most {
			w.fail("target %d holds %d blocks of chain %d, want %d to %d", i, got, chain, least, most)
		}
		if got, want := int(w.x.lookupTarget(w.ins[i]).blocks.Load()), mt.blocks(); got != want {
			w.fail("target %d counts %d blocks, want %d", i, got, want)
		}
	}
}

func (w *world) audit() {
	w.t.Helper()
	if err := w.x.audit(); err != nil {
		w.fail("%v", err)
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.trace {
		w.t.Log(line())
	}
	w.t.Fatalf(format, args...)
}

// empty clears everything and checks that the tree holds nothing any more.
func (w *world) empty() {
	w.t.Helper()
	for i := range w.feeds {
		w.clear(i)
	}
	w.pass(24 * time.Hour)
	w.x.tree.collectAt = 0
	w.x.tree.collect()
	tr := &w.x.tree
	if tr.headsLive != 0 || tr.holes.live() != 0 || len(tr.guesses.heap) != 0 {
		w.fail("left when empty: %d heads, %d bitmaps, %d guesses", tr.headsLive, tr.holes.live(), len(tr.guesses.heap))
	}
	if used := len(tr.arena.owner) - tr.arena.free; used != 0 {
		w.fail("left when empty: %d groups of the arena", used)
	}
	if n := len(tr.side) - 1 - len(tr.freeRuns); n != 0 {
		w.fail("left when empty: %d runs", n)
	}
}

// randomChains returns token sequences that branch off one another.
func randomChains(r *rand.Rand, n, blocks, size int) [][]uint32 {
	var chains [][]uint32
	for i := range n {
		c := make([]uint32, blocks*size)
		for j := range c {
			c[j] = r.Uint32N(1000)
		}
		if i > 0 {
			copy(c, chains[r.IntN(i)][:r.IntN(blocks)*size])
		}
		chains = append(chains, c)
	}
	return chains
}

func (w *world) step(r *rand.Rand, blocks int) {
	target, chain := r.IntN(modelTargets), r.IntN(len(w.chains))
	from, to := r.IntN(blocks), 1+r.IntN(blocks)
	if from >= to {
		from = 0
	}
	tier := Tier(0)
	if r.IntN(6) == 0 {
		tier = Tier(1 << r.IntN(3))
	}
	switch r.IntN(20) {
	case 0, 1, 2, 3:
		w.store(target, chain, 0, to, false, tier)
	case 4, 5, 6:
		w.store(target, chain, from, to, r.IntN(4) == 0, tier)
	case 7:
		w.store(target, chain, 0, to, true, tier)
	case 8, 9:
		w.remove(target, chain, span(from, to, r.IntN(3), r), r.IntN(6) == 0, tier)
	case 10, 11:
		w.remove(target, chain, []int{r.IntN(blocks)}, false, tier)
	case 12, 13, 14:
		w.predict(target, chain, to, time.Duration(1+r.IntN(60))*time.Second)
	case 15:
		w.predict(target, chain, to, 0)
	case 16:
		w.pass(time.Duration(r.IntN(20)) * time.Second)
	case 17:
		w.repoint(target, chain, r.IntN(len(w.chains)), r.IntN(blocks))
	case 18:
		if r.IntN(8) == 0 {
			w.clear(target)
		}
	case 19:
		if r.IntN(16) == 0 {
			w.forget(target)
		}
	}
}

// span lists [from, to) head first, tail first or in random order.
func span(from, to, order int, r *rand.Rand) []int {
	var s []int
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	switch order {
	case 1:
		for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
			s[i], s[j] = s[j], s[i]
		}
	case 2:
		r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	}
	return s
}

func TestIndexAgreesWithANaiveModel(t *testing.T) {
	t.Parallel()
	const seeds, shards = 1000, 4
	for shard := range shards {
		t.Run(fmt.Sprint("shard ", shard), func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < seeds; seed += shards {
				playSeed(t, seed)
			}
		})
	}
}

func playSeed(t *testing.T, seed int) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	blocks := []int{4, 12, 20, 40}[seed/4%4]
	if seed%50 == 7 {
		blocks = 700 // more than one run; slow in the model
	}
	w := newWorld(t, 1+seed%3, randomChains(r, 2+seed%5, blocks, 1+seed%3))
	w.log("seed %d", seed)
	for i := range 300 {
		w.step(r, blocks)
		w.check(r.IntN(len(w.chains)))
		if i%20 == 0 {
			w.audit()
		}
	}
	w.empty()
}
