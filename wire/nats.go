package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// Names of the NATS request transport (Infera infera/common/nats_request.py).
const (
	// RequestStream is the JetStream work queue behind the request subjects of
	// workers that throttle. A worker's durable consumer in it is named by
	// [Token]. Routers never create it (infera.md N5).
	RequestStream = "INFERA_REQUESTS"
	// RequestSubjects matches every request subject.
	RequestSubjects = "infera.req.>"

	// HeaderInbox carries the reply inbox of a request: a message that comes
	// out of JetStream has lost its reply subject.
	HeaderInbox = "rs-inbox"
	// HeaderType is the kind of a reply frame: data, done or error.
	HeaderType = "rs-type"
	// HeaderStatus is the engine's HTTP status, on a done frame.
	HeaderStatus = "rs-status"
	// HeaderSeq numbers the frames of one reply from 0. It is ours: Infera's
	// workers do not send it, and its routers ignore it.
	HeaderSeq = "rs-seq"

	// NoticeDraining is the error frame of a worker that hands a request back
	// because it is leaving.
	NoticeDraining = "infera: worker draining"
	// NoticeCancelled is the error frame of a request that was canceled.
	NoticeCancelled = "request cancelled"
	// NoticeDuration is the error frame of a request that ran for too long.
	NoticeDuration = "request exceeded max duration"
)

// RequestSubject returns the subject on which the worker takes requests.
func RequestSubject(workerID string) string { return "infera.req." + Token(workerID) }

// CancelSubject returns the subject on which the worker takes cancelations: the
// payload is the reply inbox of the request to end, and one that it does not
// know is ignored.
func CancelSubject(workerID string) string { return "infera.cancel." + Token(workerID) }

// ErrEnvelope says that a request cannot be put into, or read from, an
// envelope.
var ErrEnvelope = errors.New("malformed request envelope")

// Envelope is a request on its way over NATS. The worker posts Body to Path on
// its engine.
type Envelope struct {
	Path       string            // path and query; an Infera worker takes /v1/chat/completions for ""
	Stream     bool              // the worker passes the answer on as it comes, instead of whole in one frame
	Headers    map[string]string // sent to the engine as they are; nil for none
	Body       json.RawMessage   // a JSON object
	Migratable bool              // the router can continue this generation on another worker
}

// Append appends the JSON of e to dst. Its error wraps [ErrEnvelope]: a Body
// that is not one JSON object could otherwise forge the other fields.
func (e *Envelope) Append(dst []byte) ([]byte, error) {
	if !IsObject(e.Body) {
		return dst, fmt.Errorf("%w: the body is not a JSON object", ErrEnvelope)
	}
	dst = append(dst, `{"path":`...)
	dst = appendJSONString(dst, e.Path)
	dst = append(dst, `,"stream":`...)
	dst = appendBool(dst, e.Stream)
	dst = append(dst, `,"headers":`...)
	if len(e.Headers) == 0 {
		dst = append(dst, "null"...)
	} else {
		sep := byte('{')
		for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
			dst = append(dst, sep)
			dst = appendJSONString(dst, name)
			dst = append(dst, ':')
			dst = appendJSONString(dst, e.Headers[name])
			sep = ','
		}
		dst = append(dst, '}')
	}
	dst = append(dst, `,"body":`...)
	dst = append(dst, e.Body...)
	if e.Migratable { // as Infera's router, which leaves it out otherwise
		dst = append(dst, `,"migratable":true`...)
	}
	return append(dst, '}'), nil
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// IsObject reports whether b is one JSON object and nothing else.
func IsObject(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && b[0] == '{' && json.Valid(b)
}

// appendJSONString appends s quoted. Bytes that are not UTF-8 become U+FFFD, as
// in encoding/json.
func appendJSONString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(s) // strings always marshal
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// DecodeEnvelope reads what a router sent. Its error wraps [ErrEnvelope].
func DecodeEnvelope(data []byte) (Envelope, error) {
	var raw struct {
		Path       *string           `json:"path"`
		Stream     bool              `json:"stream"`
		Headers    map[string]string `json:"headers"`
		Body       json.RawMessage   `json:"body"`
		Migratable bool              `json:"migratable"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return Envelope{}, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	e := Envelope{
		Path: "/v1/chat/completions", Stream: raw.Stream, Headers: raw.Headers,
		Body: raw.Body, Migratable: raw.Migratable,
	}
	if raw.Path != nil {
		e.Path = *raw.Path
	}
	if len(e.Body) == 0 {
		e.Body = json.RawMessage("{}")
	}
	if !IsObject(e.Body) {
		return Envelope{}, fmt.Errorf("%w: the body is not a JSON object", ErrEnvelope)
	}
	return e, nil
}
