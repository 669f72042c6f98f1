// Package fleet holds what the router knows about workers.
//
// Discovery backends (plugins/discovery/...) write through a [Feed];
// everything else reads immutable [Snapshot]s.
//
// # Concurrency
//
// One goroutine, [Store.Run], writes. Snapshot is one atomic load and may be
// called from any number of request goroutines. A Snapshot never changes after
// it is published, so a request sees one fleet from pick to retry.
package fleet

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
)

// Role is what a worker does for a request (Infera's disagg_mode).
type Role uint8

// The three roles a worker can register with.
const (
	Mixed Role = iota
	Prefill
	Decode
)

// String returns Infera's spelling: mixed, prefill or decode.
func (r Role) String() string {
	switch r {
	case Mixed:
		return "mixed"
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// Status is what discovery says about a worker. The router never writes it.
type Status uint8

// Only an Active worker is a candidate.
const (
	Active Status = iota
	Draining
	Dead
)

// String returns Infera's spelling: active, draining or dead.
func (s Status) String() string {
	switch s {
	case Active:
		return "active"
	case Draining:
		return "draining"
	case Dead:
		return "dead"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Engine names the inference engine, whose event encoding and private JSON
// differ. Names other than the three known ones are kept as they are.
type Engine string

// The engines whose workers Infera launches.
const (
	SGLang Engine = "sglang"
	VLLM   Engine = "vllm"
	ATOM   Engine = "atom"
)

// Worker is one engine instance. Values are immutable once published.
type Worker struct {
	ID    string // opaque; by convention host:port of the engine
	URL   string // http://host:port of the engine, no trailing slash
	Host  string // host of URL, IPv6 without brackets
	Port  int    // port of URL
	Model string // the model name that requests ask for; exact match; "" when not known

	// Aliases are further names of Model, and Adapters the LoRA adapters on it that
	// requests ask for by name, as if they were models; nil for none. Infera's
	// records list neither: see [Store.SetNames].
	Aliases, Adapters []string

	Engine Engine
	Status Status
	Role   Role

	Protocol string          // prefill/decode protocol (disagg_meta.protocol); "" for none
	Params   json.RawMessage // disagg_meta.params as registered; nil for none

	KVEvents  string // tcp://host:port of the engine's ZMQ publisher, rank 0; "" for none
	KVReplay  string // tcp://host:port where that publisher answers requests for past events, rank 0; "" for none
	BlockSize int    // KV block size in tokens; 0 when unknown
	DPRank    int    // external data-parallel rank; -1 for none
	DPSize    int    // data-parallel size; 0 when not parallel
	Transport string // "http" or "nats": how requests reach it

	// Endpoint is the host:port at which a gateway reaches this worker's
	// forwarder; "" means Host with the EPP's --destination-port.
	Endpoint string

	// Incarnation changes when the worker behind ID is a new process: its cache
	// is empty then, whatever was known of the former one. "" when discovery
	// cannot tell.
	Incarnation string

	// PingSubject is a NATS subject at which the worker answers anything with
	// anything; "" for none.
	PingSubject string

	Canary []uint32 // tokenizer canary (kv.tokenizer_canary); nil for none
}

// Ranks returns how many ranks a request can be sent to: DPSize for a
// rank-multiplexed worker (DPSize > 1 and no DPRank of its own), else 1.
func (w *Worker) Ranks() int {
	if w.DPSize > 1 && w.DPRank < 0 {
		return w.DPSize
	}
	return 1
}

// Address returns the engine's host:port, with brackets around IPv6.
func (w *Worker) Address() string { return net.JoinHostPort(w.Host, strconv.Itoa(w.Port)) }

// Destination returns where a gateway sends requests for w: Endpoint, or the
// worker's host with the given port.
func (w *Worker) Destination(port int) string {
	if w.Endpoint != "" {
		return w.Endpoint
	}
	return net.JoinHostPort(w.Host, strconv.Itoa(port))
}

// Target is one place a request can go: a worker, or one rank of a
// rank-multiplexed worker.
type Target struct {
	Worker *Worker
	Rank   int    // 0..DPSize-1, or -1 when the worker has no ranks of its own
	Key    string // Infera's route_key: worker ID, or ID#dpRANK
}

// Targets appends w's targets to dst.
func (w *Worker) Targets(dst []Target) []Target {
	n := w.Ranks()
	if n == 1 {
		return append(dst, Target{Worker: w, Rank: -1, Key: w.ID})
	}
	for r := range n {
		dst = append(dst, Target{Worker: w, Rank: r, Key: RankKey(w.ID, r)})
	}
	return dst
}

// RankKey returns the [Target] key of one rank of a worker.
func RankKey(id string, rank int) string { return id + "#dp" + strconv.Itoa(rank) }
