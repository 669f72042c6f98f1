package extproc

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strconv"

	"pointsman/prompt"
)

// guess tells the API of a request whose path the gateway does not show.
func guess(body []byte) prompt.Kind {
	if bytes.Contains(body, []byte(`"prompt"`)) {
		return prompt.Completions
	}
	return prompt.Chat
}

// rewrite makes the scanned request one for the model that stands in for the one
// it names: the pool's rewrites say which, else the header of the protocol. The
// body follows when the pick is made; until then it has views.
func (x *exchange) rewrite() {
	target := x.renamed
	x.renamed = ""
	if x.scan.Model == "" {
		return
	}
	if to, rule, ok := x.s.deps.Objectives.Rewritten(x.scan.Model, rand.Float64()); ok { //nolint:gosec // shares traffic, keeps no secret
		target = to
		x.s.metrics.rewritten.WithLabelValues(rule).Inc()
	} else if target != "" {
		x.s.metrics.rewritten.WithLabelValues("").Inc()
	}
	if target == "" || target == x.scan.Model {
		return
	}
	x.renamed = target
	x.scan.Rename(target)
}

// rename puts the model that stands in into the body, and the body's new length
// into the headers. It reports whether it did.
func (x *exchange) rename() bool {
	from, to, ok := x.scan.ModelAt()
	if x.renamed == "" || !ok {
		return false
	}
	name, err := json.Marshal(x.renamed)
	if err != nil { // strings always marshal
		return false
	}
	x.body.splice(from, to, name)
	x.route.extra = append(x.route.extra, header{"content-length", strconv.Itoa(x.body.size)})
	return true
}

// servedForTest is what the conformance suite wants to read in a response.
func servedForTest(m *message) string {
	if m.metadata != nil {
		if lb, found, err := lookup(m.metadata, namespaceLB); err == nil && found {
			if served := structString(lb, HeaderServed); len(served) > 0 {
				return string(served)
			}
		}
	}
	return "fail: the gateway does not tell which endpoint served (" + namespaceLB + ", " + HeaderServed + ")"
}
