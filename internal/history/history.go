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
	"strings"
	"time"
)

// Request is what one client saw. Times that have not come are zero.
type Request struct {
	ID     string
	Model  string
	Stream bool

	Sent      time.Time
	FirstByte time.Time // of an answer's content
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

// Try is one entry of a forwarder's receipt (x-infera-attempts).
type Try struct {
	Leg    string // m, p or d
	Worker string
}

// ParseTries reads a forwarder's receipt; what it cannot read it leaves out.
func ParseTries(receipt string) []Try {
	var out []Try
	for part := range strings.SplitSeq(receipt, ",") {
		id, rest, ok := strings.Cut(strings.TrimSpace(part), "@")
		worker, _, told := strings.Cut(rest, ";")
		if ok && told && id != "" {
			out = append(out, Try{id[:1], worker})
		}
	}
	return out
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
	Lost     bool      // the engine was killed while it ran
}

// Fault is something that was broken on purpose.
type Fault struct {
	Kind   string
	Worker string // "" for what concerns all of them
	From   time.Time
	To     time.Time // healed
}

// Sample is one look at which circuits are open in the eyes of one endpoint
// picker.
type Sample struct {
	At     time.Time
	Source string
	Open   []string // worker IDs
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
	Gauges   []Gauge

	Counted float64   // requests that the forwarders' outcome counters sum up to
	Healed  time.Time // when the last fault was
	Settled time.Time // from here on requests must succeed
	End     time.Time // of the load
}

// Limits are the bounds of the invariants.
type Limits struct {
	Attempts   int           // dispatches of one leg of a request
	Abort      time.Duration // until an engine must have seen that nobody waits
	Race       time.Duration // what lies closer together than this has no order
	Aftermath  time.Duration // for how long a healed fault still excuses failures
	Success    float64       // share of requests after Settled
	LeastCount int           // receipts to be expected per worker before I11 counts it as left out
}

// DefaultLimits returns the bounds of the specification (failover §3).
func DefaultLimits() Limits {
	return Limits{
		Attempts: 3, Abort: 2 * time.Second, Race: 500 * time.Millisecond,
		Aftermath: 3 * time.Second, Success: 0.99, LeastCount: 8,
	}
}
