package picker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is the picker's tuning.
type Config struct {
	// Policy is one of [Policies]. Default kv-aware.
	Policy string
	// Shadow is a second policy, which is asked of every pick what it would have done
	// and whose answer changes nothing; "" for none, the default.
	Shadow string
	// Latency is the tuning of policy least-latency, and of the estimates that compare
	// a policy with its shadow. The zero value is [DefaultLatency]'s.
	Latency Latency
	// LLMD are the weights of policy llm-d's scorers. The zero value is
	// [DefaultLLMD]'s.
	LLMD LLMDWeights
	// OverlapWeight is what a prompt token to prefill costs against a token in
	// flight; 0 ignores the cache. Default 1, as Infera; under load 10 to 20
	// keeps prefixes together.
	OverlapWeight float64
	// PrefillWeight and DecodeWeight replace OverlapWeight for the prefill and
	// decode leg of a pair; nil for OverlapWeight.
	PrefillWeight *float64
	DecodeWeight  *float64
	// Protocols are the prefill/decode protocols that pairs are formed of; nil for
	// whatever two workers have in common. A worker of another one is never
	// picked.
	Protocols []string
	// PDSkipPrefillTokens lets a decode worker do without the prefill leg when it
	// is believed to hold all but this many tokens of the prompt. It counts for
	// engines that take such a request, which SGLang's decode workers do not.
	// 0, the default, never skips.
	PDSkipPrefillTokens int
	// DestinationPort is the port at which a gateway reaches forwarders, for
	// matching Subset. Default 8000.
	DestinationPort int
	// ExplainRing is how many of the last picks are kept for [Picker.Records];
	// 0 keeps none. Default 256.
	ExplainRing int
	// Caps bound how much a worker has in flight. The zero value does not.
	Caps Caps
	// SessionAffinity is whose requests of one conversation go to the workers that
	// served the one before: off, pd (models with prefill/decode pairs, the
	// default) or all.
	SessionAffinity string
	// SessionTTL is for how long after its last request a conversation is
	// remembered; 0 for 300 s, as LoxiLB's pd_session_ttl_sec. It is no lease on
	// the engine's cache.
	SessionTTL time.Duration
	// ExternalStale is the age from which what [Picker.SetExternal] said fades to
	// the mean of the fleet; 0 for [DefaultExternalStale].
	ExternalStale time.Duration
	// Seed makes the spread over equal costs repeatable; 0 takes a random one.
	Seed uint64
}

// LLMDWeights are the weights of policy llm-d's scorers, as an EndpointPickerConfig has
// them.
type LLMDWeights struct{ Queue, Usage, Prefix float64 }

// DefaultLLMD returns the weights of llm-d's default profile.
func DefaultLLMD() LLMDWeights { return LLMDWeights{Queue: 2, Usage: 2, Prefix: 3} }

// Caps bound the requests in flight on one worker, all of its ranks together.
type Caps struct {
	Worker  int // of a mixed worker; 0 for no limit
	Prefill int // legs of a prefill worker; 0 for no limit
	Decode  int // legs of a decode worker; 0 for no limit
	// Enforce leaves out the workers at their cap. Without it [Decision].OverCap
	// only says that it would have.
	Enforce bool
	// Warmup is how long the cap of a worker that has joined, or come back, takes
	// to grow from a quarter to the whole; 0 for at once.
	Warmup time.Duration
}

// What [Config].SessionAffinity can be.
const (
	SessionsOff = "off"
	SessionsPD  = "pd"
	SessionsAll = "all"
)

// Sessions returns the values that [Config].SessionAffinity takes.
func Sessions() []string { return []string{SessionsOff, SessionsPD, SessionsAll} }

const (
	maxCap            = 100_000
	defaultSessionTTL = 300 * time.Second
)

// DefaultConfig returns Infera's defaults.
func DefaultConfig() Config {
	return Config{
		Policy: KVAware, Latency: DefaultLatency(), LLMD: DefaultLLMD(), OverlapWeight: 1,
		DestinationPort: 8000, ExplainRing: 256, SessionAffinity: SessionsPD,
	}
}

// maxRing bounds the memory that records can take: some 100 bytes for each
// candidate of each, and half as much again with columns that not all policies read.
const maxRing = 65536

// Validate reports every bad field, not only the first.
func (c Config) Validate() error {
	var errs []error
	if _, err := policyOf(c.Policy); err != nil {
		errs = append(errs, err)
	}
	if _, err := policyOf(c.Shadow); err != nil && c.Shadow != "" {
		errs = append(errs, fmt.Errorf("shadow: %w", err))
	}
	if err := c.Latency.Validate(); err != nil {
		errs = append(errs, err)
	}
	weight := func(name string, w float64) {
		if !(w >= 0 && w <= 1e6) {
			errs = append(errs, fmt.Errorf("%s %g: want 0 to 1000000", name, w))
		}
	}
	weight("overlap weight", c.OverlapWeight)
	weight("llm-d's queue weight", c.LLMD.Queue)
	weight("llm-d's usage weight", c.LLMD.Usage)
	weight("llm-d's prefix weight", c.LLMD.Prefix)
	if c.PrefillWeight != nil {
		weight("prefill overlap weight", *c.PrefillWeight)
	}
	if c.DecodeWeight != nil {
		weight("decode overlap weight", *c.DecodeWeight)
	}
	if c.PDSkipPrefillTokens < 0 {
		errs = append(errs, fmt.Errorf("pd skip prefill tokens %d: want 0 (off) or more", c.PDSkipPrefillTokens))
	}
	if c.DestinationPort < 1 || c.DestinationPort > 65535 {
		errs = append(errs, fmt.Errorf("destination port %d: want 1 to 65535", c.DestinationPort))
	}
	if c.ExplainRing < 0 || c.ExplainRing > maxRing {
		errs = append(errs, fmt.Errorf("explain ring %d: want 0 (off) to %d", c.ExplainRing, maxRing))
	}
	if c.SessionAffinity != "" && !slices.Contains(Sessions(), c.SessionAffinity) {
		errs = append(errs, fmt.Errorf("session affinity %q: want one of %s", c.SessionAffinity, strings.Join(Sessions(), ", ")))
	}
	if c.SessionTTL != 0 && (c.SessionTTL < time.Second || c.SessionTTL > 24*time.Hour) {
		errs = append(errs, fmt.Errorf("session time %v: want 0 (300s), or 1s to 24h", c.SessionTTL))
	}
	if c.ExternalStale < 0 || c.ExternalStale > time.Hour {
		errs = append(errs, fmt.Errorf("stale external load %v: want 0 (6s) to 1h", c.ExternalStale))
	}
	return errors.Join(append(errs, c.Caps.validate()...)...)
}

func (c Caps) validate() (errs []error) {
	for name, n := range map[string]int{"worker": c.Worker, "prefill": c.Prefill, "decode": c.Decode} {
		if n < 0 || n > maxCap {
			errs = append(errs, fmt.Errorf("%s cap %d: want 0 (no limit) to %d", name, n, maxCap))
		}
	}
	if c.Warmup < 0 || c.Warmup > time.Hour {
		errs = append(errs, fmt.Errorf("warm-up %v: want 0 (none) to 1h", c.Warmup))
	}
	return errs
}
