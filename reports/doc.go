// Package reports is what forwarders tell endpoint pickers about the load of
// workers, so that any number of pickers see one fleet without asking engines.
//
// A forwarder counts in a [Tally] every request that it has in flight, by worker
// and by the picker that sent it. What has changed goes out as a [Report], soon
// after the change and at a slow heartbeat (plugins/reports carries it). A picker
// puts the reports of all forwarders on its [Board]: what a worker has in flight
// that is not the picker's own comes out, with the ends of the picker's own
// requests, which a gateway that shows no response bodies would hide.
//
//	others' load of a worker = total - by_picker[me], summed over forwarders
//
// A picker's own requests are in its own ledger from the pick on, reported or not:
// nothing is counted twice and nothing new is missed. Only requests that run where
// the picker sent them are booked under its name; one that failed over is its
// forwarder's.
//
// # Concurrency
//
// All methods of [Tally], [Flight] and [Board] are safe for concurrent use. They
// take the time as an argument and do no I/O; [Tally.Run] and [Board.Run] block until
// their context is done.
package reports

import "time"

// Load is what is in flight on one worker's rank.
type Load struct {
	Requests      int // all of them
	Waiting       int // those without a first token, queued ones included
	PrefillTokens int // prompt tokens that these have to compute
	ContextTokens int // prompt tokens of the others
	ActiveTokens  int // prompt tokens of all, shared ones counted once as far as the picker knew
}

// IsZero reports whether nothing is in flight.
func (l Load) IsZero() bool { return l == Load{} }

// plus adds o times k.
func (l Load) plus(o Load, k int) Load {
	l.Requests += k * o.Requests
	l.Waiting += k * o.Waiting
	l.PrefillTokens += k * o.PrefillTokens
	l.ContextTokens += k * o.ContextTokens
	l.ActiveTokens += k * o.ActiveTokens
	return l
}

// Work is what a worker has computed and how long that took: their quotient is its
// speed. Both fade with each request.
type Work struct {
	Tokens float64 // token-equivalents of prompts that were not cached
	Millis float64 // of service
}

// Worker is the load of one worker's rank at one forwarder.
type Worker struct {
	ID       string
	Rank     int // -1 for a worker without ranks
	Total    Load
	ByPicker map[string]Load // by the ID of the picker that sent them
	Work     Work
}

// Ref names a picker's request.
type Ref struct {
	Picker string
	Pick   uint64 // the picker's number of it
}

// Sent is a pick that is on its way to where its picker wants it: news for the other
// pickers, none of which knows yet what the worker's cache will have.
type Sent struct {
	Ref

	Worker string
	Rank   int // -1 for a worker without ranks
	Trail  Trail
}

// Done is how a request that a picker sent has ended.
type Done struct {
	Ref

	RequestID string
	// Receipt says how the tries ended, as the response header x-infera-attempts
	// does: "d1@w3;refused,d2@w5;ok".
	Receipt string
	// Moved says that the request goes on, but not at the worker that was picked.
	Moved  bool
	Status int           // of the response; 0 when the client left before
	First  time.Duration // until the first token; 0 for none
	Took   time.Duration
	// Prompt, Cached and Output are tokens as the engine counted them; -1 unknown.
	Prompt, Cached, Output int
}

// Report is what one forwarder says. It covers the workers that have changed since
// the one before; a full one covers all that it has sent requests to.
type Report struct {
	Source string        // the forwarder's process: another one after a restart
	Seq    uint64        // of its reports, from 1
	Beat   time.Duration // the next report comes within this
	Full   bool          // a worker that is not named has nothing in flight here

	Workers []Worker
	Sent    []Sent
	First   []Ref    // requests that have had their first token
	Done    []Done   // requests that have ended
	Pickers []string // those who listen to this forwarder directly
}
