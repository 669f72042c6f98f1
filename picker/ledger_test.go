package picker

import (
	"math/rand/v2"
	"testing"

	"pointsman/kvindex"
)

// chain returns a prompt of n blocks that follows path: prompts share as many
// hashes as their paths do, and no others.
func chain(path []byte) []kvindex.Hash {
	hs := make([]kvindex.Hash, len(path))
	h := uint64(0x243f6a8885a308d3)
	for i, b := range path {
		h = (h ^ (uint64(b) + 1)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		hs[i] = h
	}
	return hs
}

// count restates the ledger: a map of blocks.
type count map[kvindex.Hash]int

func (c count) add(hs []kvindex.Hash, by int) {
	for _, h := range hs {
		if c[h] += by; c[h] == 0 {
			delete(c, h)
		}
	}
}

func checkLedger(t *testing.T, l *ledger, c count, size int) {
	t.Helper()
	if got, want := l.blocks, int64(len(c)); got != want {
		t.Fatalf("%d distinct blocks, want %d", got, want)
	}
	if got, want := l.tokens, int64(len(c)*size); got != want {
		t.Fatalf("%d tokens, want %d", got, want)
	}
}

func TestLedgerCountsDistinctBlocks(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l ledger
		var pool nodePool
		c := count{}
		var held []*node
		for range 200 {
			if len(held) > 0 && rng.IntN(5) < 2 {
				k := rng.IntN(len(held))
				c.add(held[k].hashes, -1)
				l.drop(held[k], &pool)
				held[k] = held[len(held)-1]
				held = held[:len(held)-1]
			} else {
				path := make([]byte, 1+rng.IntN(1+rng.IntN(40)))
				for i := range path {
					path[i] = byte(rng.IntN(1 + rng.IntN(2))) // mostly one branch
				}
				hs := chain(path)
				c.add(hs, 1)
				held = append(held, l.add(hs, 16, &pool))
			}
			checkLedger(t, &l, c, 16)
		}
		for _, n := range held {
			l.drop(n, &pool)
		}
		if l.blocks != 0 || l.tokens != 0 || len(l.nodes) != 0 {
			t.Fatalf("seed %d: at the end %d blocks, %d tokens, %d prompts", seed, l.blocks, l.tokens, len(l.nodes))
		}
	}
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte{3, 0, 0, 0, 2, 0, 1, 0x80, 4, 1, 1, 1, 1, 0x81})
	f.Fuzz(func(t *testing.T, ops []byte) {
		var l ledger
		var pool nodePool
		c := count{}
		var held []*node
		for len(ops) > 0 {
			op := int(ops[0])
			ops = ops[1:]
			if op >= 0x80 {
				if len(held) > 0 {
					k := op % len(held)
					c.add(held[k].hashes, -1)
					l.drop(held[k], &pool)
					held = append(held[:k], held[k+1:]...)
				}
			} else if n := min(op, len(ops)); n > 0 {
				hs := chain(ops[:n])
				ops = ops[n:]
				c.add(hs, 1)
				held = append(held, l.add(hs, 3, &pool))
			}
			checkLedger(t, &l, c, 3)
		}
	})
}

func TestCommonPrefix(t *testing.T) {
	long := make([]byte, 300)
	for k := range 300 {
		other := make([]byte, 300)
		for i := k; i < 300; i++ {
			other[i] = 1
		}
		if got := commonPrefix(chain(long), chain(other)); got != k {
			t.Errorf("prompts that part at %d share %d", k, got)
		}
		if got := commonPrefix(chain(long), chain(long[:k])); got != k {
			t.Errorf("a beginning of %d shares %d", k, got)
		}
	}
}

func TestLedgerTellsPromisedFromReal(t *testing.T) {
	path := func(s string) []kvindex.Hash { return chain([]byte(s)) }
	type inFlight struct {
		prompt  string
		pending int
		real    int
	}
	tests := []struct {
		name   string
		flying []inFlight
		prompt string
		depth  int
		want   int
	}{
		{"nothing in flight: all is real", nil, "aaaa", 4, 4},
		{"the same prompt, pending: all is promised", []inFlight{{"aaaa", 1, 0}}, "aaaa", 4, 0},
		{"the same prompt, answered: all is real", []inFlight{{"aaaa", 0, 4}}, "aaaa", 4, 4},
		{"a shared beginning, pending", []inFlight{{"aabb", 1, 0}}, "aacc", 2, 0},
		{"half of it was there before", []inFlight{{"aaaa", 1, 2}}, "aaaa", 4, 2},
		{"more is there than anyone promised", []inFlight{{"aabb", 1, 0}}, "aacc", 4, 4},
		{"one pending, another with the same beginning answered", []inFlight{{"aabb", 1, 0}, {"aadd", 0, 4}}, "aacc", 2, 2},
		{"an answered one shares less", []inFlight{{"aaab", 1, 0}, {"aadd", 0, 4}}, "aaac", 3, 2},
		{"nothing is believed to be there", []inFlight{{"aaaa", 1, 0}}, "aaaa", 0, 0},
		{"strangers say nothing", []inFlight{{"xxxx", 1, 0}}, "aaaa", 4, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var l ledger
			var pool nodePool
			for _, f := range tt.flying {
				n := l.add(path(f.prompt), 16, &pool)
				n.pending, n.real = f.pending, f.real
			}
			if got := l.real(path(tt.prompt), tt.depth); got != tt.want {
				t.Errorf("%d real blocks, want %d", got, tt.want)
			}
		})
	}
}

func TestImagesAreBounded(t *testing.T) {
	var m images
	for k := range uint64(1000) {
		m.saw([]uint64{k, 0}) // 0 is used all the time
	}
	if len(m.at) != maxImages {
		t.Errorf("%d images kept, want %d", len(m.at), maxImages)
	}
	if got := m.missing([]uint64{0, 999, 900}); got != 0 {
		t.Errorf("%d of the last used are missing", got)
	}
	if got := m.missing([]uint64{1, 500, 744}); got != 3 {
		t.Errorf("%d of the long unused are missing, want 3", got)
	}
}

func BenchmarkLedger100InFlight(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	var l ledger
	var pool nodePool
	prompt := func() []kvindex.Hash {
		path := make([]byte, 256)
		for i := 32; i < 256; i++ {
			path[i] = byte(rng.IntN(4))
		}
		return chain(path)
	}
	for range 100 {
		l.add(prompt(), 16, &pool)
	}
	hs := prompt()
	b.ReportAllocs()
	for b.Loop() {
		l.drop(l.add(hs, 16, &pool), &pool)
	}
}
