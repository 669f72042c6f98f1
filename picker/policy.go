package picker

import (
	"fmt"
	"strings"

	"pointsman/scorer"
)

// The policies of this build.
const (
	KVAware    = "kv-aware"    // Infera's formula: tokens to prefill, weighted, plus load
	RoundRobin = "round-robin" // whoever waited longest
	LeastLoad  = "least-load"  // fewest requests in flight, then fewest tokens
)

// Policies returns the names that [Config].Policy takes.
func Policies() []string { return []string{KVAware, RoundRobin, LeastLoad} }

// policy is a sum of weighted scorers over the same columns.
type policy struct {
	name  string
	cache bool // reads the index and steers by it
	terms []term
}

// term is one scorer; its weight depends on the request.
type term struct {
	name   string
	score  scorer.Func
	weight func(w weights) float64
}

// weights is what a request's role, retention and modality make of the
// configured overlap weight. (Infera kv_event_aware.py: w_text, w_mm.)
type weights struct {
	text  float64
	image float64
}

func one(weights) float64 { return 1 }

// policyOf returns the named policy, or an error that lists the names.
func policyOf(name string) (policy, error) {
	switch name {
	case KVAware:
		return policy{name: name, cache: true, terms: []term{
			{"kv-overlap", scorer.KVOverlap, func(w weights) float64 { return w.text }},
			{"image", scorer.Image, func(w weights) float64 { return w.image }},
			{"load", scorer.Load, one},
		}}, nil
	case RoundRobin:
		return policy{name: name, terms: []term{{"rotation", scorer.Rotation, one}}}, nil
	case LeastLoad:
		return policy{name: name, terms: []term{{"in-flight", scorer.InFlight, one}}}, nil
	}
	return policy{}, fmt.Errorf("policy %q is unknown: want one of %s", name, strings.Join(Policies(), ", "))
}

// weigh returns the weights of req on a leg whose overlap weight is base.
func weigh(base float64, req *Request) weights {
	if req.ByLoad {
		return weights{}
	}
	switch req.Retention {
	case RetentionLong:
		base *= 2
	case RetentionNone:
		base *= 0.1
	case RetentionUnset, RetentionShort:
	}
	w := weights{text: base, image: base}
	if req.Multimodal {
		w.text = 0 // the router cannot see an image's tokens: equal text proves nothing
	}
	return w
}
