package picker

import (
	"fmt"
	"slices"
	"strings"

	"pointsman/fleet"
	"pointsman/scorer"
)

// The policies of this build. Those named after other routers have their formula over
// the columns that this picker knows, for comparison and for who comes from there:
// see package scorer for the source of each.
const (
	KVAware       = "kv-aware"       // Infera's formula: tokens to prefill, weighted, plus load
	LeastLatency  = "least-latency"  // estimated milliseconds, of the request and of those it delays
	RoundRobin    = "round-robin"    // whoever waited longest
	LeastLoad     = "least-load"     // fewest requests in flight, then fewest tokens
	Random        = "random"         // any
	Dynamo        = "dynamo"         // NVIDIA Dynamo's defaults
	DynamoLMetric = "dynamo-lmetric" // its router_selection_policy=lmetric
	LLMD          = "llm-d"          // llm-d's default profile
	SGLang        = "sglang"         // the SGLang gateway's cache_aware
	BoundedHash   = "bounded-hash"   // consistent hashing of the prompt's beginning, with bounded loads
)

// Policies returns the names that [Config].Policy takes.
func Policies() []string {
	names := make([]string, len(policies))
	for i := range policies {
		names[i] = policies[i].name
	}
	return names
}

// UsesCache reports whether the policy, or its shadow, goes by what is in the workers'
// caches.
func (c *Config) UsesCache() bool {
	for _, name := range [...]string{c.Policy, c.Shadow} {
		if pol, err := policyOf(name); err == nil && pol.cache {
			return true
		}
	}
	return false
}

// policy is a sum of weighted scorers over the same columns.
type policy struct {
	name  string
	unit  string         // of its costs
	reads scorer.Columns // beside the basic ones
	ties  ties
	cache bool // reads the index and steers by it
	fair  bool // heeds promises to a bounded burst only: see selection.herd
	brief bool // predicts for as long as it estimates: see selection.lifetime
	terms []term
}

// ties is which of the cheapest candidates is taken, before any of them is.
type ties uint8

const (
	warmThenIdle ties = iota // one that holds part of the prompt, then the least loaded
	fewest                   // within a slack of the lowest cost, the fewest in flight
	anyOfThem
)

// term is one scorer; its weight depends on the request.
type term struct {
	name   string
	score  scorer.Func
	weight func(w *weights) float64
}

// weights is what a request's role, retention and modality make of the configured
// weights.
type weights struct {
	text  float64 // of the overlap (Infera kv_event_aware.py: w_text, w_mm)
	image float64

	// Of least-latency, in what makes milliseconds of each column; resident and running
	// for each token of the answer.
	waiting, prefill, later, stalled float64
	resident, running, transfer      float64

	queue, usage, prefix float64 // of llm-d
}

func one(*weights) float64 { return 1 }

var policies = [...]policy{ //nolint:gochecknoglobals // an immutable table
	{name: KVAware, unit: "tokens", cache: true, fair: true, terms: []term{
		{"kv-overlap", scorer.KVOverlap, func(w *weights) float64 { return w.text }},
		{"image", scorer.Image, func(w *weights) float64 { return w.image }},
		{"load", scorer.Load, one},
	}},
	{name: LeastLatency, unit: "ms", cache: true, brief: true, reads: scorer.Timed, ties: fewest, terms: []term{
		{"waiting", scorer.Waiting, func(w *weights) float64 { return w.waiting }},
		{"prefill", scorer.Prefill, func(w *weights) float64 { return w.prefill }},
		{"later", scorer.Later, func(w *weights) float64 { return w.later }},
		{"stalled", scorer.Stalled, func(w *weights) float64 { return w.stalled }},
		{"resident", scorer.Resident, func(w *weights) float64 { return w.resident }},
		{"running", scorer.Running, func(w *weights) float64 { return w.running }},
		{"transfer", scorer.Transfer, func(w *weights) float64 { return w.transfer }},
	}},
	{name: RoundRobin, unit: "turns", terms: []term{{"rotation", scorer.Rotation, one}}},
	{name: LeastLoad, unit: "requests", terms: []term{{"in-flight", scorer.InFlight, one}}},
	{name: Random, ties: anyOfThem},
	{name: Dynamo, unit: "tokens", cache: true, reads: scorer.Compared, ties: anyOfThem, terms: []term{
		{"dynamo", scorer.Dynamo, one},
	}},
	{name: DynamoLMetric, unit: "tokens²", cache: true, reads: scorer.Compared, ties: anyOfThem, terms: []term{
		{"dynamo-lmetric", scorer.DynamoLMetric, one},
	}},
	{name: LLMD, unit: "score", cache: true, reads: scorer.Compared, ties: anyOfThem, terms: []term{
		{"llm-d-queue", scorer.LLMDQueue, func(w *weights) float64 { return w.queue }},
		{"llm-d-usage", scorer.LLMDUsage, func(w *weights) float64 { return w.usage }},
		{"llm-d-prefix", scorer.LLMDPrefix, func(w *weights) float64 { return w.prefix }},
	}},
	{name: SGLang, unit: "rank", cache: true, reads: scorer.Compared, ties: anyOfThem, terms: []term{
		{"sglang", scorer.SGLang, one},
	}},
	{name: BoundedHash, unit: "rank", reads: scorer.Compared, ties: anyOfThem, terms: []term{
		{"ring", scorer.Ring, one},
	}},
}

// policyOf returns the named policy, or an error that lists the names.
func policyOf(name string) (*policy, error) {
	i := slices.IndexFunc(policies[:], func(p policy) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("policy %q is unknown: want one of %s", name, strings.Join(Policies(), ", "))
	}
	return &policies[i], nil
}

// weigh returns the weights of req on a leg of the given role; Mixed for none.
func (c *Config) weigh(role fleet.Role, req *Request) weights {
	var w weights
	c.Latency.weigh(&w, role)
	llmd := c.LLMD
	if llmd == (LLMDWeights{}) {
		llmd = DefaultLLMD()
	}
	w.queue, w.usage, w.prefix = llmd.Queue, llmd.Usage, llmd.Prefix
	if req.ByLoad {
		return w
	}
	base := c.weightOf(role)
	switch req.Retention {
	case RetentionLong:
		base *= 2
	case RetentionNone:
		base *= 0.1
	case RetentionUnset, RetentionShort:
	}
	w.text, w.image = base, base
	if req.Multimodal {
		w.text = 0 // the router cannot see an image's tokens: equal text proves nothing
	}
	return w
}

// weigh sets the weights of a leg in time. A prefill leg waits and computes, and nothing
// is decoded there; a decode leg receives what the prompt lacks there, and runs beside
// others. How long a client wants its prompt cached changes no time.
func (l *Latency) weigh(w *weights, role fleet.Role) {
	if role != fleet.Prefill {
		w.resident = l.Delta * l.ContextMS
	}
	if role == fleet.Decode {
		w.running = l.Delta * l.SequenceMS
		if l.TransferRate > 0 {
			w.transfer = 1 / l.TransferRate
		}
		return
	}
	w.waiting, w.prefill, w.later = 1, 1, l.Lambda-1
	if role != fleet.Prefill {
		w.stalled = l.Kappa
	}
}
