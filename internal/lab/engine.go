package lab

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Engine is the time model of one worker (findings/policy.md §1): it works in
// steps, each of which gives every decoding sequence one token and what is left of
// ChunkTokens to prompts, in order of arrival. A step takes
//
//	Step + Σ chunk × (1 + position/Doubling) / Rate + decoders × PerDecoder + their context × PerContext
type Engine struct {
	Rate        float64       // prompt tokens per millisecond at position 0. Default 16
	Step        time.Duration // fixed cost of a step. Default 6 ms
	PerDecoder  time.Duration // per decoding sequence and step. Default 30 µs
	PerContext  time.Duration // per token of context of those and step. Default 40 ns
	Doubling    float64       // position at which a prompt token costs twice as much; 0 for never. Default 50,000
	ChunkTokens int           // tokens of a step. Default 2,048
	MaxSeqs     int           // sequences that run at once; others wait in order. Default 64
}

// presets are engines by name. The first four are the variants of
// findings/policy.md §4; only 16k is calibrated, on Qwen-32B on two H100 by llm-d.
func presets() map[string]Engine {
	base := Engine{
		Rate: 16, Step: 6 * time.Millisecond, PerDecoder: 30 * time.Microsecond,
		PerContext: 40 * time.Nanosecond, Doubling: 50_000, ChunkTokens: 2048, MaxSeqs: 64,
	}
	with := func(change func(*Engine)) Engine {
		e := base
		change(&e)
		return e
	}
	return map[string]Engine{
		"16k":          base,
		"8k":           with(func(e *Engine) { e.Rate = 8 }),
		"chunk-512":    with(func(e *Engine) { e.ChunkTokens = 512 }),
		"chunk-8192":   with(func(e *Engine) { e.ChunkTokens = 8192 }),
		"no-attention": with(func(e *Engine) { e.Doubling = 0 }),
		"128-seqs":     with(func(e *Engine) { e.MaxSeqs = 128 }),
		// The defaults of cmd/simworker, for comparing a replay with a demo.
		"simworker": with(func(e *Engine) { e.Step = 10 * time.Millisecond }),
	}
}

// Presets returns the names that [Preset] takes.
func Presets() []string { return slices.Sorted(maps.Keys(presets())) }

// DefaultPreset is the engine of the findings.
const DefaultPreset = "16k"

// Preset returns the named engine.
func Preset(name string) (Engine, error) {
	if e, ok := presets()[name]; ok {
		return e, nil
	}
	return Engine{}, fmt.Errorf("engine preset %q is unknown: want one of %s", name, strings.Join(Presets(), ", "))
}

// Validate refuses constants that no engine can have, all of them at once.
func (e Engine) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("engine: "+format, args...))
		}
	}
	check(e.Rate > 0 && e.Rate <= 1e5, "prefill rate %g tokens/ms: give more than 0, up to 100000", e.Rate)
	check(e.Step >= 0 && e.Step <= time.Minute, "step of %v: give 0 to 1m", e.Step)
	check(e.PerDecoder >= 0 && e.PerDecoder <= time.Second, "%v per decoder: give 0 to 1s", e.PerDecoder)
	check(e.PerContext >= 0 && e.PerContext <= time.Millisecond, "%v per token of context: give 0 to 1ms", e.PerContext)
	check(e.Step > 0 || e.PerDecoder > 0 || e.PerContext > 0, "decoding takes no time: give a step, or a cost per decoder")
	check(e.Doubling == 0 || e.Doubling >= 1, "doubling at position %g: give 0 (never) or at least 1", e.Doubling)
	check(e.MaxSeqs >= 1 && e.MaxSeqs <= 100_000, "%d sequences at once: give 1 to 100000", e.MaxSeqs)
	check(e.ChunkTokens > e.MaxSeqs, "steps of %d tokens for %d sequences: give more tokens than sequences, else decoding leaves prompts none", e.ChunkTokens, e.MaxSeqs)
	check(e.ChunkTokens <= 10_000_000, "steps of %d tokens: give at most 10000000", e.ChunkTokens)
	return errors.Join(errs...)
}

// slowed returns e with everything taking factor times as long.
func (e Engine) slowed(factor float64) Engine {
	times := func(d time.Duration) time.Duration { return time.Duration(float64(d) * factor) }
	e.Rate /= factor
	e.Step, e.PerDecoder, e.PerContext = times(e.Step), times(e.PerDecoder), times(e.PerContext)
	return e
}

// weigh returns the cost of n prompt tokens from a position on, in tokens at
// position 0.
func (e *Engine) weigh(at, n int) float64 {
	if e.Doubling == 0 {
		return float64(n)
	}
	return float64(n) * (1 + (float64(at)+float64(n)/2)/e.Doubling)
}

// took returns how long a step takes.
func (e *Engine) took(prefill float64, decoders, context int) time.Duration {
	return e.Step + time.Duration(prefill/e.Rate*float64(time.Millisecond)) +
		time.Duration(decoders)*e.PerDecoder + time.Duration(context)*e.PerContext
}
