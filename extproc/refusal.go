package extproc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"pointsman/admission"
	"pointsman/picker"
	"pointsman/prompt"
)

// refusal is a request that we answer ourselves. Its text is for the client.
type refusal struct {
	status     int
	kind       string // OpenAI's error type
	code       string // machine-readable
	param      string // JSON key at fault; "" for none
	message    string
	retryAfter int // seconds; 0 for no retry-after header

	gate   *admission.Refusal // the gate's, with what it adds; nil for others
	counts []int              // in flight, queued and limit, for the headers; nil for none
}

func (r *refusal) Error() string { return r.message }

// Error types of the OpenAI API.
const (
	typeInvalid = "invalid_request_error"
	typeRate    = "rate_limit_error"
	typeServer  = "server_error"
)

// retrySoon is the retry-after of a refusal that another moment may lift.
const retrySoon = 1

// refuse is the only place where an error becomes a status code.
func refuse(err error) *refusal {
	var bad *prompt.BadRequest
	var own *refusal
	var pool *picker.PairError
	var gate *admission.Refusal
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &gate):
		return admissionRefusal(gate)
	case errors.Is(err, admission.ErrFull): // of a request that the gate does not see
		return tooMany()
	case errors.As(err, &bad):
		return &refusal{status: bad.Status, kind: typeInvalid, code: bad.Code, param: bad.Param, message: bad.Message}
	case errors.Is(err, prompt.ErrTooLarge):
		return tooLarge(0)
	case errors.Is(err, picker.ErrNoModel):
		return &refusal{status: http.StatusNotFound, kind: typeInvalid, code: "model_not_found", param: "model", message: shorten(err.Error())}
	case errors.Is(err, picker.ErrNoEndpoint):
		return &refusal{
			status: http.StatusServiceUnavailable, kind: typeServer, code: "no_endpoint",
			message: "no active worker among the endpoints that the gateway allows", retryAfter: retrySoon,
		}
	case errors.As(err, &pool):
		return &refusal{
			status: http.StatusServiceUnavailable, kind: typeServer, code: "pd_pool_unavailable",
			message: shorten(pool.Error()), retryAfter: retrySoon,
		}
	case errors.Is(err, picker.ErrNoWorker):
		return &refusal{
			status: http.StatusServiceUnavailable, kind: typeServer, code: "no_worker",
			message: "no active worker for this request", retryAfter: retrySoon,
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &refusal{
			status: http.StatusGatewayTimeout, kind: typeServer, code: "pick_timeout",
			message: "no worker could be picked in time", retryAfter: retrySoon,
		}
	}
	return internalError()
}

// shorten bounds what a client's own words can make of an answer and a log line.
func shorten(s string) string {
	const head, tail = 384, 96
	if len(s) <= head+tail {
		return s
	}
	return s[:head] + "…" + s[len(s)-tail:]
}

func internalError() *refusal {
	return &refusal{
		status: http.StatusInternalServerError, kind: typeServer, code: "internal_error",
		message: "the endpoint picker failed on this request",
	}
}

// tooLarge refuses a body over limit bytes; 0 when the limit is not known.
func tooLarge(limit int) *refusal {
	r := &refusal{
		status: http.StatusRequestEntityTooLarge, kind: typeInvalid, code: "request_too_large",
		message: "the request body is larger than this gateway takes",
	}
	if limit > 0 {
		r.message += ": at most " + strconv.Itoa(limit) + " bytes"
	}
	return r
}

// admissionRefusal is what the gate has refused.
func admissionRefusal(g *admission.Refusal) *refusal {
	r := &refusal{status: g.Status, kind: typeServer, code: g.Code, message: g.Message, retryAfter: g.Seconds(), gate: g}
	if g.Status == http.StatusTooManyRequests {
		r.kind = typeRate
	}
	return r
}

func tooMany() *refusal {
	return &refusal{
		status: http.StatusTooManyRequests, kind: typeRate, code: "admission_capacity",
		message: "too many requests are open; try again later", retryAfter: retrySoon,
	}
}

func busy() *refusal {
	return &refusal{
		status: http.StatusTooManyRequests, kind: typeRate, code: "admission_memory",
		message: "the bodies of open requests fill the memory set aside for them; try again later", retryAfter: retrySoon,
	}
}

// body is the refusal as JSON, in OpenAI's shape or, for its paths, Anthropic's.
func (r *refusal) body(anthropic bool) []byte {
	type openAI struct {
		Message    string  `json:"message"`
		Type       string  `json:"type"`
		Param      *string `json:"param"`
		Code       string  `json:"code"`
		RetryAfter int     `json:"retry_after,omitempty"`
		JitterMS   int64   `json:"jitter_hint_ms,omitempty"`
		QueuedMS   int64   `json:"queued_ms,omitempty"`
	}
	type anthropicError struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	var v any
	if anthropic {
		v = struct {
			Type  string         `json:"type"`
			Error anthropicError `json:"error"`
		}{"error", anthropicError{r.anthropicType(), r.message}}
	} else {
		e := openAI{Message: r.message, Type: r.kind, Code: r.code}
		if r.param != "" {
			e.Param = &r.param
		}
		if g := r.gate; g != nil {
			e.RetryAfter, e.JitterMS, e.QueuedMS = r.retryAfter, g.Jitter.Milliseconds(), g.Queued.Milliseconds()
		}
		v = map[string]openAI{"error": e}
	}
	b, err := json.Marshal(v)
	if err != nil { // strings always marshal
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal_error"}}`)
	}
	return b
}

// anthropicType is Anthropic's error type for the status.
func (r *refusal) anthropicType() string {
	switch r.status {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType:
		return "invalid_request_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	return "api_error"
}

// answer is the refusal as an ImmediateResponse. Its details show up in the
// gateway's access log.
func (r *refusal) answer(anthropic bool) (answer, error) {
	set := []*corev3.HeaderValueOption{setHeader("content-type", "application/json")}
	if r.retryAfter > 0 {
		set = append(set, setHeader("retry-after", strconv.Itoa(r.retryAfter)))
	}
	if r.gate != nil {
		set = append(set, setHeader("retry-after-ms", strconv.FormatInt(r.gate.RetryMillis(), 10)))
	}
	if len(r.counts) == 3 {
		for i, name := range [...]string{admission.HeaderInflight, admission.HeaderQueued, admission.HeaderLimit} {
			set = append(set, setHeader(name, strconv.Itoa(r.counts[i])))
		}
	}
	b, err := proto.Marshal(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(r.status)}, //nolint:gosec // an HTTP status
			Headers: &extprocv3.HeaderMutation{SetHeaders: set},
			Body:    r.body(anthropic),
			Details: "pointsman_" + r.code,
		}},
	})
	if err != nil {
		return answer{}, err
	}
	return answer{mem.BufferSlice{mem.SliceBuffer(b)}}, nil
}

func setHeader(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
