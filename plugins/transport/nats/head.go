package nats

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"pointsman/forward"
	"pointsman/wire"
)

// heldKind is what the first bytes of an answer turned out to be.
type heldKind uint8

const (
	heldUnknown heldKind = iota // too few bytes
	heldEvents                  // server-sent events
	heldOther                   // anything else: its status comes at the end
)

// holder keeps the beginning of an answer until its kind is known, and the whole
// of one that is no stream.
type holder struct {
	limit int64
	size  int64
	first []byte // the only frame so far, not copied
	all   []byte // copies of several
}

// add keeps p; false when the answer is larger than the limit.
func (h *holder) add(p []byte) bool {
	if len(p) == 0 {
		return true
	}
	switch {
	case h.size == 0:
		h.first = p
	case h.all == nil:
		h.all = append(append(make([]byte, 0, 2*(len(h.first)+len(p))), h.first...), p...)
	default:
		h.all = append(h.all, p...)
	}
	h.size += int64(len(p))
	return h.size <= h.limit
}

func (h *holder) bytes() []byte {
	if h.all != nil {
		return h.all
	}
	return h.first
}

func (h *holder) kind() heldKind { return kindOf(h.bytes()) }

// kindOf looks at the beginning of an answer: a byte order mark and blank lines
// may stand before the first field of an event stream, and nothing else
// (failover 4.3).
func kindOf(b []byte) heldKind {
	const mark = "\xef\xbb\xbf"
	if len(b) < len(mark) && strings.HasPrefix(mark, string(b)) {
		return heldUnknown
	}
	b = bytes.TrimLeft(bytes.TrimPrefix(b, []byte(mark)), "\r\n")
	if len(b) == 0 {
		return heldUnknown
	}
	if b[0] == ':' {
		return heldEvents
	}
	for _, field := range [...]string{"data:", "event:", "id:", "retry:"} {
		n := min(len(b), len(field))
		if string(b[:n]) == field[:n] {
			if n == len(field) {
				return heldEvents
			}
			return heldUnknown
		}
	}
	return heldOther
}

// whole returns a complete answer. A status that the worker spelled so that it
// cannot be read is guessed from the body. The worker passes on what its own client
// took for the end: that of an object may be a cut.
func (h *holder) whole(status int) *forward.Response {
	b := h.bytes()
	head := http.Header{}
	switch {
	case bytes.HasPrefix(b, []byte("\x1f\x8b")): // an engine that compresses unasked
		head["Content-Type"] = []string{zippedType(b)}
		head["Content-Encoding"] = []string{"gzip"}
	case looksJSON(b):
		head["Content-Type"] = []string{"application/json"}
	case len(b) > 0:
		head["Content-Type"] = []string{"text/plain; charset=utf-8"}
	}
	if status == 0 {
		status = http.StatusOK
		var told struct {
			Error json.RawMessage `json:"error"`
		}
		if json.Unmarshal(b, &told) != nil || len(told.Error) > 0 {
			status = http.StatusBadGateway
		}
	}
	return &forward.Response{
		Status: status, Header: head, Length: h.size, Body: io.NopCloser(bytes.NewReader(b)),
		CloseDelimited: status < http.StatusBadRequest && startsObject(b),
	}
}

// zippedType looks into a compressed answer.
func zippedType(b []byte) string {
	const enough = 64 // to tell a stream by
	var first []byte
	if z, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
		first, _ = io.ReadAll(io.LimitReader(z, enough)) // what there is of a broken one
	}
	if kindOf(first) == heldEvents {
		return "text/event-stream"
	}
	return "application/json"
}

// startsObject reports whether b is, or was to be, a JSON object. A text may well
// begin like a list.
func startsObject(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && b[0] == '{'
}

func looksJSON(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}

// headFailure says what an exchange that ended with err before its status was
// known comes to. began tells whether bytes of an answer had come.
func headFailure(ctx context.Context, err error, began bool) (*forward.Response, error) {
	stage := forward.StageDispatched
	if began {
		stage = forward.StageHead
	}
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errIdle):
		return late("worker_idle_timeout", "the worker did not answer within the idle timeout"), nil
	case errors.Is(err, errTotal):
		return late("max_duration_exceeded", "the request exceeded its maximum duration"), nil
	case errors.Is(err, errNotBack):
		return unavailable("the workers have not come back to the NATS broker yet"), nil
	case errors.Is(err, errNobody), errors.Is(err, errDenied):
		stage = forward.StageDial
	case errors.Is(err, errRefused):
		stage = forward.StageWrite
	case errors.Is(err, errSequence), errors.Is(err, errStray):
		err = fmt.Errorf("%w: %w", forward.ErrProtocol, err)
	}
	return nil, &forward.Error{Stage: stage, Err: err}
}

// refusal says what an error frame before the status comes to. Its text is the
// only thing that tells what happened: a notice of Infera's worker, or the text
// of an exception in it.
func refusal(text string, began bool) (*forward.Response, error) {
	stage := forward.StageDispatched
	if began {
		stage = forward.StageHead
	}
	err := fmt.Errorf("the worker reports %q", clip(text))
	switch {
	case text == wire.NoticeDraining, text == wire.NoticeCancelled: // N17
		return handedBack(), nil
	case text == wire.NoticeDuration:
		return late("max_duration_exceeded", "the request exceeded its maximum duration"), nil
	case text == "", strings.Contains(text, "timed out"), strings.Contains(text, "ReadTimeout"):
		// The worker's client gave its engine up for its silence; its exception has no text (N11).
		return late("worker_idle_timeout", "the engine did not answer within the worker's idle timeout"), nil
	case unconnected(text):
		stage = forward.StageDial
	case strings.Contains(text, "maximum payload"): // the broker's limit, not the worker's health (N14)
		err = fmt.Errorf("%w: %w", forward.ErrBlameless, err)
	}
	return nil, &forward.Error{Stage: stage, Err: err}
}

// unconnected reports whether the text says that the worker could not connect to
// its engine, so that nothing has run.
func unconnected(text string) bool {
	for _, part := range [...]string{"All connection attempts failed", "Connection refused", "connection refused", "ConnectError", "ConnectTimeout"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// clip bounds what a worker can put into an error.
func clip(s string) string {
	const most = 256
	if len(s) > most {
		return s[:most]
	}
	return s
}
