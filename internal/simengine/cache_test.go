package simengine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/wire"
)

// view is the naive reader of events: a set of engine hashes.
type view map[uint64][]uint32

// apply reads one payload as a router does and checks that every event makes
// sense against what came before.
func (v view) apply(t *testing.T, payload []byte, size int) {
	t.Helper()
	var b kvindex.Batch
	if err := wire.DecodeBatch(payload, &b); err != nil {
		t.Fatalf("a published batch does not decode: %v", err)
	}
	if b.Skipped > 0 {
		t.Fatalf("%d published events were unusable", b.Skipped)
	}
	for _, e := range b.Events {
		switch e.Kind {
		case kvindex.Cleared:
			clear(v)
		case kvindex.Removed:
			for _, h := range e.Hashes {
				if _, ok := v[h]; !ok {
					t.Fatalf("removed a block that was not stored: %x", h)
				}
				delete(v, h)
			}
		case kvindex.Stored:
			v.store(t, &e, size)
		}
	}
}

func (v view) store(t *testing.T, e *kvindex.Event, size int) {
	t.Helper()
	if e.HasParent {
		if _, ok := v[e.Parent]; !ok {
			t.Fatalf("stored a block whose parent is not: %x", e.Parent)
		}
	}
	if len(e.Tokens) != len(e.Hashes)*size || e.BlockSize != size {
		t.Fatalf("%d hashes with %d tokens of block size %d", len(e.Hashes), len(e.Tokens), e.BlockSize)
	}
	for i, h := range e.Hashes {
		if _, ok := v[h]; ok {
			t.Fatalf("stored a block twice: %x", h)
		}
		v[h] = slices.Clone(e.Tokens[i*size : (i+1)*size])
	}
}

// encoded returns ch as the publisher of engine would send it.
func encoded(engine fleet.Engine, ch changes) []byte {
	p := newPublisher(KVEventsConfig{Buffer: 1}, engine, 1, nil)
	return p.encode(nil, &kvindex.Batch{Rank: -1, Events: ch.events}, ch.keys)
}

func (v view) mustEqual(t *testing.T, c *cache) {
	t.Helper()
	got, want := slices.Sorted(maps.Keys(v)), slices.Sorted(maps.Keys(c.blocks))
	if !slices.Equal(got, want) {
		t.Fatalf("events say %d blocks, the cache holds %d", len(got), len(want))
	}
}

// tokensOf returns n tokens that begin like those of the same family.
func tokensOf(family, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(family<<16 | i)
	}
	return out
}

// check verifies the cache's own books.
func (c *cache) check(t *testing.T) {
	t.Helper()
	n := 0
	for b := c.lru.next; b != &c.lru; b = b.next {
		if b.ref != 0 || c.blocks[b.hash] != b {
			t.Fatalf("block %x is evictable with %d holders", b.hash, b.ref)
		}
		n++
	}
	switch {
	case n != c.idle:
		t.Fatalf("%d blocks evictable, %d counted", n, c.idle)
	case c.private < 0:
		t.Fatalf("%d private blocks", c.private)
	case len(c.blocks)+c.private > c.capacity:
		t.Fatalf("%d cached and %d private blocks in a cache of %d", len(c.blocks), c.private, c.capacity)
	}
}

func TestEventsSayExactlyWhatTheCacheHolds(t *testing.T) {
	for _, engine := range []fleet.Engine{fleet.VLLM, fleet.SGLang} {
		t.Run(string(engine), func(t *testing.T) {
			const size = 4
			rng := rand.New(rand.NewPCG(7, 7))
			c := newCache(size, 40)
			v := view{}
			type live struct {
				lease
				tokens []uint32
				hashes []uint64
				done   int
			}
			var running []*live
			for range 20_000 {
				switch k := rng.IntN(100); {
				case k < 30: // a new sequence: one of six families, so prefixes repeat
					tokens := tokensOf(rng.IntN(6), 1+rng.IntN(60))
					hashes := chainHashes(9, wire.Keys{}, tokens, size)
					if l, ok := c.acquire(hashes, len(tokens), (len(tokens)+size-1)/size); ok {
						running = append(running, &live{lease: l, tokens: tokens, hashes: hashes, done: len(l.held) * size})
					}
				case k < 80 && len(running) > 0: // some progress
					q := running[rng.IntN(len(running))]
					q.done = min(len(q.tokens), q.done+rng.IntN(20))
					c.commit(&q.lease, q.hashes, q.tokens, q.done, wire.Keys{})
				case k < 99 && len(running) > 0: // an end, finished or not
					i := rng.IntN(len(running))
					c.release(&running[i].lease)
					running = slices.Delete(running, i, i+1)
				case k == 99:
					c.clear()
				}
				c.check(t)
				if rng.IntN(3) == 0 {
					v.apply(t, encoded(engine, c.take()), size)
					v.mustEqual(t, c)
				}
			}
			for _, q := range running {
				c.release(&q.lease)
			}
			if c.private != 0 || c.used() != 0 {
				t.Errorf("with nothing running %d blocks are in use, %d of them private", c.used(), c.private)
			}
		})
	}
}

// fill computes a sequence from start to end.
func fill(t *testing.T, c *cache, tokens []uint32) (hit int) {
	t.Helper()
	hashes := chainHashes(1, wire.Keys{}, tokens, c.size)
	l, ok := c.acquire(hashes, len(tokens), (len(tokens)+c.size-1)/c.size)
	if !ok {
		t.Fatalf("no memory for %d tokens", len(tokens))
	}
	hit = len(l.held)
	c.commit(&l, hashes, tokens, len(tokens), wire.Keys{})
	c.release(&l)
	return hit
}

func TestCacheReusesPrefixes(t *testing.T) {
	for _, tc := range []struct {
		name          string
		first, second []uint32
		hit           int
	}{
		{"a longer prompt hits what it begins with", tokensOf(1, 12), tokensOf(1, 20), 3},
		{"a partial block is not shared", tokensOf(1, 10), tokensOf(1, 20), 2},
		{"another prompt hits nothing", tokensOf(1, 12), tokensOf(2, 12), 0},
		{"the same prompt leaves a block to compute", tokensOf(1, 12), tokensOf(1, 12), 2},
		{"one token more and it need not", tokensOf(1, 12), tokensOf(1, 13), 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCache(4, 100)
			fill(t, c, tc.first)
			if hit := fill(t, c, tc.second); hit != tc.hit {
				t.Errorf("%d blocks hit, want %d", hit, tc.hit)
			}
		})
	}
}

func TestEvictionTakesTheOldestChainFromItsTail(t *testing.T) {
	c := newCache(4, 6)
	old, young := tokensOf(1, 12), tokensOf(2, 12)
	fill(t, c, old)
	fill(t, c, young)
	fill(t, c, tokensOf(3, 4)) // needs one block
	h := chainHashes(1, wire.Keys{}, old, 4)
	if got := c.match(h); got != 2 {
		t.Errorf("of the oldest chain %d blocks are left, want the first 2", got)
	}
	if got := c.match(chainHashes(1, wire.Keys{}, young, 4)); got != 3 {
		t.Errorf("of the younger chain %d blocks are left, want all 3", got)
	}
}

func TestAHitMakesAChainYoungAgain(t *testing.T) {
	c := newCache(4, 6)
	a, b := tokensOf(1, 12), tokensOf(2, 12)
	fill(t, c, a)
	fill(t, c, b)
	fill(t, c, a) // hits two blocks, computes the third again
	fill(t, c, tokensOf(3, 8))
	if got := c.match(chainHashes(1, wire.Keys{}, a, 4)); got != 3 {
		t.Errorf("the chain used last has %d blocks left, want 3", got)
	}
}

func TestRunningSequencesPinTheirBlocks(t *testing.T) {
	c := newCache(4, 4)
	tokens := tokensOf(1, 12)
	hashes := chainHashes(1, wire.Keys{}, tokens, 4)
	l, _ := c.acquire(hashes, 12, 3)
	c.commit(&l, hashes, tokens, 12, wire.Keys{})
	other := tokensOf(2, 8)
	if _, ok := c.acquire(chainHashes(1, wire.Keys{}, other, 4), 8, 2); ok {
		t.Fatal("two blocks were given where one is free and three are held")
	}
	if got := c.match(hashes); got != 3 {
		t.Fatalf("a refused admission took blocks: %d of 3 left", got)
	}
	c.release(&l)
	if _, ok := c.acquire(chainHashes(1, wire.Keys{}, other, 4), 8, 2); !ok {
		t.Error("no memory although nothing is held")
	}
}

func TestAHitDoesNotCountAsFreeMemory(t *testing.T) {
	c := newCache(4, 4)
	fill(t, c, tokensOf(1, 12)) // three idle blocks, one free
	long := tokensOf(1, 20)     // hits three, needs five
	if _, ok := c.acquire(chainHashes(1, wire.Keys{}, long, 4), 20, 5); ok {
		t.Error("five blocks were given in a cache of four")
	}
	c.check(t)
}

func TestClearWhileASequenceRuns(t *testing.T) {
	c := newCache(4, 10)
	v := view{}
	tokens := tokensOf(1, 16)
	hashes := chainHashes(1, wire.Keys{}, tokens, 4)
	l, _ := c.acquire(hashes, 16, 4)
	c.commit(&l, hashes, tokens, 8, wire.Keys{})
	c.clear()
	c.commit(&l, hashes, tokens, 16, wire.Keys{}) // its parents are gone
	v.apply(t, encoded(fleet.VLLM, c.take()), 4)
	if len(v) != 0 || len(c.blocks) != 0 {
		t.Errorf("after a clear the events say %d blocks and the cache %d, want none", len(v), len(c.blocks))
	}
	if c.used() != 4 {
		t.Errorf("the running sequence holds %d blocks, want its 4", c.used())
	}
	c.release(&l)
	if c.used() != 0 {
		t.Errorf("%d blocks leaked", c.used())
	}
	if hit := fill(t, c, tokens); hit != 0 {
		t.Errorf("%d blocks were hit after a clear", hit)
	}
}

func TestSaltsAndAdaptersKeepPromptsApart(t *testing.T) {
	tokens := tokensOf(1, 8)
	seen := map[uint64]wire.Keys{}
	for _, k := range []wire.Keys{{}, {Salt: "a"}, {Salt: "b"}, {LoRA: "a"}, {LoRA: "a", Salt: "b"}} {
		h := chainHashes(1, k, tokens, 4)[0]
		if other, ok := seen[h]; ok {
			t.Errorf("%+v and %+v share blocks", k, other)
		}
		seen[h] = k
	}
	if a, b := chainHashes(1, wire.Keys{}, tokens, 4), chainHashes(2, wire.Keys{}, tokens, 4); a[0] == b[0] {
		t.Error("two processes hash alike")
	}
}

func TestSaltIsPublished(t *testing.T) {
	c := newCache(4, 10)
	tokens := tokensOf(1, 8)
	keys := wire.Keys{Salt: "tenant-1"}
	hashes := chainHashes(1, keys, tokens, 4)
	l, _ := c.acquire(hashes, 8, 2)
	c.commit(&l, hashes, tokens, 8, keys)
	var b kvindex.Batch
	if err := wire.DecodeBatch(encoded(fleet.VLLM, c.take()), &b); err != nil {
		t.Fatal(err)
	}
	if b.Events[0].Extra == 0 {
		t.Error("the event of a salted prompt looks like one without a salt")
	}
}
