package scorer_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pointsman/scorer"
)

func ExampleKVOverlap() {
	in := &scorer.Input{Miss: []float64{160, 32}} // a cold and a warm worker
	cost := make([]float64, in.Len())
	scorer.KVOverlap(in, 20, cost)
	fmt.Println(cost)
	// Output: [3200 640]
}

func ExampleLoad() {
	in := &scorer.Input{
		Miss:   make([]float64, 2),
		Active: []float64{96, 16},
		Recent: []float64{32, 0},
	}
	cost := make([]float64, in.Len())
	scorer.Load(in, 1, cost)
	fmt.Println(cost)
	// Output: [128 16]
}

// columns has a different value in every cell.
func columns(n int) *scorer.Input {
	in := &scorer.Input{Unit: 16, Prompt: 5000, FleetPace: 0.5, Answer: 170}
	in.Resize(n, scorer.All)
	for k, c := range []*[]float64{
		&in.Miss, &in.Hit, &in.Missing, &in.Active, &in.Recent, &in.Turn,
		&in.Requests, &in.Waiting, &in.Decoders, &in.Context,
		&in.Held, &in.Queue, &in.Work, &in.Pace, &in.Queued, &in.Usage, &in.Stored, &in.Draw, &in.Coming,
	} {
		for i := range *c {
			(*c)[i] = float64(100*(k+1) + i)
		}
	}
	return in
}

func TestEachScorerAddsItsPrice(t *testing.T) {
	tests := []struct {
		name   string
		weight float64
		want   []float64 // for rows 0 and 1, on top of 1000
	}{
		{"kv-overlap", 1, []float64{100, 101}},
		{"kv-overlap", 2.5, []float64{250, 252.5}},
		{"kv-overlap", 0, []float64{0, 0}},
		{"image", 1, []float64{300 * 48 * 16, 301 * 48 * 16}},
		{"image", 0.5, []float64{300 * 24 * 16, 301 * 24 * 16}},
		{"load", 1, []float64{400 + 500, 401 + 501}},
		{"load", 3, []float64{2700, 2706}},
		{"in-flight", 1, []float64{700, 701}},
		{"rotation", 1, []float64{600, 601}},

		{"waiting", 2, []float64{2 * 1200 * 1400, 2 * 1201 * 1401}},
		{"prefill", 1, []float64{1300 * 1400, 1301 * 1401}},
		{"later", 1.5, []float64{1.5 * 1300 * 0.5, 1.5 * 1301 * 0.5}},
		{"stalled", 0.05, []float64{0.05 * 2 * 700 * 1300 * 0.5, 0.05 * 2 * 701 * 1301 * 0.5}}, // answers of half the usual length
		{"resident", 0.01, []float64{1.7 * (1000 + 1900), 1.7 * (1001 + 1901)}},
		{"running", 2, []float64{340 * 700, 340 * 701}},
		{"transfer", 0.01, []float64{48, 47.99}},

		{"dynamo", 1, []float64{800 + 5000 - 1100 + 400 + 5000, 801 + 5000 - 1101 + 401 + 5000}},
		{"dynamo-lmetric", 1, []float64{4700 * (400 + 5000 + 16), 4700 * (401 + 5000 + 16)}},
		{"llm-d-queue", 2, []float64{0, 2}},
		{"llm-d-usage", 2, []float64{2 * 1600, 2 * 1601}},
		{"llm-d-prefix", 3, []float64{3 * (1 - 1100.0/5000), 3 * (1 - 1101.0/5000)}},
		{"sglang", 1, []float64{1700, 1701}}, // no match is long enough: the smallest tree
		{"ring", 1, []float64{1800, 1801}},   // both are within the bound
	}
	covered := map[string]bool{}
	for _, tt := range tests {
		covered[tt.name] = true
		t.Run(fmt.Sprintf("%s times %g", tt.name, tt.weight), func(t *testing.T) {
			score, err := scorer.New(tt.name)
			if err != nil {
				t.Fatal(err)
			}
			in, before := columns(2), columns(2)
			cost := []float64{1000, 1000}
			score(in, tt.weight, cost)
			for i, want := range tt.want {
				if got := cost[i] - 1000; math.Abs(got-want) > 1e-9 {
					t.Errorf("row %d: added %g, want %g", i, got, want)
				}
			}
			if fmt.Sprint(in) != fmt.Sprint(before) {
				t.Error("it changed its input")
			}
			score(columns(0), tt.weight, nil) // no candidates: nothing to do
			if n := testing.AllocsPerRun(100, func() { score(in, tt.weight, cost) }); n != 0 {
				t.Errorf("%g allocations", n)
			}
		})
	}
	for name := range scorer.Builtin {
		if !covered[name] {
			t.Errorf("scorer %q has no test", name)
		}
	}
}

func TestNewListsTheNames(t *testing.T) {
	_, err := scorer.New("kv-overlp")
	if err == nil {
		t.Fatal("an unknown name is accepted")
	}
	for name := range scorer.Builtin {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not among the names in: %v", name, err)
		}
	}
}

func TestInputKeepsItsMemory(t *testing.T) {
	src, dst := columns(300), columns(2)
	dst.CopyFrom(src)
	if fmt.Sprint(dst) != fmt.Sprint(src) {
		t.Error("a copy differs")
	}
	src.Miss[7] = -1
	if dst.Miss[7] == -1 {
		t.Error("a copy shares memory with its source")
	}
	if n := testing.AllocsPerRun(100, func() {
		dst.Resize(10, scorer.All)
		dst.CopyFrom(src)
		dst.Clear()
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
	if dst.Len() != 300 || slices.Max(dst.Context) != 0 {
		t.Errorf("after Clear: %d rows, largest %g", dst.Len(), slices.Max(dst.Context))
	}
}

func BenchmarkThreeScorers200(b *testing.B) {
	in := columns(200)
	cost := make([]float64, in.Len())
	b.ReportAllocs()
	for b.Loop() {
		clear(cost)
		scorer.KVOverlap(in, 20, cost)
		scorer.Image(in, 1, cost)
		scorer.Load(in, 1, cost)
	}
}
