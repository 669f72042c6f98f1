// Package breaker remembers which workers fail, across requests.
//
// A worker that accepts connections and answers its health check, but fails
// every request, is invisible to discovery. After a number of consecutive
// faults of one kind its [Circuit] opens: the picker leaves the worker out until a
// cooldown is over, then one request may probe it. (Seed "Routing & transport",
// Circuit breaker.) It is the router's private opinion and never writes the fleet.
//
// Two healthy workers can fail together: the cache of a prompt does not get from
// the one that computed it to the one that decodes. Each prefill/decode pair has a
// circuit of its own for that ([Set.Pair]), so that the pairs around it go on
// serving (failover §2A, pair memory; seed 001 §1: "Removing an entire decode
// endpoint can also exclude healthy pairs using it").
//
// Who asks: picker calls [Circuit.Allows] for each candidate and
// [Circuit.Acquire] for the chosen one only, so that a probe slot is never held
// for a worker that gets no request (Infera defect P17). Who answers: whoever
// sees the first token calls [Permit.FirstToken], which is what closes a circuit,
// and whoever finished the request calls [Permit.Done].
//
// The time is an argument and no goroutine is started, so a scenario replays
// exactly.
//
// # Concurrency
//
// Everything is safe for concurrent use. A closed circuit costs one atomic load
// to ask and one to report a success; only faults and open circuits lock.
package breaker

import "fmt"

// State is a worker's standing. The numbers are the exported metric's values.
type State uint8

// The numbers match infera_router_worker_breaker_state.
const (
	Closed   State = iota // requests pass
	HalfOpen              // the cooldown is over: one probe may pass, or is under way
	Open                  // no request passes
)

// String returns closed, half-open or open.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Outcome is what a finished attempt says about its worker.
type Outcome uint8

// A 4xx is news about the request and a 429 about load: neither about the
// worker's health (seed, Circuit breaker: "Two exclusions are deliberate"). The
// kinds of fault have a streak each, because they are healed by different things:
// a worker that accepts every connection and answers each with a 500 would else
// look well half of the time (seed 001 §1: "Distinct from connect-failure count").
const (
	// Neutral is no news: the client left, a 4xx, a limit of our own, an attempt
	// that somebody else ended.
	Neutral Outcome = iota
	// Success is a whole answer.
	Success
	// Connect is a worker that was not reached: refused, timed out, TLS failed, no
	// responder, or reset before the head of an answer.
	Connect
	// Origin is a worker that was reached and failed: a 5xx, or no first token in time.
	Origin
	// Stream is an answer that the worker cut after its first byte.
	Stream
	// Transfer is a cache that did not get from a prefill worker, which had answered
	// well, to a decode worker. It is news about the two together: see [PairPermit].
	// A [Permit] takes it only of a worker that several partners speak against.
	Transfer
	// Busy is a worker that has enough to do (429): no news of its health, but it is
	// left out for [Config].BusyTTL.
	Busy
)

// outcomes is their number.
const outcomes = int(Busy) + 1

var outcomeNames = [outcomes]string{"neutral", "success", "connect", "origin", "stream", "transfer", "busy"} //nolint:gochecknoglobals // an immutable table

// String returns neutral, success, connect, origin, stream, transfer or busy.
func (o Outcome) String() string {
	if int(o) < outcomes {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Fault reports whether o speaks against somebody: connect, origin, stream and
// transfer do.
func (o Outcome) Fault() bool { return o >= Connect && o <= Transfer }

// tooManyRequests is HTTP's 429: this room does no I/O, so it knows no net/http.
const tooManyRequests = 429

// OutcomeOf maps an HTTP status to an outcome: 0 stands for no answer at all and
// is Connect, 5xx is Origin, 429 is Busy, any other 4xx is Neutral, anything below
// is a success. (Infera breaker.py: a fault is "status >= 500 or 0".)
func OutcomeOf(status int) Outcome {
	switch {
	case status <= 0:
		return Connect
	case status >= 500:
		return Origin
	case status == tooManyRequests:
		return Busy
	case status >= 400:
		return Neutral
	}
	return Success
}
