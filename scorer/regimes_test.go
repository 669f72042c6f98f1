package scorer_test

import (
	"slices"
	"testing"

	"pointsman/scorer"
)

// Scorers that compare candidates go by those that can be chosen.
func TestRegimesOfOtherRouters(t *testing.T) {
	tests := []struct {
		name  string
		score scorer.Func
		in    scorer.Input
		want  []float64
	}{
		{
			"sglang: the longest match", scorer.SGLang,
			scorer.Input{Prompt: 100, Requests: []float64{64, 0}, Held: []float64{31, 0}, Stored: []float64{9, 0}, Out: make([]bool, 2)},
			[]float64{69, 100},
		},
		{
			"sglang: a match of less than a third is none", scorer.SGLang,
			scorer.Input{Prompt: 100, Requests: []float64{64, 0}, Held: []float64{30, 0}, Stored: []float64{9, 4}, Out: make([]bool, 2)},
			[]float64{9, 4},
		},
		{
			"sglang: out of balance, whatever the match", scorer.SGLang,
			scorer.Input{Prompt: 100, Requests: []float64{65, 0}, Held: []float64{100, 0}, Out: make([]bool, 2)},
			[]float64{65, 0},
		},
		{
			"sglang: many more, but not half as many again", scorer.SGLang,
			scorer.Input{Prompt: 100, Requests: []float64{300, 200}, Held: []float64{100, 0}, Out: make([]bool, 2)},
			[]float64{0, 100},
		},
		{
			"sglang: who cannot be chosen is not compared", scorer.SGLang,
			scorer.Input{Prompt: 100, Requests: []float64{3, 3, 500}, Held: []float64{0, 0, 100}, Stored: []float64{1, 2, 3}, Out: []bool{false, false, true}},
			[]float64{1, 2, 3},
		},
		{
			"ring: the nearest below the bound", scorer.Ring, // ceil(1.25 * 8 / 3) = 4 with the request itself
			scorer.Input{Requests: []float64{4, 3, 0}, Draw: []float64{.1, .2, .3}, Out: make([]bool, 3)},
			[]float64{1.1, .2, .3},
		},
		{
			"llm-d: all queues equal", scorer.LLMDQueue,
			scorer.Input{Queued: []float64{7, 7, 900}, Out: []bool{false, false, true}},
			[]float64{0, 0, 0},
		},
		{
			"llm-d: between the shortest and the longest", scorer.LLMDQueue,
			scorer.Input{Queued: []float64{2, 4, 6, 900}, Out: []bool{false, false, false, true}},
			[]float64{0, .5, 1, 224.5},
		},
		{
			"llm-d: no more of a prompt than the whole", scorer.LLMDPrefix,
			scorer.Input{Prompt: 100, Held: []float64{25, 112}, Out: make([]bool, 2)},
			[]float64{.75, 0},
		},
		{
			"dynamo: never below what is decoded", scorer.Dynamo,
			scorer.Input{Prompt: 100, Held: []float64{112}, Waiting: []float64{0}, Active: []float64{50}, Out: make([]bool, 1)},
			[]float64{150},
		},
	}
	for _, tt := range tests {
		cost := make([]float64, len(tt.want))
		if tt.score(&tt.in, 1, cost); !slices.Equal(cost, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, cost, tt.want)
		}
	}
}
