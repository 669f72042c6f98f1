package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman/picker"
)

// Policy is one of the picker's policies as a run uses it.
type Policy struct {
	Label  string  // in results
	Name   string  // one of [picker.Policies]
	Weight float64 // kv-overlap weight, for the policies that have one

	// Scrape is how often the routers ask each engine for its queue and its memory
	// in use; 0 for never.
	Scrape time.Duration
	// Guess leaves KV events out: the index believes that a worker holds what was
	// sent to it. That is how routers without events know caches.
	Guess Guess
}

// Guess is how much of what was sent to a worker is believed to be there still.
type Guess uint8

// The guesses.
const (
	Events  Guess = iota // none: KV events tell
	AsCache              // as many blocks as the worker's cache has, the last used
	All                  // all: a tree that is trimmed long after the engine's cache was
)

// Labels of the policies that goals are set in.
const (
	InferaW20 = "infera_w20"
	InferaW1  = "infera_w1"
	DynamoFor = "dynamo"
	LMetric   = "lmetric"
	LLMD50ms  = "llmd_50ms"
	SGLangFor = "sglang"
	Ours      = "least_latency"
)

// peers are the policies by label that are more than a name of the picker's.
func peers() []Policy {
	return []Policy{
		{Label: Ours, Name: "least-latency"},
		{Label: InferaW20, Name: picker.KVAware, Weight: 20},
		{Label: InferaW1, Name: picker.KVAware, Weight: 1},
		{Label: DynamoFor, Name: "dynamo"},
		{Label: LMetric, Name: "dynamo-lmetric"},
		{Label: LLMD50ms, Name: "llm-d", Scrape: 50 * time.Millisecond, Guess: AsCache},
		{Label: SGLangFor, Name: "sglang", Guess: All},
	}
}

// PolicyNames returns what [ParsePolicy] takes: the labels of the goals that this
// build's picker can serve, and the picker's own names.
func PolicyNames() []string {
	var names []string
	for _, p := range peers() {
		if p.known() {
			names = append(names, p.Label)
		}
	}
	for _, name := range picker.Policies() {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (p Policy) known() bool { return slices.Contains(picker.Policies(), p.Name) }

// ParsePolicy reads NAME, or NAME=WEIGHT where a weight counts: see [PolicyNames].
func ParsePolicy(word string) (Policy, error) {
	name, weight, weighted := strings.Cut(word, "=")
	p := Policy{Name: name, Weight: 1}
	for _, known := range peers() {
		if known.Label == name || known.Name == name && known.Name != picker.KVAware {
			p = known
			break
		}
	}
	p.Label = word
	if weighted {
		w, err := strconv.ParseFloat(weight, 64)
		if err != nil || !(w >= 0) {
			return Policy{}, fmt.Errorf("policy %q: %q is no weight", word, weight)
		}
		p.Weight = w
	}
	if !p.known() {
		return Policy{}, fmt.Errorf("policy %q is unknown: want one of %s, or kv-aware=WEIGHT", word, strings.Join(PolicyNames(), ", "))
	}
	if err := p.config().Validate(); err != nil {
		return Policy{}, fmt.Errorf("policy %q: %w", word, err)
	}
	return p, nil
}

// config returns the picker's configuration for p.
func (p Policy) config() picker.Config {
	cfg := picker.DefaultConfig()
	cfg.Policy, cfg.OverlapWeight = p.Name, p.Weight
	cfg.SessionAffinity = picker.SessionsOff // a trace does not say whose conversation a request is of
	return cfg
}

// index makes a setup's index such as p has.
func (p Policy) index(s *Setup) {
	if p.Guess == Events {
		return
	}
	const forever = 1000 * time.Hour
	s.Index.PredictedTTL, s.Index.PresentTTL = forever, forever
	if s.Index.PredictedBlocks = s.CacheBlocks; p.Guess == All {
		s.Index.PredictedBlocks = maxBlocks
	}
}
