package kvindex

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTheEngineMapAgreesWithAGoMap(t *testing.T) {
	for name, key := range map[string]func(r *rand.Rand) uint64{
		"random hashes":  func(r *rand.Rand) uint64 { return r.Uint64() % 5000 * golden },
		"small integers": func(r *rand.Rand) uint64 { return r.Uint64() % 5000 },
		"high bits only": func(r *rand.Rand) uint64 { return r.Uint64() % 5000 << 48 },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var m engineMap
			want := map[uint64]uint32{}
			for i := range 100000 {
				k := key(r)
				old, had := want[k]
				if r.IntN(3) == 0 || (i/20000)%2 == 1 && r.IntN(3) > 0 {
					got, ok := m.del(k)
					if ok != had || got != old {
						t.Fatalf("del(%x) = %d, %v, want %d, %v", k, got, ok, old, had)
					}
					delete(want, k)
				} else {
					got, ok := m.put(k, uint32(i))
					if ok != had || got != old {
						t.Fatalf("put(%x) = %d, %v, want %d, %v", k, got, ok, old, had)
					}
					want[k] = uint32(i)
				}
				if m.count != len(want) {
					t.Fatalf("%d entries, want %d", m.count, len(want))
				}
			}
			for k, v := range want {
				if got, ok := m.get(k); !ok || got != v {
					t.Fatalf("get(%x) = %d, %v, want %d", k, got, ok, v)
				}
			}
			for k := range want {
				m.del(k)
			}
			for i := range m.buckets {
				if b := &m.buckets[i]; b.n != 0 || b.passed != 0 {
					t.Fatalf("bucket %d of an empty map: n %d, passed %d", i, b.n, b.passed)
				}
			}
		})
	}
}

func TestTheEngineMapFindsNothingInAFullSmallTable(t *testing.T) {
	var m engineMap
	for i := range uint64(minBuckets*bucketSize*85/100 - 1) {
		m.put(i, uint32(i))
	}
	for i := range m.buckets {
		m.buckets[i].passed++ // as if every bucket had been passed over
	}
	if _, ok := m.get(1 << 40); ok {
		t.Error("found a key that is not there")
	}
	if _, ok := m.del(1 << 40); ok {
		t.Error("deleted a key that is not there")
	}
	m.put(1<<40, 7)
	if got, ok := m.get(1 << 40); !ok || got != 7 {
		t.Errorf("get = %d, %v, want 7", got, ok)
	}
}

func TestTheArenaNeverGivesAWordTwiceAndMergesWhatIsFreed(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var a arena
	a.init()
	type extent struct {
		base uint32
		n    int
		id   uint32
	}
	var live []extent
	check := func(e extent) {
		for i := range e.n {
			if got := a.owner[int(e.base)/groupWords+i]; got != e.id {
				t.Fatalf("group %d of extent %d belongs to %x", i, e.id, got)
			}
		}
	}
	for i := range 60000 {
		if len(live) == 0 || r.IntN(100) < 52 {
			e := extent{n: 1 + r.IntN(exactBins), id: uint32(i + 1)}
			e.base = a.alloc(e.n, e.id)
			if e.base/chunkWords != (e.base+uint32(e.n*groupWords)-1)/chunkWords {
				t.Fatalf("extent of %d groups at %d straddles chunks", e.n, e.base)
			}
			live = append(live, e)
			continue
		}
		k := r.IntN(len(live))
		e := live[k]
		check(e)
		if e.n > 1 && r.IntN(3) == 0 { // give back the end only
			keep := 1 + r.IntN(e.n-1)
			a.release(e.base+uint32(keep*groupWords), e.n-keep)
			live[k].n = keep
			continue
		}
		a.release(e.base, e.n)
		live[k] = live[len(live)-1]
		live = live[:len(live)-1]
	}
	used := 0
	for _, e := range live {
		check(e)
		used += e.n
	}
	if got := len(a.owner) - a.free; got != used {
		t.Errorf("%d groups in use, want %d", got, used)
	}
	for _, e := range live {
		a.release(e.base, e.n)
	}
	for g := 0; g < len(a.owner); g += chunkGroups {
		if got := a.owner[g]; got != freeTag|chunkGroups {
			t.Errorf("chunk %d is not one free extent: %x", g/chunkGroups, got)
		}
	}
}

func TestHolderBlocksComeEmptyAndApart(t *testing.T) {
	var a holderArena
	a.init()
	seen := map[*uint64]bool{}
	for round := range 3 {
		var bases [][2]int
		for k := minHolderLog; k <= 17; k += 3 {
			for range 3 {
				base := a.alloc(k)
				b := a.block(base, 1<<k)
				for i := range b {
					if b[i] != 0 {
						t.Fatalf("round %d: record %d of a new block of %d is not empty", round, i, len(b))
					}
					b[i] = 1
				}
				if round == 0 && seen[&b[0]] {
					t.Fatalf("block of %d given out twice", len(b))
				}
				seen[&b[0]] = true
				bases = append(bases, [2]int{int(base), k})
			}
		}
		for _, b := range bases {
			a.release(uint32(b[0]), b[1])
		}
	}
}

// A constant amount of live blocks must take a constant amount of memory, however
// long and in whatever order they come and go.
func TestChurnDoesNotLeak(t *testing.T) {
	s := newStory(t)
	r := rand.New(rand.NewPCG(9, 9))
	type prompt struct {
		handles []uint64
	}
	var live []prompt
	blocks, next := 0, uint64(1)
	store := func() {
		n := 1 + r.IntN(300)
		tokens, p := make([]uint32, n), prompt{}
		for i := range tokens {
			tokens[i] = uint32(next)
			p.handles = append(p.handles, next)
			next++
		}
		e := Event{Kind: Stored, BlockSize: 1, Tokens: tokens, Hashes: p.handles}
		if len(live) > 0 && r.IntN(3) == 0 { // goes on after another prompt
			e.HasParent, e.Parent = true, live[r.IntN(len(live))].handles[0]
		}
		s.apply(e)
		if r.IntN(4) == 0 {
			s.now = s.now.Add(time.Second)
			s.x.Predict(s.in, HashTokens(nil, 0, tokens, 1), s.now, 0)
		}
		live = append(live, p)
		blocks += n
	}
	remove := func() {
		k := r.IntN(len(live))
		p := live[k]
		live[k] = live[len(live)-1]
		live = live[:len(live)-1]
		blocks -= len(p.handles)
		switch r.IntN(3) {
		case 0:
			r.Shuffle(len(p.handles), func(i, j int) { p.handles[i], p.handles[j] = p.handles[j], p.handles[i] })
		case 1:
			for i, j := 0, len(p.handles)-1; i < j; i, j = i+1, j-1 {
				p.handles[i], p.handles[j] = p.handles[j], p.handles[i]
			}
		}
		for len(p.handles) > 0 {
			n := min(len(p.handles), 1+r.IntN(100))
			s.apply(removed(0, p.handles[:n]...))
			p.handles = p.handles[n:]
		}
	}
	var after []int
	for round := range 6 {
		for range 700 {
			store()
			for blocks > 20000 {
				remove()
			}
		}
		if round >= 1 {
			after = append(after, len(s.x.tree.arena.owner))
		}
	}
	if first, last := after[0], after[len(after)-1]; last > first+first/4 {
		t.Errorf("arena grew from %d to %d groups over %v", first, last, after)
	}
	if n := len(s.x.tree.side); n > 20000 {
		t.Errorf("%d run ids for some hundred prompts", n)
	}
	for len(live) > 0 {
		remove()
	}
	if got := s.x.lookupTarget(s.in).blocks.Load(); got != 0 {
		t.Errorf("%d blocks left, want 0", got)
	}
}
