package extproc

import (
	"slices"
	"strings"

	"pointsman/reports"
	"pointsman/trust"
)

// Header names of the Endpoint Picker Protocol (Gateway API Inference Extension,
// proposal 004) and of Infera's direct mode (Infera infera/router/direct.py).
const (
	// HeaderAttempts is a forwarder's receipt in its response: of each try the leg
	// and number, the worker, and how it ended, as "d1@worker;refused,d2@other;ok";
	// or "none" for an answer that no worker had a part in.
	HeaderAttempts = "x-infera-attempts"
	// HeaderDestination carries host:port of the picked worker's forwarder.
	HeaderDestination = "x-gateway-destination-endpoint"
	// HeaderServed names, in response metadata, the endpoint that really served.
	HeaderServed = "x-gateway-destination-endpoint-served"
	// HeaderSubset names the endpoints that a pick is confined to.
	HeaderSubset = "x-gateway-destination-endpoint-subset"
	// HeaderWorker carries the ID of the picked (decode or mixed) worker.
	HeaderWorker = "x-worker-instance-id"
	// HeaderPrefill carries the ID of the picked prefill worker of a pair.
	HeaderPrefill = "x-prefill-instance-id"
	// HeaderRank carries the data-parallel rank of the picked worker.
	HeaderRank = "x-data-parallel-rank"
	// HeaderPrefillRank carries the data-parallel rank of the prefill worker.
	HeaderPrefillRank = "x-prefill-data-parallel-rank"
	// HeaderPrefillSkip says that the picked decode worker is to compute the prompt
	// itself; its absence makes a decode worker alone a mistake.
	HeaderPrefillSkip = "x-prefill-skip"
	// HeaderFallback lists the IDs of the workers whose endpoints stand behind the
	// first in the destination: a forwarder that a gateway falls back to serves its
	// own worker, if that is among them (failover.md §2B).
	HeaderFallback = "x-worker-fallback-ids"
	// HeaderTicket vouches for the routing headers; see package trust.
	HeaderTicket = trust.HeaderTicket
	// HeaderRequestID is the request's ID among our own programs. The EPP makes one
	// only when it signs for a request that has none.
	HeaderRequestID = "x-infera-request-id"
	// HeaderFairness, HeaderObjective and HeaderRewrite are inputs of the
	// protocol that are not meant for workers.
	HeaderFairness  = "x-gateway-inference-fairness-id"
	HeaderObjective = "x-gateway-inference-objective"
	HeaderRewrite   = "x-gateway-model-name-rewrite"
)

// Headers of the conformance suite, honoured and set in conformance mode only
// (Gateway API Inference Extension, pkg/lwepp and conformance/).
const (
	headerSelection   = "test-epp-endpoint-selection"
	headerConformance = "x-conformance-test-served-endpoint"
	headerEcho        = "x-echo-set-header" // its echo server answers with the header that this names
)

// Metadata namespaces of the protocol.
const (
	namespaceLB       = "envoy.lb"
	namespaceSubset   = "envoy.lb.subset_hint"
	namespaceExtProc  = "envoy.filters.http.ext_proc"
	attributeUpstream = "upstream.address"
	attributeDetails  = "response.code_details" // who made the response, and why, in Envoy's words
)

// routed is which of the routing headers an answer sets.
type routed uint16

const (
	routedWorker routed = 1 << iota
	routedPrefill
	routedRank
	routedPrefillRank
	routedSkip
	routedFallback
	routedTicket
	routedID
	routedPick
)

// controlHeader is a header that no client's copy of may reach a worker.
type controlHeader struct {
	name string
	set  routed // the answer sets it itself when this bit is on
}

// controls are the headers removed from every request unless set. A client's copy
// would steer the gateway or a forwarder (Infera defect P15; failover.md §5, S1).
// NVIDIA Dynamo's names, which a forwarder reads where ours are absent, and those of
// llm-d's sidecar are among them. What else begins as [forgeable] says is removed
// where it comes.
var controls = [...]controlHeader{ //nolint:gochecknoglobals // an immutable table
	{HeaderDestination, routedWorker},
	{HeaderWorker, routedWorker},
	{HeaderPrefill, routedPrefill},
	{HeaderRank, routedRank},
	{HeaderPrefillRank, routedPrefillRank},
	{HeaderPrefillSkip, routedSkip},
	{HeaderFallback, routedFallback},
	{HeaderTicket, routedTicket},
	{reports.Header, routedPick},
	{"x-dynamo-worker-instance-id", 0},
	{"x-dynamo-prefill-instance-id", 0},
	{"x-dp-rank", 0},
	{"x-prefill-dp-rank", 0},
	{"x-prefiller-host-port", 0},
	{HeaderServed, 0},
	{HeaderSubset, 0},
	{HeaderFairness, 0},
	{HeaderObjective, 0},
	{HeaderRewrite, 0},
}

// forgeable reports whether a client's header of that name, in lower case, could
// steer a gateway, a forwarder or an engine though it is none of [controls].
func forgeable(name string) bool {
	if name == HeaderRequestID {
		return false // a name for the request, which clients may give
	}
	for _, prefix := range [...]string{"x-infera-", "x-gateway-destination-endpoint", "x-data-parallel-", "x-dynamo-"} {
		if strings.HasPrefix(name, prefix) {
			return !slices.ContainsFunc(controls[:], func(c controlHeader) bool { return c.name == name })
		}
	}
	return false
}
