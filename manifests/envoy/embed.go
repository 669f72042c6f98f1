// Package envoy carries the sample Envoy bootstraps beside it, so that the demo
// and the end-to-end tests run the very files that the documentation shows.
package envoy

import _ "embed"

// OriginalDst is original-dst.yaml: one endpoint per pick, taken from the header.
//
//go:embed original-dst.yaml
var OriginalDst string

// OverrideHost is override-host.yaml: picks within a list of endpoints, with
// fallbacks and the served endpoint reported back.
//
//go:embed override-host.yaml
var OverrideHost string
