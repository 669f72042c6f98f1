package nats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"pointsman/forward"
)

// problem is an answer of ours in a worker's place, in OpenAI's shape. A 429,
// and a 503 with Retry-After, make the forwarder try another worker without
// holding it against this one.
func problem(status int, code, message string, retryAfter int) *forward.Response {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status >= http.StatusInternalServerError:
		kind = "server_error"
	}
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"message": message, "type": kind, "param": nil, "code": code,
	}})
	if err != nil { // strings always marshal
		body = []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal_error"}}`)
	}
	h := http.Header{"Content-Type": {"application/json"}}
	if retryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(retryAfter)}
	}
	return &forward.Response{
		Status: status, Header: h, Length: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// busy is the answer at the pending cap (infera.md §3.6).
func busy() *forward.Response {
	return problem(http.StatusTooManyRequests, "worker_backlog", "worker request backlog over limit", 1)
}

// unavailable is the answer when the request was certainly not sent.
func unavailable(why string) *forward.Response {
	return problem(http.StatusServiceUnavailable, "broker_unavailable", why, 1)
}

// down is unavailable for want of a connection to the broker.
func down() *forward.Response {
	r := unavailable("the request broker cannot be reached")
	r.Down = true
	return r
}

// handedBack is the answer to a request that a worker gave back before its first
// byte, because it is leaving (N17).
func handedBack() *forward.Response {
	return problem(http.StatusServiceUnavailable, "worker_draining", "the worker is shutting down", 1)
}

// tooLarge is the answer to a request above the broker's max_payload (N3).
func tooLarge(limit int64) *forward.Response {
	return problem(http.StatusRequestEntityTooLarge, "request_too_large",
		fmt.Sprintf("the request is larger than the %d bytes that the request broker carries", limit), 0)
}

// late is the answer when a time limit has passed.
func late(code, why string) *forward.Response {
	return problem(http.StatusGatewayTimeout, code, why, 0)
}
