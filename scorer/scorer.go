// Package scorer prices the candidates of one pick: the lowest cost wins.
//
// A scorer is a pure function over the columns of an [Input]. It sees no clock,
// lock, network or logger, so that it is tested with a table, allocates nothing,
// and runs the same in the live picker, in shadow and in a replay. Package
// picker fills the columns, adds up the scorers of its policy and chooses.
//
// Costs of kv-aware are in tokens (design decision 7): candidates whose cache pages
// differ in size compare, and on a uniform fleet every cost is Infera's in blocks
// times the block size, so the ranking is the same. Those of least-latency are in
// milliseconds; other routers' formulae have their own scales. A policy does not
// mix them.
//
// To add a scorer, write its file and add one line to [Builtin].
package scorer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Columns says which of the columns of an [Input] there are beside the basic ones.
type Columns uint8

// Groups of columns. Policies say what they read, so that none pays for another's.
const (
	Timed    Columns = 1 << iota // Queue, Pace, Work and Coming
	Compared                     // Held, Queued, Usage, Stored and Draw
	Basic    Columns = 0
	All              = Timed | Compared
)

// Input is the candidates of one pick in columns: row i of every slice is
// candidate i. Scorers must not keep or change it. All slices that are there have
// the same length; values are never negative.
type Input struct {
	Unit      float64 // tokens that stand for one block where a request or image has none of its own
	Prompt    float64 // tokens of the prompt, at least one
	FleetPace float64 // milliseconds per te, as the candidates have on average; of Timed
	Answer    float64 // tokens that an answer is expected to have, at least one; of Timed

	Miss    []float64 // prompt tokens the candidate would have to prefill
	Hit     []float64 // prompt tokens it is believed to hold
	Missing []float64 // images of the request it has not seen
	Active  []float64 // tokens of distinct prompt blocks in flight on it
	Recent  []float64 // tokens it had to prefill lately, decaying by the pick
	Turn    []float64 // number of the pick that last chose it; 0 for never

	Requests []float64 // requests in flight on it
	Waiting  []float64 // tokens to prefill before the last of its requests has its first token
	Decoders []float64 // requests past their first token
	Context  []float64 // prompt tokens of these: what they hold resident
	Out      []bool    // it cannot be chosen: for scorers that compare candidates with each other

	Queue  []float64 // of Timed: te before it could begin
	Work   []float64 // of Timed: te that the request is to it
	Pace   []float64 // of Timed: milliseconds that it takes per te
	Coming []float64 // of Timed: prompt tokens of its requests without a first token, at least

	Held   []float64 // of Compared: Hit, and what a burst has used up of it
	Queued []float64 // of Compared: requests that its engine had not begun when it was last asked; as the ledger has them where it was not
	Usage  []float64 // of Compared: share of its KV memory in use when it was last asked; 0 where it was not
	Stored []float64 // of Compared: tokens that are known to be in its cache
	Draw   []float64 // of Compared: how far it is on the ring from the place of the prompt's beginning, below 1
}

// Len returns the number of candidates.
func (in *Input) Len() int { return len(in.Miss) }

// Resize makes the basic columns and those of want n long, reusing their memory, and
// the others empty. The values are left over from before: the caller sets them all.
func (in *Input) Resize(n int, want Columns) {
	for _, c := range in.columns() {
		*c.values = (*c.values)[:0]
		if c.of == Basic || c.of&want != 0 {
			*c.values = slices.Grow(*c.values, n)[:n]
		}
	}
	in.Out = slices.Grow(in.Out[:0], n)[:n]
}

// Clear zeroes every value.
func (in *Input) Clear() {
	in.Prompt, in.FleetPace, in.Answer = 0, 0, 0
	for _, c := range in.columns() {
		clear(*c.values)
	}
	clear(in.Out)
}

// CopyFrom makes in a copy of src in in's own memory.
func (in *Input) CopyFrom(src *Input) {
	in.Unit, in.Prompt, in.FleetPace, in.Answer = src.Unit, src.Prompt, src.FleetPace, src.Answer
	from := src.columns()
	for i, c := range in.columns() {
		*c.values = append((*c.values)[:0], *from[i].values...)
	}
	in.Out = append(in.Out[:0], src.Out...)
}

// column is one slice and the groups it is in.
type column struct {
	values *[]float64
	of     Columns
}

func (in *Input) columns() [19]column {
	return [...]column{
		{&in.Miss, Basic},
		{&in.Hit, Basic},
		{&in.Missing, Basic},
		{&in.Active, Basic},
		{&in.Recent, Basic},
		{&in.Turn, Basic},
		{&in.Requests, Basic},
		{&in.Waiting, Basic},
		{&in.Decoders, Basic},
		{&in.Context, Basic},
		{&in.Held, Compared},
		{&in.Queue, Timed},
		{&in.Work, Timed},
		{&in.Pace, Timed},
		{&in.Coming, Timed},
		{&in.Queued, Compared},
		{&in.Usage, Compared},
		{&in.Stored, Compared},
		{&in.Draw, Compared},
	}
}

// spread returns the smallest and the largest value of the candidates that can be
// chosen; 0 and 0 without any.
func (in *Input) spread(values []float64) (low, high float64) {
	first := true
	for i, v := range values {
		switch {
		case in.Out[i]:
		case first:
			low, high, first = v, v, false
		default:
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high
}

// Func adds weight times its price of candidate i to cost[i], for every i below
// in.Len(), which is len(cost). It keeps no state.
type Func func(in *Input, weight float64, cost []float64)

// Builtin names every scorer of this build.
var Builtin = map[string]Func{
	"kv-overlap": KVOverlap,
	"image":      Image,
	"load":       Load,
	"in-flight":  InFlight,
	"rotation":   Rotation,

	"waiting":  Waiting,
	"prefill":  Prefill,
	"later":    Later,
	"stalled":  Stalled,
	"resident": Resident,
	"running":  Running,
	"transfer": Transfer,

	"dynamo":         Dynamo,
	"dynamo-lmetric": DynamoLMetric,
	"llm-d-queue":    LLMDQueue,
	"llm-d-usage":    LLMDUsage,
	"llm-d-prefix":   LLMDPrefix,
	"sglang":         SGLang,
	"ring":           Ring,
}

// New returns the named scorer, or an error that lists the names there are.
func New(name string) (Func, error) {
	if f, ok := Builtin[name]; ok {
		return f, nil
	}
	return nil, fmt.Errorf("scorer %q is unknown: want one of %s", name,
		strings.Join(slices.Sorted(maps.Keys(Builtin)), ", "))
}
