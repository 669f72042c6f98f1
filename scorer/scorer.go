// Package scorer prices the candidates of one pick: the lowest cost wins.
//
// A scorer is a pure function over the columns of an [Input]. It sees no clock,
// lock, network or logger, so that it is tested with a table, allocates nothing,
// and runs the same in the live picker, in shadow and in a replay. Package
// picker fills the columns, adds up the scorers of its policy and chooses.
//
// Costs are in tokens (design decision 7): candidates whose cache pages differ
// in size compare, and on a uniform fleet every cost is Infera's in blocks times
// the block size, so the ranking is the same.
//
// To add a scorer, write its file and add one line to [Builtin].
package scorer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Input is the candidates of one pick in columns: row i of every slice is
// candidate i. Scorers must not keep or change it. All slices have the same
// length; values are never negative.
type Input struct {
	Unit float64 // tokens that stand for one block where a request or image has none of its own

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
}

// Len returns the number of candidates.
func (in *Input) Len() int { return len(in.Miss) }

// Resize makes every column n long, reusing its memory. The values are left
// over from before: the caller sets them all.
func (in *Input) Resize(n int) {
	for _, c := range in.columns() {
		*c = slices.Grow((*c)[:0], n)[:n]
	}
}

// Clear zeroes every value.
func (in *Input) Clear() {
	for _, c := range in.columns() {
		clear(*c)
	}
}

// CopyFrom makes in a copy of src in in's own memory.
func (in *Input) CopyFrom(src *Input) {
	in.Unit = src.Unit
	from := src.columns()
	for i, c := range in.columns() {
		*c = append((*c)[:0], *from[i]...)
	}
}

func (in *Input) columns() [10]*[]float64 {
	return [...]*[]float64{
		&in.Miss, &in.Hit, &in.Missing, &in.Active, &in.Recent, &in.Turn,
		&in.Requests, &in.Waiting, &in.Decoders, &in.Context,
	}
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
}

// New returns the named scorer, or an error that lists the names there are.
func New(name string) (Func, error) {
	if f, ok := Builtin[name]; ok {
		return f, nil
	}
	return nil, fmt.Errorf("scorer %q is unknown: want one of %s", name,
		strings.Join(slices.Sorted(maps.Keys(Builtin)), ", "))
}
