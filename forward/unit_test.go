package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/trust"
)

func TestEachErrorHasOneStatusOneCodeAndItsXShouldRetry(t *testing.T) {
	broken := func(s Stage, err error) error { return fmt.Errorf("x: %w", &Error{Stage: s, Err: err}) }
	tests := []struct {
		err    error
		status int
		code   string
		mayRun bool
	}{
		{&prompt.BadRequest{Status: 400, Code: "c", Message: "m"}, 400, "c", false},
		{&prompt.BadRequest{Status: 415, Code: "c", Message: "m"}, 415, "c", false},
		{prompt.ErrTooLarge, 413, "request_too_large", false},
		{errSlowBody, 408, "request_timeout", false},
		{errBrokenBody, 400, "incomplete_body", false},
		{errMethod, 405, "method_not_allowed", false},
		{fmt.Errorf("x: %w", picker.ErrNoModel), 404, "model_not_found", false},
		{picker.ErrNoWorker, 503, "no_worker", false},
		{picker.ErrNoEndpoint, 503, "no_worker", false},
		{fmt.Errorf("%w: %w", errStale, picker.ErrUnknownWorker), 503, "stale_worker", false},
		{fmt.Errorf("%w: %w", errStale, picker.ErrOtherModel), 503, "stale_worker", false},
		{errPD, 501, "pd_not_supported", false},
		{errNoTransport, 503, "no_transport", false},
		{errDraining, 503, "gateway_draining", false},
		{errIdle, 504, "stream_idle_timeout", true},
		{errMaxDuration, 504, "max_duration_exceeded", true},
		{errEventSize, 502, "upstream_event_too_large", true},
		{errClientGone, 499, "client_closed_request", false},
		{context.Canceled, 499, "client_closed_request", false},
		{broken(StageDial, syscall.ECONNREFUSED), 502, "upstream_connect_failed", false},
		{broken(StageWrite, syscall.EPIPE), 502, "upstream_reset", false},
		{broken(StageDispatched, syscall.ECONNRESET), 502, "upstream_reset", true},
		{broken(StageHead, ErrProtocol), 502, "upstream_invalid_response", true},
		{broken(StageBody, ErrTruncated), 502, "upstream_stream_truncated", true},
		{broken(StageBody, fmt.Errorf("%w: %w", ErrTruncated, syscall.ECONNRESET)), 502, "upstream_reset", true},
		{broken(StageDispatched, ErrLeaving), 503, "worker_draining", true},
		{broken(StageBody, ErrLeaving), 503, "worker_draining", true},
		{errClientBudget, 504, "client_timeout_exceeded", true},
		{&decodeDialError{broken(StageDial, syscall.ECONNREFUSED)}, 502, "decode_connect_failed", false},
		{&legError{errPrefillTimeout}, 504, "pd_prefill_timeout", true},
		{errFirstToken, 504, "first_token_timeout", true},
		{&exhausted{broken(StageDispatched, syscall.ECONNRESET)}, 502, "upstream_reset", false},
		{&answer{status: 500, header: http.Header{}}, 500, "upstream_error", true},
		{&answer{status: 429}, 429, "worker_full", false},
		{&answer{status: 503, header: http.Header{"Retry-After": {"3"}}}, 503, "upstream_error", false},
		{errors.New("anything else"), 500, "internal_error", false},
	}
	for _, tc := range tests {
		e := describe(tc.err)
		if Status(tc.err) != tc.status || e.code != tc.code || e.mayHaveRun != tc.mayRun || e.message == "" || e.kind == "" {
			t.Errorf("%v: %+v", tc.err, e)
		}
	}
}

// ends returns the ends of all events of text when it comes in steps of n bytes,
// with what is complete cut off after each step.
func ends(text string, n int) []int {
	var f framer
	var buf []byte
	var out []int
	base := 0
	for len(text) > 0 {
		step := min(n, len(text))
		buf = append(buf, text[:step]...)
		text = text[step:]
		last := 0
		for end := f.next(buf); end >= 0; end = f.next(buf) {
			out = append(out, base+end)
			last = end
		}
		buf = append([]byte(nil), buf[last:]...)
		f.cut(last)
		base += last
	}
	return out
}

func TestEventsEndAtBlankLinesOfAnyKind(t *testing.T) {
	tests := []struct {
		text string
		want []int // at once
	}{
		{"", nil},
		{"data: a", nil},
		{"data: a\n", nil},
		{"data: a\n\n", []int{9}},
		{"data: a\r\n\r\n", []int{11}},
		{"data: a\r\r", []int{9}},
		{"a\n\nb\n\n", []int{3, 6}},
		{"a\r\rb\r\r", []int{3, 6}},
		{"a\r\n\r\nb\r\n\r\n", []int{5, 10}},
		{"a\n\r\n", []int{4}},
		{"a\r\n\n", []int{4}},
		{"\n", []int{1}},
		{"\r\n", []int{2}},
		{"a\nb\n\n", []int{5}},
		{"a\r\nb\r\n", nil},
	}
	for _, tc := range tests {
		if got := ends(tc.text, 100); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%q: %v, want %v", tc.text, got, tc.want)
		}
	}
}

// FuzzFramer: the events found are the same however the bytes are cut, but for
// an LF behind a CR that may fall to the next event; all bytes stay in order;
// and only the last event is without a blank line.
func FuzzFramer(f *testing.F) {
	f.Add("data: a\n\ndata: b\r\n\r\ndata: c\r\r: x\n\n", 3)
	f.Add("\r\n\n\r\r\n", 1)
	f.Fuzz(func(t *testing.T, text string, n int) {
		whole := ends(text, len(text)+1)
		cut := ends(text, 1+(n&0x7fffffff)%7)
		if len(whole) != len(cut) {
			t.Fatalf("%d events at once, %d in pieces", len(whole), len(cut))
		}
		for i := range whole {
			late := cut[i]+1 == whole[i] && text[cut[i]] == '\n' && text[cut[i]-1] == '\r'
			if whole[i] != cut[i] && !late {
				t.Fatalf("event %d ends at %d, or %d", i, whole[i], cut[i])
			}
		}
		from := 0
		for _, end := range whole {
			event := strings.ReplaceAll(strings.ReplaceAll(text[from:end], "\r\n", "\n"), "\r", "\n")
			if !strings.HasSuffix(event, "\n") || strings.Contains(strings.TrimSuffix(event, "\n"), "\n\n") {
				t.Fatalf("%q is not one event", event)
			}
			from = end
		}
	})
}

func TestEventsMeanWhatTheirAPISays(t *testing.T) {
	tests := []struct {
		d    dialect
		raw  string
		want meaning
	}{
		{chat, "data: [DONE]\n\n", final},
		{chat, "data:[DONE]\n\n", final},
		{chat, "data:  [DONE] \r\n\r\n", final},
		{chat, "id: 1\ndata: [DONE]\n\n", final},
		{chat, "data: [DONE] more\n\n", content},
		{chat, `data: {"choices":[{"delta":{"content":"[DONE]"}}]}` + "\n\n", content},
		{chat, ": comment\n\n", lifecycle},
		{chat, "\n", lifecycle},
		{chat, "retry: 5\n\n", lifecycle},
		{chat, `data: {"error":{}}` + "\n\n", failed},
		{chat, `data: { "error" : "text" }` + "\n\n", failed},
		{chat, `data: {"error":null}` + "\n\n", content},
		{chat, `data: {"error":""}` + "\n\n", content},
		{chat, `data: {"id":"c", "error":{"message":"behind another member"}}` + "\n\n", failed},
		{chat, `data: {"id":"c","error":null,"choices":[]}` + "\n\n", content},
		{chat, `data: {"choices":[{"delta":{"content":"x","error":"of the delta"}}]}` + "\n\n", content},
		{chat, `data: {"errors":1}` + "\n\n", content},
		{chat, `data: {"object":"error","message":"x"}` + "\n\n", failed},
		{chat, `data: {"object":"chat.completion.chunk"}` + "\n\n", content},
		{chat, `data: {"choices":[{"delta":{"content":"{\"error\":1}"}}]}` + "\n\n", content},
		{chat, "event: error\ndata: x\n\n", failed},
		{chat, `data: {"choices":[{"delta":{"role":"assistant"}}]}` + "\n\n", lifecycle},
		{chat, `data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}], "usage": null}` + "\n\n", lifecycle},
		{chat, `data: {"choices":[{"delta":{"role":"assistant","content":"x"}}]}` + "\n\n", content},
		{chat, `data: {"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":"x"}}]}` + "\n\n", content},
		{chat, `data: {"choices":[{"delta":{"role":"assistant","tool_calls":[]}}]}` + "\n\n", lifecycle},
		{chat, `data: {"choices":[{"delta":{"role":"assistant","tool_calls":[{"id":"a"}]}}]}` + "\n\n", content},
		{chat, `data: {"choices":[{"delta":{"role":"assistant"},"finish_reason":"stop"}]}` + "\n\n", content},
		{chat, `data: {"choices":[{"delta":{"role":"assistant"}}],"x":"content"}` + "\n\n", lifecycle},
		{chat, `data: {"choices":[{"text":"a \"role\" b"}]}` + "\n\n", content},
		{chat, "data: no JSON\n\n", content},
		{messages, "event: message_stop\ndata: {}\n\n", final},
		{messages, `data: {"type":"message_stop"}` + "\n\n", final},
		{messages, `data: {"type":"content_block_delta","delta":{"text":"message_stop"}}` + "\n\n", content},
		{messages, "event: ping\ndata: {}\n\n", lifecycle},
		{messages, "event: error\ndata: {}\n\n", failed},
		{messages, "data: no JSON\n\n", content},
		{responses, "event: response.completed\ndata: {}\n\n", final},
		{responses, "event: response.incomplete\ndata: {}\n\n", final},
		{responses, "event: response.failed\ndata: {}\n\n", failed},
		{responses, "event: response.in_progress\ndata: {}\n\n", lifecycle},
		{generic, "data: [DONE]\n\n", final},
		{generic, `data: {"error":1}` + "\n\n", content},
	}
	for _, tc := range tests {
		if got := tc.d.meaning([]byte(tc.raw)); got != tc.want {
			t.Errorf("dialect %d: %q means %d, want %d", tc.d, tc.raw, got, tc.want)
		}
	}
}

func TestAnErrorEventNamesItsStatus(t *testing.T) {
	for raw, want := range map[string]int{
		`data: {"error":{"code":400}}`:        400,
		`data: {"error":{"code":503}}`:        503,
		`data: {"error":{"code":"boom"}}`:     502,
		`data: {"error":{"code":200}}`:        502,
		`data: {"error":"x","code":404}`:      404,
		`data: {"object":"error","code":422}`: 422,
		`data: nonsense`:                      502,
		`data: {"error":{"code":1e99}}`:       502,
	} {
		if got := errorStatus([]byte(raw + "\n\n")); got != want {
			t.Errorf("%s: %d, want %d", raw, got, want)
		}
	}
}

func FuzzMeaning(f *testing.F) {
	f.Add("event: error\ndata: {\"error\":{\"code\":400}}\n\n", uint8(1))
	f.Add("\ufeffdata:[DONE]\r\r", uint8(0))
	f.Fuzz(func(t *testing.T, raw string, d uint8) {
		got := dialect(d % 4).meaning([]byte(raw))
		if got == final && dialect(d%4) < messages && !strings.Contains(raw, "[DONE]") {
			t.Errorf("%q ends a stream", raw)
		}
		if status := errorStatus([]byte(raw)); status < 400 || status > 599 {
			t.Errorf("%q has status %d", raw, status)
		}
	})
}

func TestBuffersAreLentBySizeAndNotShared(t *testing.T) {
	var p buffers
	for _, size := range []int{0, 1, smallBuffer, smallBuffer + 1, keepBuffer, keepBuffer + 1} {
		a, b := p.get(size), p.get(size)
		if cap(*a) < size || len(*a) != 0 || &(*a)[:1][0] == &(*b)[:1][0] {
			t.Errorf("size %d: capacity %d", size, cap(*a))
		}
		p.put(a)
		p.put(b)
		if c := p.get(size); cap(*c) < size || len(*c) != 0 {
			t.Errorf("size %d: reused capacity %d", size, cap(*c))
		}
	}
	p.put(nil)
}

func TestRequestIDsAreKeptOrMade(t *testing.T) {
	now := time.UnixMilli(0x0123456789ab)
	if id := trust.NewID(now); !strings.HasPrefix(id, "01234567-89ab-7") || len(id) != 36 {
		t.Errorf("new ID %s", id)
	}
	if a, b := trust.NewID(now), trust.NewID(now); a == b {
		t.Error("two equal IDs")
	}
	tests := []struct{ ours, client, want string }{
		{"a.b_c-1", "x", "a.b_c-1"},
		{"", "x", "x"},
		{"bad id", "x", "x"},
		{strings.Repeat("a", 128), "", strings.Repeat("a", 128)},
		{strings.Repeat("a", 129), "", ""},
		{"a\nb", "", ""},
		{"é", "", ""},
	}
	for _, tc := range tests {
		h := http.Header{}
		if tc.ours != "" {
			h.Set(headerRequestID, tc.ours)
		}
		if tc.client != "" {
			h.Set(headerClientID, tc.client)
		}
		got := requestID(h, now)
		if tc.want != "" && got != tc.want || tc.want == "" && len(got) != 36 {
			t.Errorf("%q and %q: %q", tc.ours, tc.client, got)
		}
	}
}

func TestConfigNamesAllItsFaults(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	bad := Config{Mode: "both", RetrySafety: "none", MaxRetries: 9, IdleTimeout: -1, MaxDuration: -1, WriteTimeout: -1, HoldTime: -1, DrainDelay: -1, DrainTimeout: -1}
	err := bad.Validate()
	for _, want := range []string{"both", "retry safety", "max retries", "max body", "idle", "max duration", "write", "hold", "drain delay", "drain timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
	if _, err := New(bad, Deps{}); err == nil || !strings.Contains(err.Error(), "no picker") {
		t.Errorf("New: %v", err)
	}
}

func TestErrorObjectsHaveTheShapeOfTheirAPI(t *testing.T) {
	e := apiError{status: 404, kind: badRequest, code: "model_not_found", param: "model", message: `no "m"`}
	if got := string(e.encode(openAI, ids{request: "r"})); got != `{"error":{"message":"no \"m\"","type":"invalid_request_error","param":"model","code":"model_not_found","request_id":"r"}}` {
		t.Error(got)
	}
	if got := string(e.encode(anthropic, ids{request: "r"})); got != `{"type":"error","error":{"type":"not_found_error","message":"no \"m\"","code":"model_not_found"},"request_id":"r"}` {
		t.Error(got)
	}
	for status, want := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"} {
		if got := anthropicType(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
	ev := e.event(anthropic, ids{request: "r", attempt: "r/m1"})
	if !bytes.HasPrefix(ev, []byte("event: error\ndata: {")) || !bytes.HasSuffix(ev, []byte("}\n\n")) {
		t.Errorf("%s", ev)
	}
}

func BenchmarkMeaning(b *testing.B) {
	raw := []byte(`data: {"id":"chatcmpl-0f53fd3f344b","object":"chat.completion.chunk","created":1796041910,"model":"m","choices":[{"index":0,"finish_reason":null,"delta":{"content":"tok0 "}}]}` + "\n\n")
	b.ReportAllocs()
	for b.Loop() {
		if chat.meaning(raw) != content {
			b.Fatal("no content")
		}
	}
}
