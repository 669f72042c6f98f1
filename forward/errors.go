package forward

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"syscall"

	"pointsman/admission"
	"pointsman/picker"
	"pointsman/prompt"
)

// Errors that end a request or an attempt, beside those of prompt, picker and
// the transports.
var (
	errIdle         = errors.New("the worker was silent for too long")
	errMaxDuration  = errors.New("the request exceeded its maximum duration")
	errClientBudget = errors.New("the time that the client allowed is over")
	errClientGone   = errors.New("the client went away")
	errSlowBody     = errors.New("the request body came too slowly")
	errBrokenBody   = errors.New("the request body could not be read")
	errMethod       = errors.New("method not supported")
	errUntrusted    = errors.New("the routing headers are not the gateway's")
	errStale        = errors.New("the gateway's worker cannot be used")
	errPD           = errors.New("prefill/decode requests are not supported by this forwarder")
	errNoTransport  = errors.New("no transport for this worker")
	errEventSize    = errors.New("an event of the stream is too large")
)

// answer is a worker's response that is no success: kept, to be given to the
// client when no alternate does better.
type answer struct {
	status   int
	header   http.Header // nil when the answer came as an error event in a stream
	body     []byte
	complete bool // body is the whole body
	down     bool // the transport's own: see [Response].Down
}

func (a *answer) Error() string { return "the worker answered " + strconv.Itoa(a.status) }

// refused reports whether the worker said that it will not take the request
// now: 429, or 503 with Retry-After. It has not run then, and the worker is not
// at fault but full.
func (a *answer) refused() bool {
	return a.status == http.StatusTooManyRequests ||
		a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != ""
}

// exhausted is a failure that was not repeated because the fleet gets no more
// repetitions for now.
type exhausted struct{ err error }

func (e *exhausted) Error() string { return "retry budget exhausted: " + e.err.Error() }
func (e *exhausted) Unwrap() error { return e.err }

// errorEvent is a stream's own error event, relayed to the client as it came.
type errorEvent struct{ status int }

func (e *errorEvent) Error() string { return "the worker ended its stream in an error event" }

// apiError is an error as a client sees it.
type apiError struct {
	status     int
	kind       string // "type" of an OpenAI error object
	code       string
	param      string
	message    string
	retryAfter int  // seconds; 0 for none
	mayHaveRun bool // a repetition by the client could run the request twice

	refusal *admission.Refusal // the gate's, with what it adds; nil for others
}

// Status returns the HTTP status with which a failed request is answered when
// nothing has been sent yet. It and what it is made of are the only place that
// decides this.
func Status(err error) int { return describe(err).status }

const (
	rateLimit   = "rate_limit_error"
	badRequest  = "invalid_request_error"
	serverError = "server_error"
)

// describe maps err to what the client is told. No text of a transport or a
// worker gets in: it may name addresses (infera.md H11).
func describe(err error) apiError {
	if over := new(exhausted); errors.As(err, &over) {
		out := describe(over.err)
		out.mayHaveRun = false // it is for the client to say whether to repeat it (failover 2B)
		return out
	}
	if waited := new(unplaced); errors.As(err, &waited) {
		return describeUnplaced(waited)
	}
	if e, ok := describePair(err); ok {
		return e
	}
	if e, ok := describeRefusal(err); ok {
		return e
	}
	if e, ok := describeRequest(err); ok {
		return e
	}
	var ans *answer
	var broken *Error
	switch {
	case errors.As(err, &ans):
		return describeAnswer(ans)
	case errors.Is(err, errDraining):
		return apiError{status: 503, kind: serverError, code: "gateway_draining", message: errDraining.Error(), retryAfter: 5}
	case errors.Is(err, errIdle):
		return apiError{status: 504, kind: serverError, code: "stream_idle_timeout", message: "the worker did not answer in time", mayHaveRun: true}
	case errors.Is(err, errMaxDuration):
		return apiError{status: 504, kind: serverError, code: "max_duration_exceeded", message: errMaxDuration.Error(), mayHaveRun: true}
	case errors.Is(err, errClientBudget):
		return apiError{status: 504, kind: serverError, code: "client_timeout_exceeded", message: errClientBudget.Error(), mayHaveRun: true}
	case errors.Is(err, errEventSize):
		return apiError{status: 502, kind: serverError, code: "upstream_event_too_large", message: errEventSize.Error(), mayHaveRun: true}
	case errors.Is(err, errNoTransport):
		return apiError{status: 503, kind: serverError, code: "no_transport", message: "the worker's request transport is not configured here"}
	case errors.As(err, &broken):
		return describeBroken(broken)
	}
	return apiError{status: 500, kind: serverError, code: "internal_error", message: "internal error"}
}

// describeRequest handles faults of the request, and of the pick.
func describeRequest(err error) (apiError, bool) {
	var bad *prompt.BadRequest
	switch {
	case errors.As(err, &bad):
		return apiError{status: bad.Status, kind: badRequest, code: bad.Code, param: bad.Param, message: bad.Message}, true
	case errors.Is(err, prompt.ErrTooLarge):
		return apiError{status: 413, kind: badRequest, code: "request_too_large", message: "the request body is over the limit"}, true
	case errors.Is(err, admission.ErrExhausted):
		return apiError{status: 429, kind: "rate_limit_error", code: "admission_memory", message: "the bodies of open requests fill the memory set aside for them; try again later", retryAfter: 1}, true
	case errors.Is(err, errSlowBody):
		return apiError{status: 408, kind: badRequest, code: "request_timeout", message: errSlowBody.Error()}, true
	case errors.Is(err, errBrokenBody):
		return apiError{status: 400, kind: badRequest, code: "incomplete_body", message: errBrokenBody.Error()}, true
	case errors.Is(err, errMethod):
		return apiError{status: 405, kind: badRequest, code: "method_not_allowed", message: errMethod.Error()}, true
	case errors.Is(err, errUntrusted):
		return apiError{status: 403, kind: "permission_error", code: "untrusted_route", message: errUntrusted.Error()}, true
	case errors.Is(err, picker.ErrUnknownWorker):
		return apiError{status: 503, kind: serverError, code: "stale_worker", message: "the worker chosen by the gateway was not found (stale gateway routing?)", retryAfter: 1}, true
	case errors.Is(err, errStale):
		return apiError{status: 503, kind: serverError, code: "stale_worker", message: "the worker chosen by the gateway cannot serve this request (stale gateway routing?)", retryAfter: 1}, true
	case errors.Is(err, errPD):
		return apiError{status: 501, kind: serverError, code: "pd_not_supported", message: errPD.Error()}, true
	case errors.Is(err, picker.ErrNoModel):
		return apiError{status: 404, kind: badRequest, code: "model_not_found", param: "model", message: "the model does not exist in this fleet"}, true
	case errors.Is(err, picker.ErrNoWorker), errors.Is(err, picker.ErrNoEndpoint):
		return apiError{status: 503, kind: serverError, code: "no_worker", message: "no active worker can take this request", retryAfter: 1}, true
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return apiError{status: 499, kind: badRequest, code: "client_closed_request", message: errClientGone.Error()}, true
	}
	return apiError{}, false
}

func describeAnswer(a *answer) apiError {
	e := apiError{status: a.status, kind: serverError, code: "upstream_error", message: a.Error(), mayHaveRun: !a.refused()}
	switch {
	case a.status == http.StatusTooManyRequests:
		e.kind, e.code = "rate_limit_error", "worker_full"
	case a.header == nil:
		e.code = "upstream_error_event"
	}
	if a.refused() {
		e.retryAfter = 1
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err == nil && n > 0 {
			e.retryAfter = n
		}
	}
	return e
}

func describeBroken(e *Error) apiError {
	out := apiError{status: http.StatusBadGateway, kind: serverError, mayHaveRun: e.Stage >= StageDispatched}
	switch {
	case errors.Is(e, ErrLeaving):
		out.status, out.code, out.message = http.StatusServiceUnavailable, "worker_draining", ErrLeaving.Error()
	case e.Stage == StageDial:
		out.code, out.message = "upstream_connect_failed", "the worker could not be reached"
	case e.Stage == StageBody && !errors.Is(e, syscall.ECONNRESET):
		out.code, out.message = "upstream_stream_truncated", "worker stream ended before completion"
	case errors.Is(e, ErrProtocol):
		out.code, out.message = "upstream_invalid_response", "the worker sent an invalid response"
	default:
		out.code, out.message = "upstream_reset", "the connection to the worker broke"
	}
	return out
}

// shape is the form of an error object.
type shape uint8

const (
	openAI        shape = iota
	anthropic           // Anthropic messages
	responseEvent       // an event of the OpenAI responses API; answers are openAI there
)

func shapeOf(kind prompt.Kind) shape {
	if kind == prompt.Messages {
		return anthropic
	}
	return openAI
}

// ids is what an error in a stream tells of its request.
type ids struct {
	request, attempt string
	sequence         int // number of the event, for the API that numbers them
}

type errorBody struct {
	Message    string  `json:"message"`
	Type       string  `json:"type"`
	Param      *string `json:"param"`
	Code       string  `json:"code"`
	RequestID  string  `json:"request_id,omitempty"`
	AttemptID  string  `json:"attempt_id,omitempty"`
	RetryAfter int     `json:"retry_after,omitempty"` // of a refusal of the gate: seconds
	JitterMS   int64   `json:"jitter_hint_ms,omitempty"`
	QueuedMS   int64   `json:"queued_ms,omitempty"`
}

type anthropicBody struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Code    string `json:"code"` // not Anthropic's: the one of every other form
	} `json:"error"`
	RequestID string `json:"request_id,omitempty"`
	AttemptID string `json:"attempt_id,omitempty"`
}

// responseErrorBody is the event "error" of the OpenAI responses API. The object
// within is what official clients raise an exception for.
type responseErrorBody struct {
	Type     string    `json:"type"`
	Code     string    `json:"code"`
	Message  string    `json:"message"`
	Param    *string   `json:"param"`
	Sequence int       `json:"sequence_number"`
	Error    errorBody `json:"error"`
}

// encode returns the JSON of e. Answers that are no stream have no sequence,
// and those that no worker had a part in no attempt.
func (e apiError) encode(form shape, of ids) []byte {
	inner := errorBody{Message: e.message, Type: e.kind, Code: e.code, RequestID: of.request, AttemptID: of.attempt}
	if e.param != "" {
		inner.Param = &e.param
	}
	if r := e.refusal; r != nil {
		inner.RetryAfter, inner.JitterMS, inner.QueuedMS = e.retryAfter, r.Jitter.Milliseconds(), r.Queued.Milliseconds()
	}
	var v any
	switch form {
	case anthropic:
		var b anthropicBody
		b.Type, b.RequestID, b.AttemptID = "error", of.request, of.attempt
		b.Error.Type, b.Error.Message, b.Error.Code = anthropicType(e.status), e.message, e.code
		v = b
	case responseEvent:
		v = responseErrorBody{
			Type: "error", Code: e.code, Message: e.message, Param: inner.Param, Sequence: of.sequence, Error: inner,
		}
	default:
		v = struct {
			Error errorBody `json:"error"`
		}{inner}
	}
	out, err := json.Marshal(v)
	if err != nil { // strings always marshal
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal_error"}}`)
	}
	return out
}

// event returns e as the last event of a stream.
func (e apiError) event(form shape, of ids) []byte {
	data := e.encode(form, of)
	out := make([]byte, 0, len(data)+64)
	if form != openAI {
		out = append(out, "event: error\n"...)
	}
	out = append(out, "data: "...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}

// anthropicType is the "type" of an Anthropic error for a status
// (their API reference, "Errors").
func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status < 500 {
		return badRequest
	}
	return "api_error"
}

// write sends e as the whole response.
func (e apiError) write(w http.ResponseWriter, form shape, requestID, attemptID string) int {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	if e.refusal != nil {
		h.Set("Retry-After-Ms", strconv.FormatInt(e.refusal.RetryMillis(), 10))
	}
	if e.mayHaveRun { // the OpenAI SDKs obey it (failover 2B)
		h.Set("X-Should-Retry", "false")
	}
	body := e.encode(form, ids{request: requestID, attempt: attemptID})
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.status)
	n, _ := w.Write(body) // the client is gone when it fails; the caller sees that by its context
	return n
}
