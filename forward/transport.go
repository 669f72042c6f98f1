package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"pointsman/fleet"
)

// Transport carries one request to one worker: over HTTP, or over a broker.
//
// Do sends req and returns when the head of the final response is known
// (informational 1xx responses are the transport's to skip). It makes one
// attempt: it may redial when a kept connection turned out to be dead before
// the request was fully written, and repeats nothing else. It must not use req
// or its fields after it returned.
//
// Canceling ctx ends the attempt at any time, also while the response body is
// being read, and tells the worker to stop generating; no other goroutine's
// help is needed for that. Timeouts of waiting for the worker come as such a
// cancelation; how long to wait for a connection is the transport's own.
//
// Every error of Do is an [*Error] that says how far the request got. Do is
// called by many goroutines at once.
type Transport interface {
	Do(ctx context.Context, w *fleet.Worker, req *Request) (*Response, error)
}

// Request is what goes to a worker.
type Request struct {
	ID     string      // the client's or our request ID
	Method string      // HTTP method
	Target string      // request target: escaped path and query, starting with "/"
	Header http.Header // end-to-end headers in canonical form, without Host and Content-Length
	Body   []byte      // whole body; nil for none

	// Fresh asks for a connection that has carried no request yet, for one that
	// must not be repeated: a worker may be closing a kept connection at the very
	// moment it is used. Transports without connections per request ignore it.
	Fresh bool

	// ConnectTimeout is the longest wait for a connection; 0 for the transport's
	// own. Transports without connections per request ignore it.
	ConnectTimeout time.Duration

	// Progress is told how far the request gets; nil when nobody wants to know.
	Progress *Progress

	// Named says that X-Request-Id is the protocol's, so that it is not replaced
	// by the engine's name for the request. Transports ignore it.
	Named bool
}

// Response is what came back. Its reader closes Body.
type Response struct {
	Status int         // 200..999; a final status
	Header http.Header // end-to-end headers in canonical form, without Content-Length
	Length int64       // length of the body; -1 when not known before its end

	// Down says that this is no worker's answer but the transport's own: what it
	// goes through, such as a broker, is not there, so that nothing was sent and no
	// worker can be asked that way for now.
	Down bool

	// CloseDelimited says that nothing but the end of the connection marks the
	// end of the body, so that a cut cannot be told from a clean end.
	CloseDelimited bool

	// Body is the response body; never nil. Read blocks until at least one byte
	// is there, then returns what is at hand without waiting for more, so that
	// a relay may flush after each Read. It returns io.EOF only when the body
	// has properly ended, and else an [*Error] with StageBody that wraps
	// [ErrTruncated] when the worker broke off. Close gives up what has not
	// been read and makes the worker stop; after io.EOF it only frees.
	Body io.ReadCloser

	// Trailer returns the trailers, once Body has returned io.EOF; nil for a
	// transport that has none.
	Trailer func() http.Header
}

// Waiter is what a [Response]'s Body may be too, so that its reader needs no buffer
// while nothing comes, and can gather what comes in close succession.
type Waiter interface {
	// Waits reports whether Read would have to wait, as far as it can tell.
	Waits() bool
	// Wait returns when something has come, as a rule enough for Read not to wait,
	// or when Read would fail.
	Wait()
	// Poll is Wait for what has come already: it reports whether something has, or
	// false when it cannot tell.
	Poll() bool
}

// Stage is how far an attempt got (failover stages of the LoxiLB seed).
type Stage uint8

// The stages in the order in which an attempt goes through them. An error
// carries the stage in which it happened.
const (
	StageDial       Stage = iota // no connection: the worker has seen nothing
	StageWrite                   // the request was not fully sent: it cannot have run
	StageDispatched              // fully sent, no byte of an answer: it may have run
	StageHead                    // an answer began but its head is unusable or incomplete
	StageBody                    // the head was good, the body broke
)

// String returns the stage's name as in metrics and logs.
func (s Stage) String() string {
	switch s {
	case StageDial:
		return "dial"
	case StageWrite:
		return "write"
	case StageDispatched:
		return "dispatched"
	case StageHead:
		return "head"
	case StageBody:
		return "body"
	}
	return fmt.Sprintf("stage(%d)", uint8(s))
}

// Errors that a transport's [*Error] may wrap, beside those of the system.
var (
	// ErrTruncated says that a body ended before its framing said so.
	ErrTruncated = errors.New("response body was cut")
	// ErrProtocol says that the worker's bytes are not a valid response.
	ErrProtocol = errors.New("malformed response")
	// ErrBlameless says that the worker is not at fault: a broker between us
	// and it broke, or it is leaving on purpose. The attempt may be repeated as
	// its stage allows, and says nothing about the worker's health.
	ErrBlameless = errors.New("not the worker's fault")
	// ErrLeaving says that the worker gave the request back because it is
	// shutting down. It is [ErrBlameless].
	ErrLeaving = fmt.Errorf("%w: the worker is shutting down", ErrBlameless)
)

// Error is a failed attempt.
type Error struct {
	Stage Stage
	Err   error // never nil
}

// Error returns the stage and the cause. The text is for logs: it may name
// addresses, which clients must not see.
func (e *Error) Error() string { return e.Stage.String() + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
