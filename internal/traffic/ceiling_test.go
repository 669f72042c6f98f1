package traffic

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// naive keeps every prompt whole and compares with each.
type naive struct {
	size int
	seen [][]uint32
}

func (n *naive) add(tokens []uint32) int {
	best := 0
	for _, old := range n.seen {
		same := 0
		for same < len(old)/n.size*n.size && same < len(tokens) && old[same] == tokens[same] {
			same++
		}
		best = max(best, same)
	}
	n.seen = append(n.seen, slices.Clone(tokens))
	return min(best, len(tokens)-1) / n.size * n.size
}

func TestCeilingEqualsComparingWithEveryEarlierPrompt(t *testing.T) {
	for _, size := range []int{1, 3, 16} {
		r := rand.New(rand.NewPCG(7, uint64(size)))
		fast, slow := NewCeiling(size), &naive{size: size}
		var pool [][]uint32
		hit, all := 0, 0
		for i := range 300 {
			var prompt []uint32
			if len(pool) > 0 && r.IntN(3) > 0 { // grow, or branch off, an old one
				old := pool[r.IntN(len(pool))]
				prompt = slices.Clone(old[:r.IntN(len(old)+1)])
			}
			for range r.IntN(40) + 1 {
				prompt = append(prompt, r.Uint32N(3))
			}
			pool = append(pool, prompt)
			got, want := fast.Add(prompt), slow.add(prompt)
			if got != want {
				t.Fatalf("size %d, prompt %d %v: %d tokens, want %d", size, i, prompt, got, want)
			}
			hit, all = hit+want, all+len(prompt)
		}
		if want := float64(hit) / float64(all); fast.Ratio() != want {
			t.Errorf("size %d: ratio %g, want %g", size, fast.Ratio(), want)
		}
	}
}

func TestAWholePromptIsNeverAHit(t *testing.T) {
	c := NewCeiling(4)
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	if got := c.Add(prompt); got != 0 {
		t.Errorf("first: %d tokens, want 0", got)
	}
	if got := c.Add(prompt); got != 4 {
		t.Errorf("again: %d tokens, want 4: the last block must be computed", got)
	}
	if got := c.Add(append(prompt, 9)); got != 8 {
		t.Errorf("longer: %d tokens, want 8", got)
	}
}

func TestPlansOfSmallPromptsHaveTheCeilingOfTheirSharedStart(t *testing.T) {
	plan := generate(t, nil)
	naive, fast := &naive{size: 16}, NewCeiling(16)
	want, got := 0, 0
	for i := range 60 {
		for _, r := range plan.Conversations[i].Requests {
			ids := asTokens(r.Messages)
			want, got = want+naive.add(ids), got+fast.Add(ids)
		}
	}
	if got != want || got == 0 {
		t.Errorf("ceiling of %d tokens, want %d and more than none", got, want)
	}
}
