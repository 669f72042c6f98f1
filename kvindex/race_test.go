package kvindex

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// branch returns the first at blocks of trunk followed by n blocks of its own.
func branch(trunk []uint32, at, n, salt int) []uint32 {
	tokens := append([]uint32(nil), trunk[:at]...)
	for i := range n {
		tokens = append(tokens, uint32(salt*100_000+i)|1<<31)
	}
	return tokens
}

func handlesOf(hs []Hash) []uint64 {
	out := make([]uint64, len(hs))
	for i, h := range hs {
		out[i] = h ^ 0x5555
	}
	return out
}

// Readers look a prompt up whose holder never changes, while others change all
// around it: they must see it whole, every time.
func TestReadersSeeWhatDoesNotChangeWhileWritersWrite(t *testing.T) {
	const trunkLen, writers, rounds = 1200, 3, 150
	trunk := make([]uint32, trunkLen)
	for i := range trunk {
		trunk[i] = uint32(i)
	}
	x := New(Config{})
	now := time.Unix(1, 0)
	fixed := x.Instance("fixed")
	hs := HashTokens(nil, 0, trunk, 1)
	x.Feed("fixed").Apply(&Batch{Events: []Event{{Kind: Stored, BlockSize: 1, Tokens: trunk, Hashes: handlesOf(hs)}}}, now)

	var stop atomic.Bool
	var readers, others sync.WaitGroup
	for r := range 2 {
		readers.Go(func() { readFixed(t, x, fixed, trunk, hs, uint64(r), &stop) })
	}
	for w := range writers {
		others.Go(func() { churn(x, fmt.Sprint("w", w), trunk, rand.New(rand.NewPCG(uint64(w), 1)), rounds) })
	}
	others.Go(func() {
		for i := range rounds {
			key := fmt.Sprint("guest", i%5)
			in := x.Instance(key)
			x.Predict(in, hs[:1+i], now, time.Second)
			x.Present(in, HashTokens(nil, 0, branch(trunk, i, 50, i), 1), now.Add(time.Duration(i)*time.Second))
			x.Mode(in, now)
			x.BlockSize(in)
			if i%3 == 0 {
				x.Forget(key)
			}
		}
	})
	others.Wait()
	stop.Store(true)
	readers.Wait()
	if err := x.audit(); err != nil {
		t.Error(err)
	}
}

func readFixed(t *testing.T, x *Index, fixed Instance, trunk []uint32, hs []Hash, seed uint64, stop *atomic.Bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	var s Scratch
	var mine []Hash
	for n := 0; !stop.Load() || n < 10; n++ {
		x.Lookup(hs, &s)
		if got := s.Depth(fixed); got != len(hs) {
			t.Errorf("%d blocks, want %d", got, len(hs))
			return
		}
		at := r.IntN(len(trunk))
		mine = HashTokens(mine[:0], 0, branch(trunk, at, 300, r.IntN(4)), 1)
		x.Lookup(mine, &s)
		if got := s.Depth(fixed); got != at {
			t.Errorf("%d blocks of a branch at %d, want %d", got, at, at)
			return
		}
		for _, known := range *x.table.Load() {
			if known == nil {
				continue
			}
			if got := s.Depth(known.in); got > len(mine) {
				t.Errorf("%d blocks of a prompt of %d", got, len(mine))
				return
			}
		}
	}
}

// churn stores branches of the trunk on one target and removes pieces of them.
func churn(x *Index, key string, trunk []uint32, r *rand.Rand, rounds int) {
	f := x.Feed(key)
	now := time.Unix(1, 0)
	for i := range rounds {
		at, n := r.IntN(len(trunk)), 1+r.IntN(300)
		tokens := branch(trunk, at, n, r.IntN(4))
		hs := HashTokens(nil, 0, tokens, 1)
		e := Event{Kind: Stored, BlockSize: 1, Tokens: tokens, Hashes: handlesOf(hs)}
		f.Apply(&Batch{Events: []Event{e}}, now)
		cut := r.IntN(len(hs))
		f.Apply(&Batch{Events: []Event{{Kind: Removed, Hashes: handlesOf(hs[cut:])}}}, now)
		if i%10 == 9 {
			f.Apply(&Batch{Events: []Event{{Kind: Cleared}}}, now)
		}
		if i%50 == 49 {
			f.Reset(ResetGap)
			x.Forget(key)
			x.Instance(key)
		}
	}
}

func TestReadersThatAreGoneLeaveTheirPlace(t *testing.T) {
	x := New(Config{})
	in := x.Instance("w")
	hs := []Hash{1, 2, 3}
	x.Predict(in, hs, time.Unix(1, 0), time.Hour)
	for range 50 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				s := new(Scratch)
				x.Lookup(hs, s)
				if got := s.Depth(in); got != 3 {
					t.Errorf("depth %d, want 3", got)
				}
			})
		}
		wg.Wait()
	}
	for _, s := range *x.tree.readers.slots.Load() {
		if e := s.epoch.Load(); e != 0 {
			t.Errorf("a reader that left is still in epoch %d", e)
		}
	}
}

// A reader in the middle of a lookup keeps what it may look at, however much is
// freed meanwhile.
func TestAStalledReaderDelaysRecyclingOnly(t *testing.T) {
	s := newStory(t)
	s.apply(storePrompt(1))
	s.depth(1)
	epoch := &s.s.ticket.slot.epoch
	epoch.Store(s.x.tree.readers.epoch.Load()) // stalls inside a lookup
	for i := 2; i < 600; i++ {
		s.apply(storePrompt(i), removed(0, handles(i, 8)...))
	}
	if got := len(s.x.tree.freeRuns); got != 0 {
		t.Errorf("%d runs were recycled under a reader", got)
	}
	epoch.Store(0)
	for i := 600; i < 1400; i++ {
		s.apply(storePrompt(i), removed(0, handles(i, 8)...))
	}
	if got := len(s.x.tree.waiting); got > 2*collectAt {
		t.Errorf("%d things still wait after the reader left", got)
	}
	if got := s.depth(1); got != 8 {
		t.Errorf("%d blocks, want 8", got)
	}
}

// Room at the end of a run that was in use before must not be used again: a
// reader may still compare what was there.
func TestWhatAReaderComparesNeverChanges(t *testing.T) {
	s := newStory(t)
	e := Event{Kind: Stored, BlockSize: 1}
	for i := range uint32(20) {
		e.Tokens = append(e.Tokens, i)
		e.Hashes = append(e.Hashes, uint64(i+1))
	}
	s.apply(e)
	tr := &s.x.tree
	id := tr.find(HashTokens(nil, 0, e.Tokens, 1)[0])
	w0 := tr.run(id).w0.Load()
	words := tr.arena.words(baseOf(w0), lenOf(w0))
	before := append([]uint64(nil), words...)

	s.depth(1)
	epoch := &s.s.ticket.slot.epoch
	epoch.Store(tr.readers.epoch.Load()) // a reader in a lookup has loaded w0
	for cut := 18; cut > 2; cut -= 3 {
		s.apply(removed(0, e.Hashes[cut:]...))
		for n := range 40 {
			h := uint64(1000 + cut*100 + n)
			s.apply(Event{Kind: Stored, BlockSize: 1, HasParent: true, Parent: uint64(cut), Tokens: []uint32{uint32(h)}, Hashes: []uint64{h}})
			s.apply(removed(0, h))
		}
	}
	for i := range before {
		if words[i] != before[i] {
			t.Fatalf("block %d of a run changed under a reader", i)
		}
	}
}
