package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman/admission"
	"pointsman/picker"
)

// part is what a plugin does, in terms of this program.
type part uint8

const (
	partBuiltIn       part = iota // done here without being asked for
	partIgnored                   // known, and without effect
	partQueue                     // prices load
	partUsage                     // prices the use of KV memory
	partPrefix                    // prices what is not cached
	partLatency                   // prices time
	partSession                   // keeps conversations together
	partRandom                    // picks any
	partBest                      // picks the best
	partPrefixDecider             // does without the prefill leg for short rests
	partConcurrency               // bounds requests in flight per endpoint
)

type knownPlugin struct {
	part part
	note string // why it has no effect
}

// pluginTypes are the plugins of GIE 1.5 and llm-d 0.9 that are understood
// (docs/inferencepool.md has the same table for people).
var pluginTypes = map[string]knownPlugin{ //nolint:gochecknoglobals // an immutable table
	"queue-scorer":                 {part: partQueue},
	"running-requests-size-scorer": {part: partQueue},
	"active-request-scorer":        {part: partQueue},
	"load-aware-scorer":            {part: partQueue},
	"token-load-scorer":            {part: partQueue},
	"kv-cache-utilization-scorer":  {part: partUsage},
	"prefix-cache-scorer":          {part: partPrefix},
	"precise-prefix-cache-scorer":  {part: partPrefix},
	"latency-scorer":               {part: partLatency},
	"predicted-latency-scorer":     {part: partLatency},
	"session-affinity-scorer":      {part: partSession},
	"session-affinity-filter":      {part: partSession},
	"lora-affinity-scorer":         {partIgnored, "requests for an adapter go to the workers that list it"},
	"no-hit-lru-scorer":            {partIgnored, "equal costs are spread over the least loaded"},

	"max-score-picker":       {part: partBest},
	"weighted-random-picker": {partIgnored, "the best is picked, and near-ties are spread"},
	"random-picker":          {part: partRandom},

	"single-profile-handler":               {},
	"disagg-profile-handler":               {},
	"pd-profile-handler":                   {},
	"data-parallel-profile-handler":        {},
	"decode-filter":                        {},
	"prefill-filter":                       {},
	"prefix-based-pd-decider":              {part: partPrefixDecider},
	"always-disagg-pd-decider":             {},
	"disagg-headers-handler":               {},
	"prefill-header-handler":               {},
	"prefix-cache-affinity-filter":         {partIgnored, "the cost of what is not cached does it"},
	"label-selector-filter":                {partIgnored, "the pool's selector says which Pods there are"},
	"by-label-selector":                    {partIgnored, "the pool's selector says which Pods there are"},
	"by-label":                             {partIgnored, "the pool's selector says which Pods there are"},
	"header-based-testing-filter":          {partIgnored, "--conformance-mode does it"},
	"approx-prefix-cache-producer":         {},
	"precise-prefix-cache-producer":        {},
	"token-producer":                       {},
	"tokenizer":                            {},
	"inflight-load-producer":               {},
	"predicted-latency-producer":           {},
	"session-id-producer":                  {},
	"metrics-data-source":                  {partIgnored, "engines are asked where a scorer of KV memory or a missing forwarder wants it"},
	"core-metrics-extractor":               {partIgnored, "the names of vLLM and of SGLang are both understood"},
	"models-data-source":                   {},
	"models-extractor":                     {},
	"k8s-notification-source":              {},
	"endpoint-notification-source":         {},
	"utilization-detector":                 {partIgnored, "--fc-mode and its bounds say when requests wait"},
	"concurrency-detector":                 {part: partConcurrency},
	"openai-parser":                        {},
	"anthropic-parser":                     {},
	"passthrough-parser":                   {},
	"fcfs-ordering-policy":                 {},
	"global-strict-fairness-policy":        {},
	"round-robin-fairness-policy":          {},
	"static-usage-limit-policy":            {},
	"request-attribute-reporter":           {partIgnored, "usage is told by /metrics"},
	"latency-slo-admitter":                 {partIgnored, "--fc-mode and its bounds say what is refused"},
	"probabilistic-admitter":               {partIgnored, "--fc-mode and its bounds say what is refused"},
	"destination-endpoint-served-verifier": {partIgnored, "--conformance-mode does it"},
}

func pluginNames() []string { return slices.Sorted(maps.Keys(pluginTypes)) }

// profiles takes the policy from the profile that ordinary requests are scored
// by: the one named default or decode, else the first.
func (m *mapping) profiles(all []pickerProfile) {
	if len(all) == 0 {
		return
	}
	main := &all[0]
	for i := range all {
		if all[i].Name == "default" || all[i].Name == "decode" {
			main = &all[i]
			break
		}
	}
	for i := range all {
		if &all[i] != main {
			m.note("profile %q is not scored by weights of its own: those of %q count for all", all[i].Name, main.Name)
		}
	}
	weights := map[part]float64{}
	found := map[part]string{}
	for _, ref := range main.Plugins {
		p, ok := m.plugins[ref.PluginRef]
		if !ok {
			continue
		}
		weight := 1.0
		if ref.Weight != nil {
			weight = *ref.Weight
		}
		if weight < 0 {
			m.fault("plugin %q: weight %g is below 0", ref.PluginRef, weight)
		}
		kind := pluginTypes[p.Type].part
		weights[kind] += weight
		found[kind] = p.Name
	}
	m.policy(main.Name, weights, found)
}

// policy says which of our policies the scorers and pickers of a profile are most
// like.
func (m *mapping) policy(profile string, weights map[part]float64, found map[part]string) {
	scored := found[partQueue] != "" || found[partUsage] != "" || found[partPrefix] != ""
	from := "profile " + profile
	switch {
	case found[partRandom] != "":
		m.set("router-policy", picker.Random, from)
	case found[partLatency] != "":
		m.set("router-policy", picker.LeastLatency, from)
		if scored {
			m.note("profile %q: the weights beside its latency scorer have no effect, since all costs are in milliseconds", profile)
		}
	case scored:
		m.set("router-policy", picker.LLMD, from)
		m.set("llm-d-weights", fmt.Sprintf("%g,%g,%g", weights[partQueue], weights[partUsage], weights[partPrefix]), from)
	default:
		m.set("router-policy", picker.Random, from)
	}
}

// control takes the flow control, which its feature gate turns on.
func (m *mapping) control(f *pickerFile) {
	on := slices.Contains(f.FeatureGates, "flowControl")
	for _, gate := range f.FeatureGates {
		if gate != "flowControl" {
			m.note("feature gate %q has no effect", gate)
		}
	}
	if !on {
		if f.FlowControl != nil {
			m.note("flowControl has no effect without its feature gate")
		}
		return
	}
	m.set("fc-mode", "enforce", "featureGates")
	m.set("fc-max-queue-depth", strconv.Itoa(admission.MaxDepth), "featureGates")
	fc := f.FlowControl
	if fc == nil {
		return
	}
	if fc.MaxRequests != "" {
		m.quantity("fc-max-queue-depth", "flowControl.maxRequests", fc.MaxRequests, admission.MaxDepth)
	}
	if fc.MaxBytes != "" {
		m.quantity("queue-max-bytes", "flowControl.maxBytes", fc.MaxBytes, 1<<50)
	}
	if fc.DefaultRequestTTL != "" {
		d, err := time.ParseDuration(fc.DefaultRequestTTL)
		if err != nil {
			m.fault("flowControl.defaultRequestTTL: %w", err)
			return
		}
		m.set("fc-max-queue-wait-ms", strconv.FormatInt(min(d, admission.MaxWait).Milliseconds(), 10), "flowControl.defaultRequestTTL")
	}
	for _, key := range slices.Sorted(maps.Keys(fc.Rest)) {
		m.note("flowControl.%s has no effect: all priorities share one queue, the highest first", key)
	}
}

// quantity takes a Kubernetes quantity, of at most most.
func (m *mapping) quantity(setting, from, text string, most int64) {
	n, err := quantity(text)
	if err != nil {
		m.fault("%s: %w", from, err)
		return
	}
	if n > most {
		m.note("%s: %s is more than there can be here, %d", from, text, most)
	}
	m.set(setting, strconv.FormatInt(min(n, most), 10), from)
}

// quantity reads a whole Kubernetes quantity: a number with a decimal or binary
// suffix.
func quantity(text string) (int64, error) {
	digits := strings.TrimRight(text, "kKMGTi")
	n, err := strconv.ParseFloat(digits, 64)
	factor, ok := map[string]float64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}[text[len(digits):]]
	if err != nil || !ok || n < 0 || n*factor > 1<<53 {
		return 0, fmt.Errorf("%q is no quantity such as 100, 1k or 1Gi", text)
	}
	return int64(n * factor), nil
}

// whole returns a parameter that is a whole number.
func whole(v any) (int, bool) {
	switch n := v.(type) {
	case int:
		return n, true
	case float64:
		return int(n), n == float64(int(n))
	}
	return 0, false
}
