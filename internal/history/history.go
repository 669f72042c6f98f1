// Package history judges what happened to a fleet under faults: the clients'
// log, the engines' receipts and the programs' metrics of one run, against the
// invariants that must hold whatever breaks (I1 to I12).
//
// It is told, and finds out nothing by itself: internal/chaos fills a [History]
// from a real fleet, the tests write bad ones by hand to see each invariant fail.
//
// # Concurrency
//
// [Check] is a pure function of its arguments; nothing here is shared.
package history

import (
	"strconv"
	"strings"
	"time"
)

// Request is what one client saw. Times that have not come are zero.
type Request struct {
	ID     string
	Model  string
	Stream bool

	Want int // tokens asked for, which the engines make to the last; 0 for not known

	Sent      time.Time
	FirstByte time.Time // of the answer: its head
	Canceled  time.Time // the client left
	End       time.Time

	Status    int    // 0: no response came
	Text      string // content of the answer so far
	Done      int    // [DONE] markers
	Errors    int    // error events
	Late      int    // events behind the first terminal
	Whole     bool   // not streamed: the body was complete
	Broken    bool   // the connection ended in the middle of the answer, or before it
	Code      string // of the error, if there was one
	Forwarded bool   // a forwarder answered, not the gateway
	Tries     []Try  // that the forwarder's receipt names, those that reached nobody included
}

// Try is one entry of a forwarder's receipt (x-infera-attempts): "d2@w;refused".
type Try struct {
	Leg    string // m, p or d
	N      int    // number within the leg, from 1
	Worker string
	Why    string // how it ended
}

// ParseTries reads a forwarder's receipt; what it cannot read it leaves out.
func ParseTries(receipt string) []Try {
	var out []Try
	for part := range strings.SplitSeq(receipt, ",") {
		id, rest, ok := strings.Cut(strings.TrimSpace(part), "@")
		worker, why, told := strings.Cut(rest, ";")
		if !ok || !told || id == "" {
			continue
		}
		if n, err := strconv.Atoi(id[1:]); err == nil {
			out = append(out, Try{id[:1], n, worker, why})
		}
	}
	return out
}

// forwarder returns the worker whose forwarder had the request: the one that the
// endpoint picker named, which the first try of a leg with an answer went to. It is
// "" when that is not known.
func (r *Request) forwarder() string {
	for _, t := range r.Tries {
		if t.Leg != "p" && t.N == 1 {
			return t.Worker
		}
	}
	return ""
}

// OK reports whether the client got all of a good answer.
func (r *Request) OK() bool {
	if r.Status != 200 || r.Broken {
		return false
	}
	if r.Stream {
		return r.Done == 1 && r.Errors == 0
	}
	return r.Whole
}

// Receipt is what an engine noted of one attempt.
type Receipt struct {
	Worker   string
	Request  string // request ID; "" when it has none
	Attempt  string // attempt ID; "" when it has none
	Leg      string // mixed, prefill or decode
	Received time.Time
	Ended    time.Time // zero while it runs
	Complete bool      // everything was written
	Produced bool      // at least a token was
	Lost     bool      // the engine was killed while it ran
}

// Fault is something that was broken on purpose.
type Fault struct {
	Kind   string
	Worker string // "" for what concerns all of them
	Tame   bool   // nothing that may make a request fail
	From   time.Time
	To     time.Time // healed
}

// Sample is one look at how one program sees the workers.
type Sample struct {
	At       time.Time // when it was over
	Source   string
	Circuits map[string]Circuit // by worker ID, of those that the program knows; nil when it gave no answer
	Unfit    []string           // workers that it leaves out for another reason
	Excluded map[string]int     // how many workers it leaves out, by reason
	Pairs    []Pair             // those that are not closed
}

// Pick is a choice of a worker for a request, or for a leg of it, among several.
type Pick struct {
	At      time.Time
	Source  string // as in samples
	Request string
	Worker  string
	Tried   []string // workers that were left out because they had failed
}

// Pair is a circuit of two workers.
type Pair struct {
	Decode string // worker ID
	Circuit
}

// States of a circuit.
const (
	Closed = iota
	HalfOpen
	Open
)

// Circuit is a worker's, at one moment.
type Circuit struct {
	State int
	Until time.Time // end of its cooldown; zero while closed
	Trips int       // how often it has opened, failed probes included
}

// Gauge is the value of one series when all was quiet.
type Gauge struct {
	Source string
	Name   string // with its labels
	Value  float64
}

// Worker is one engine of the fleet.
type Worker struct {
	ID    string
	Model string
	Role  string // mixed, prefill or decode
}

// History is one run.
type History struct {
	Workers  []Worker
	Requests []Request
	Receipts []Receipt
	Faults   []Fault
	Samples  []Sample // in order of time
	Picks    []Pick
	Gauges   []Gauge

	Counted float64   // requests that the forwarders' outcome counters sum up to
	Healed  time.Time // when the last fault was
	Settled time.Time // from here on requests must succeed
	End     time.Time // of the load
}

// Limits are the bounds of the invariants.
type Limits struct {
	Attempts   int           // dials and dispatches of one leg of a request
	RetryShare float64       // of a forwarder's requests in any RetryTime, those that may be repeated,
	RetryFloor float64       // and so many a second besides
	RetryTime  time.Duration // the window of the two
	Abort      time.Duration // until an engine must have seen that nobody waits
	Expiry     time.Duration // for how long an exclusion may outlive its end
	Busy       time.Duration // for how long a 429 leaves a worker out
	Health     time.Duration // until probes must have called a healed worker well
	Race       time.Duration // what lies closer together than this has no order
	Aftermath  time.Duration // for how long a healed fault still excuses failures
	Success    float64       // share of requests after Settled
	LeastCount int           // receipts to be expected per worker before I11 counts it as left out
}

// DefaultLimits returns the bounds of the specification (failover §3).
func DefaultLimits() Limits {
	return Limits{
		Attempts: 3, RetryShare: 0.2, RetryFloor: 3, RetryTime: 10 * time.Second,
		Abort: 2 * time.Second, Race: 500 * time.Millisecond,
		Expiry: time.Second, Busy: time.Second, Health: 14 * time.Second,
		Aftermath: 3 * time.Second, Success: 0.99, LeastCount: 8,
	}
}
