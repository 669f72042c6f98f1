package picker

import (
	"errors"
	"fmt"
	"time"
)

// Latency is the tuning of policy [LeastLatency]. The zero value is
// [DefaultLatency]'s. Work is in token-equivalents (te): a token counts one, plus one
// for each AttentionTokens that are before it.
type Latency struct {
	// Lambda is the price of the work that a request brings a worker: 1 for its own
	// time, the rest for what it takes from those that come later. Cache affinity
	// comes from it: a prefix is computed elsewhere when its holder's queue is longer
	// than Lambda times that takes. 1 to 20; default 2.5. 3 suits more than 95 % load,
	// 2 less than 50 %.
	Lambda float64
	// Kappa is the price of the same work for each request that is decoded there
	// meanwhile, of answers of [scorer.UsualAnswer] tokens: shorter ones feel a stall
	// more. 0 (ignored) to 1; default 0.06.
	Kappa float64
	// Delta is how much of the slower decoding beside resident context counts. 0
	// (ignored) to 10; default 0.3.
	Delta float64
	// OutputTokens is how long an answer is expected to be, in tokens, before any has
	// ended: see [Decision.Answered]. 1 to 1e6; default 340.
	OutputTokens float64
	// ContextMS is how much one token of resident context makes a decode step longer,
	// in milliseconds. 0 to 1; default 4e-5.
	ContextMS float64
	// SequenceMS is how much one running request makes a decode step longer, in
	// milliseconds; it counts for decode legs. 0 to 10; default 0.03.
	SequenceMS float64
	// TransferRate is how many tokens' KV cache a prefill worker sends a decode worker
	// per millisecond. 0 (takes no time) to 1e6; default 100, some 25 GB/s for a model
	// of 70 billion parameters.
	TransferRate float64
	// AttentionTokens is the position at which a token costs twice what the first one
	// does. 0 (all cost the same) to 1e9; default 50,000.
	AttentionTokens float64
	// StartRate is how many te a worker prefills per millisecond before anything was
	// learned of the fleet. 0.01 to 1e5; default 16.
	StartRate float64
	// Slack is the share above the lowest cost within which the worker with the fewest
	// requests in flight is chosen. 0 to 1; default 0.01.
	Slack float64
}

// DefaultLatency returns the tuning that did best in simulation (docs/policies.md). The
// optimum is flat: Lambda from 2 to 3, Kappa from 0.05 to 0.08 and Delta from 0.2 to 0.4
// are within two percent of each other.
func DefaultLatency() Latency {
	return Latency{
		Lambda: 2.5, Kappa: 0.06, Delta: 0.3, OutputTokens: 340, ContextMS: 4e-5, SequenceMS: 0.03,
		TransferRate: 100, AttentionTokens: 50_000, StartRate: 16, Slack: 0.01,
	}
}

// LatencyField is one number of a [Latency]: its name, what it says, and where it may lie.
type LatencyField struct {
	Name     string // in lower case, with hyphens and its unit
	Usage    string
	Value    *float64
	Min, Max float64
}

// Fields returns the numbers of l, for settings and their check.
func (l *Latency) Fields() []LatencyField {
	return []LatencyField{
		{"lambda", "price of the prefill that a request brings a worker: 1 for its own, the rest for what it takes from later ones", &l.Lambda, 1, 20},
		{"kappa", "price of the same prefill for each request that is decoded there meanwhile; 0 ignores them", &l.Kappa, 0, 1},
		{"delta", "how much of the slower decoding beside resident context counts; 0 ignores it", &l.Delta, 0, 10},
		{"output-tokens", "how many tokens an answer is expected to have, before any has taught it", &l.OutputTokens, 1, 1e6},
		{"context-ms", "milliseconds that a token of resident context adds to a decode step", &l.ContextMS, 0, 1},
		{"sequence-ms", "milliseconds that a running request adds to a decode step; it counts for decode legs", &l.SequenceMS, 0, 10},
		{"transfer-tokens-per-ms", "tokens whose KV cache a prefill worker sends a decode worker per millisecond; 0 takes no time", &l.TransferRate, 0, 1e6},
		{"attention-tokens", "position at which a prompt token costs twice what the first one does; 0 makes all cost the same", &l.AttentionTokens, 0, 1e9},
		{"start-tokens-per-ms", "tokens that a worker is believed to prefill per millisecond before anything was learned", &l.StartRate, slowest, fastest},
		{"slack", "share above the lowest cost within which the worker with the fewest requests in flight is chosen", &l.Slack, 0, 1},
	}
}

// Validate reports every number that is out of its range.
func (l Latency) Validate() error {
	if l == (Latency{}) {
		return nil
	}
	var errs []error
	for _, f := range l.Fields() {
		if v := *f.Value; !(v >= f.Min && v <= f.Max) { // a NaN is not
			errs = append(errs, fmt.Errorf("latency %s %g: want %g to %g", f.Name, v, f.Min, f.Max))
		}
	}
	return errors.Join(errs...)
}

// work returns the te of a prompt of which the first held tokens need no computing. An
// engine computes one token at least.
func (l *Latency) work(held, prompt float64) float64 {
	n := max(1, prompt-held)
	if l.AttentionTokens == 0 {
		return n
	}
	return n * (1 + (held+n/2)/l.AttentionTokens)
}

// What a pick expects to be in its worker's cache is believed for a little longer than
// it takes to be there; then it needs a sign.
const (
	lifetimeFactor = 1.3
	lifetimeFloor  = 500 * time.Millisecond
)

// lifetime returns for how long the prediction of a pick on row i counts, 0 for as long
// as the index holds by itself.
func (s *selection) lifetime(i int) time.Duration {
	if !s.policy.brief || s.receives {
		return 0
	}
	in := &s.in
	ms := (in.Queue[i] + in.Work[i]) * in.Pace[i]
	return lifetimeFloor + time.Duration(lifetimeFactor*ms*float64(time.Millisecond))
}
