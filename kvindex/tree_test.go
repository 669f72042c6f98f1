package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// newTree returns a tree and n hashes that can be the chain of a prompt.
func newTree(n int) (*tree, []Hash) {
	t := new(tree)
	t.init()
	r := rand.New(rand.NewPCG(11, 12))
	hs := make([]Hash, n)
	for i := range hs {
		hs[i] = r.Uint64()
	}
	return t, hs
}

// put makes holding hold a whole chain that follows at, and returns its pieces.
func (t *tree) put(holding uint32, at cursor, hs []Hash) (pieces []int) {
	for len(hs) > 0 {
		id, off, m := t.place(at, hs)
		t.hold(id, holding, off, m)
		at = cursor{run: id, off: off + m}
		hs = hs[m:]
		pieces = append(pieces, m)
	}
	return pieces
}

// held returns, by a plain walk, how much of a chain a holding holds.
func (t *tree) held(holding uint32, hs []Hash) int { return t.heldBy(holding, hs) }

func TestAChainIsCutIntoRuns(t *testing.T) {
	tr, hs := newTree(1300)
	if got, want := tr.put(0, cursor{}, hs), []int{512, 512, 276}; !slices.Equal(got, want) {
		t.Errorf("pieces %v, want %v", got, want)
	}
	if got := tr.put(2, cursor{}, hs); len(got) != 3 {
		t.Errorf("a second holding takes %d pieces, want the 3 that are there", len(got))
	}
	if tr.headsLive != 3 {
		t.Errorf("%d runs, want 3: they are shared", tr.headsLive)
	}
	for _, holding := range []uint32{0, 2} {
		if got := tr.held(holding, hs); got != len(hs) {
			t.Errorf("holding %d: %d blocks, want %d", holding, got, len(hs))
		}
	}
	if got := tr.held(4, hs); got != 0 {
		t.Errorf("a holding without blocks has %d", got)
	}
}

func TestABranchIsANewRunAndSplitsNothing(t *testing.T) {
	tr, hs := newTree(300)
	tr.put(0, cursor{}, hs[:200])
	side := append(slices.Clone(hs[:120]), hs[200:]...)
	tr.put(2, cursor{}, side)
	if tr.headsLive != 2 {
		t.Errorf("%d runs, want 2", tr.headsLive)
	}
	for _, c := range []struct {
		holding uint32
		chain   []Hash
		want    int
	}{{0, hs[:200], 200}, {0, side, 120}, {2, side, 220}, {2, hs[:200], 120}} {
		if got := tr.held(c.holding, c.chain); got != c.want {
			t.Errorf("holding %d: %d blocks, want %d", c.holding, got, c.want)
		}
	}
}

func TestAChildOutlivesItsParent(t *testing.T) {
	const parents = 48 // fills its extent, so that the child is a run of its own
	tr, hs := newTree(100)
	tr.put(0, cursor{}, hs[:parents])
	id := tr.find(hs[0])
	tr.put(0, cursor{run: id, off: parents}, hs[parents:])
	child := tr.find(hs[parents])
	if child == 0 || child == id {
		t.Fatalf("the child is in run %d, the parents in %d: want two", child, id)
	}
	tr.drop(id, 0)
	if got := tr.held(0, hs); got != 0 {
		t.Errorf("%d blocks without the first ones, want 0", got)
	}
	if got, want := tr.put(0, cursor{}, hs), []int{parents, 100 - parents}; !slices.Equal(got, want) {
		t.Errorf("pieces %v, want %v: the child must be found, not stored twice", got, want)
	}
	if got := tr.find(hs[parents]); got != child {
		t.Errorf("the child is in run %d, want %d", got, child)
	}
	if got := tr.held(0, hs); got != 100 {
		t.Errorf("%d blocks when the parents are back, want 100", got)
	}
}

func TestEveryOrderOfRemovalEmptiesARun(t *testing.T) {
	for name, order := range map[string]int{"head first": 0, "tail first": 1, "random": 2} {
		t.Run(name, func(t *testing.T) {
			tr, hs := newTree(maxRun)
			r := rand.New(rand.NewPCG(1, 9))
			tr.put(0, cursor{}, hs)
			id := tr.find(hs[0])
			left := make([]bool, len(hs))
			for i := range left {
				left[i] = true
			}
			for _, off := range span(0, len(hs), order, r) {
				if !tr.unhold(id, 0, off) {
					t.Fatalf("block %d was not held", off)
				}
				left[off] = false
				want := slices.Index(left, false)
				if got := tr.held(0, hs); got != want {
					t.Fatalf("%d blocks after block %d went, want %d", got, off, want)
				}
			}
			if tr.headsLive != 0 || tr.holes.live() != 0 {
				t.Errorf("%d runs and %d bitmaps left, want none", tr.headsLive, tr.holes.live())
			}
		})
	}
}

func TestUnholdingWhatIsNotHeldDoesNothing(t *testing.T) {
	tr, hs := newTree(20)
	tr.put(0, cursor{}, hs)
	tr.put(2, cursor{}, hs[:10])
	id := tr.find(hs[0])
	if tr.unhold(id, 4, 3) || tr.unhold(id, 2, 10) {
		t.Error("unheld a block that was not held")
	}
	tr.unhold(id, 0, 5)
	if tr.unhold(id, 0, 5) {
		t.Error("unheld one block twice")
	}
	tr.drop(id, 8)
	if got := tr.held(2, hs); got != 10 {
		t.Errorf("another holding has %d blocks, want 10", got)
	}
}

func TestARunOfManyHoldersShrinksToThoseThatAreLeft(t *testing.T) {
	const holders = 3000
	tr, hs := newTree(64)
	tr.put(2*holders, cursor{}, hs) // makes it one run
	for h := range uint32(holders) {
		tr.put(2*h, cursor{}, hs[:1+h%64])
	}
	id := tr.find(hs[0])
	if got := len(tr.records(tr.run(id))); got != holders+1 {
		t.Errorf("%d records, want %d", got, holders+1)
	}
	for h := range uint32(holders) {
		if got, want := tr.held(2*h, hs), int(1+h%64); got != want {
			t.Fatalf("holder %d: %d blocks, want %d", h, got, want)
		}
	}
	tr.drop(id, 2*holders)
	for h := range uint32(holders) { // the deepest go, the run gets shorter
		if h%64 >= 16 {
			tr.drop(id, 2*h)
		}
	}
	w0 := tr.run(id).w0.Load()
	if lenOf(w0) != 16 || roomOf(w0) != 16 {
		t.Errorf("the run has %d blocks in room for %d, want 16 in 16", lenOf(w0), roomOf(w0))
	}
	before := len(tr.records(tr.run(id)))
	for h := range uint32(100) { // empty slots are used again
		tr.put(2*(holders+1+h), cursor{}, hs[:8])
	}
	if got := len(tr.records(tr.run(id))); got != before {
		t.Errorf("records went from %d to %d though slots were empty", before, got)
	}
}

func TestASmallPieceAtTheEndGetsRoomForMore(t *testing.T) {
	tr, hs := newTree(600)
	at := cursor{}
	runs := map[uint32]bool{}
	for i := range hs {
		id, off, m := tr.place(at, hs[i:i+1])
		tr.hold(id, 0, off, m)
		at = cursor{run: id, off: off + m}
		runs[id] = true
	}
	if got := tr.held(0, hs); got != len(hs) {
		t.Errorf("%d blocks, want %d", got, len(hs))
	}
	if len(runs) > 9 {
		t.Errorf("%d runs for 600 blocks added one by one, want room to double", len(runs))
	}
}

func TestDivergenceIsFoundAtEveryPlace(t *testing.T) {
	_, hs := newTree(maxRun)
	for _, n := range []int{2, 3, 31, 32, 33, 64, 65, 100, maxRun} {
		for at := 1; at < n; at++ {
			other := slices.Clone(hs[:n])
			for i := at; i < n; i++ {
				other[i]++
			}
			if got := match(hs[:n], other); got != at {
				t.Fatalf("chains of %d that part at %d: match %d", n, at, got)
			}
		}
		if got := match(hs[:n], hs); got != n {
			t.Errorf("equal chains of %d: match %d", n, got)
		}
	}
	if got := match(nil, hs); got != 0 {
		t.Errorf("match with nothing: %d", got)
	}
}

func TestHeadsAreFoundAmongTombstones(t *testing.T) {
	tr, hs := newTree(4000)
	r := rand.New(rand.NewPCG(2, 2))
	live := map[Hash]uint32{}
	for range 30000 {
		h := hs[r.IntN(len(hs))]
		id, there := live[h]
		if got := tr.find(h); got != id {
			t.Fatalf("find(%x) = %d, want %d", h, got, id)
		}
		if there {
			tr.drop(id, 0)
			delete(live, h)
			tr.collect()
			continue
		}
		tr.put(0, cursor{}, []Hash{h})
		live[h] = tr.find(h)
	}
	for _, h := range hs {
		if got := tr.find(h); got != live[h] {
			t.Fatalf("find(%x) = %d, want %d", h, got, live[h])
		}
	}
	if got := len(tr.heads.Load().slots); got > 16384 {
		t.Errorf("%d slots for at most 4000 heads: tombstones pile up", got)
	}
}

func TestHeadsThatShareATagAreToldApart(t *testing.T) {
	tr, _ := newTree(0)
	var hs []Hash
	for i := range uint64(200) {
		hs = append(hs, i<<32|0xabc) // one tag, close homes
	}
	for i, h := range hs {
		tr.put(0, cursor{}, []Hash{h})
		if got := tr.find(h); *tr.arena.word(baseOf(tr.run(got).w0.Load())) != h {
			t.Fatalf("head %d is not found", i)
		}
	}
	if got := tr.find(1<<60 | 0xabc); got != 0 {
		t.Errorf("found a head that is not there: run %d", got)
	}
}

func TestBitmapsAgreeWithBools(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 300 {
		var b bitmap
		var want [maxRun]bool
		for range 1 + r.IntN(20) {
			from := r.IntN(maxRun)
			to := from + r.IntN(maxRun-from+1)
			b.set(from, to)
			for i := from; i < to; i++ {
				want[i] = true
			}
			off := r.IntN(maxRun)
			b.clear(off)
			want[off] = false
		}
		depth, count, end := 0, 0, 0
		for i, set := range want {
			if b.has(i) != set {
				t.Fatalf("bit %d is %v, want %v", i, b.has(i), set)
			}
			if set {
				count, end = count+1, i+1
			}
		}
		for depth < maxRun && want[depth] {
			depth++
		}
		if b.depth() != depth || b.count() != count || b.end() != end {
			t.Fatalf("depth %d, count %d, end %d, want %d, %d, %d", b.depth(), b.count(), b.end(), depth, count, end)
		}
	}
	var full bitmap
	full.set(0, maxRun)
	if full.depth() != maxRun || full.end() != maxRun {
		t.Errorf("a full bitmap has depth %d, end %d", full.depth(), full.end())
	}
}

func TestWordsKeepWhatIsPackedIntoThem(t *testing.T) {
	for _, c := range []struct {
		base uint32
		n, m int
	}{{0, 0, 0}, {1, 1, 8}, {1<<32 - 8, maxRun, maxRun}, {77, 3, 16}} {
		if w := makeW0(c.base, c.n, c.m); baseOf(w) != c.base || lenOf(w) != c.n || roomOf(w) != c.m {
			t.Errorf("w0 of %+v: %d, %d, %d", c, baseOf(w), lenOf(w), roomOf(w))
		}
		if w := makeW1(c.base, c.n*1000, c.m%32); baseOf(w) != c.base || usedOf(w) != c.n*1000 || logOf(w) != c.m%32 {
			t.Errorf("w1 of %+v: %d, %d, %d", c, baseOf(w), usedOf(w), logOf(w))
		}
	}
	for _, holding := range []uint32{0, 1, 2*slotMask + 1 - 1} {
		for _, depth := range []int{0, 1, maxRun} {
			for _, ext := range []uint32{0, 1, 1<<32 - 1} {
				rec := makeRecord(holding, depth, ext)
				if rec.holding() != holding || rec.depth() != depth || rec.ext() != ext || rec.empty() {
					t.Errorf("record of %d, %d, %d: %d, %d, %d", holding, depth, ext, rec.holding(), rec.depth(), rec.ext())
				}
			}
		}
	}
}
