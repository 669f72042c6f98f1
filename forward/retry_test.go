package forward_test

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pointsman/forward"
)

// What a worker does before the client has seen a byte, and who then serves.
func TestRetrySafetyBeforeTheFirstByteAnotherWorkerServesOrTheFailureBecomesAStatus(t *testing.T) {
	short := change(func(c *forward.Config) { c.IdleTimeout = 300 * time.Millisecond })
	hang := func(text string) script {
		return func(c net.Conn, r receipt) bool {
			raw(text)(c, r)
			return true
		}
	}
	tests := []struct {
		name    string
		w1      script
		option  option
		path    string
		body    string // of the request; a stream by default
		moved   bool   // w2 serves
		w1Seen  int
		status  int    // when it has not moved
		code    string // in the error object
		text    string // in the reply
		retryAs string // the stage label of the retry
	}{
		{name: "a refused connection", w1: nil, moved: true, w1Seen: 0, retryAs: "dial"},
		{name: "a connection closed without an answer", w1: rawClose(""), moved: true, w1Seen: 1, retryAs: "dispatched"},
		{name: "a reset without an answer", w1: rawReset("", nil), moved: true, w1Seen: 1, retryAs: "dispatched"},
		{name: "silence", w1: hang(""), option: short, moved: true, w1Seen: 1, retryAs: "dispatched"},
		{name: "half a head", w1: rawClose("HTTP/1.1 200 OK\r\nConte"), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "a head of nonsense", w1: rawClose("nonsense\r\n\r\n"), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "500", w1: raw(jsonReply(500, `{}`)), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "500 with a body that never comes", w1: hang("HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n"), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "503 with Retry-After", w1: raw(jsonReply(503, `{}`, "Retry-After: 7")), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "429", w1: raw(jsonReply(429, `{}`, "Retry-After: 7")), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "a stream that ends without an event", w1: raw(sse()), moved: true, w1Seen: 1, retryAs: "body"},
		{name: "a stream that breaks without an event", w1: rawClose(sseOpen()), moved: true, w1Seen: 1, retryAs: "body"},
		{name: "a stream that breaks behind its role", w1: rawReset(sseOpen(role), nil), moved: true, w1Seen: 1, retryAs: "body"},
		{name: "a stream that breaks within its first event", w1: rawClose(sseOpen(tok0[:20])), moved: true, w1Seen: 1, retryAs: "body"},
		{name: "a stream that begins with an error event of 500", w1: raw(sse(`data: {"error":{"message":"x","code":500}}` + "\n\n")), moved: true, w1Seen: 1, retryAs: "head"},
		{name: "an object cut short", body: chatBody, w1: rawClose("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"a\""), moved: true, w1Seen: 1, retryAs: "body"},
		{name: "an object cut at the connection's end", body: chatBody, w1: rawClose("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\":"), moved: true, w1Seen: 1, retryAs: "body"},

		{name: "400", w1: raw(jsonReply(400, `{"error":{"message":"too long"}}`, "X-Engine: e")), w1Seen: 1, status: 400, text: `{"error":{"message":"too long"}}`},
		{name: "404", w1: raw(jsonReply(404, `nope`)), w1Seen: 1, status: 404, text: "nope"},
		{name: "422 of an object", body: chatBody, w1: raw(jsonReply(422, `{"detail":1}`)), w1Seen: 1, status: 422, text: `{"detail":1}`},
		{name: "501", w1: raw(jsonReply(501, `{}`)), w1Seen: 1, status: 501, code: "upstream_error"},
		{name: "a stream that begins with an error event of 400", w1: raw(sse(`data: {"error":{"message":"bad","code":400}}`+"\n\n", done)), w1Seen: 1, status: 400, text: `{"error":{"message":"bad","code":400}}`},
		{
			name: "500 when only what cannot have run is repeated", w1: raw(jsonReply(500, `{}`)), w1Seen: 1, status: 500, code: "upstream_error",
			option: change(func(c *forward.Config) { c.RetrySafety = forward.PreDispatch }),
		},
		{
			name: "a dispatched request when only what cannot have run is repeated", w1: rawClose(""), w1Seen: 1, status: 502, code: "upstream_reset",
			option: change(func(c *forward.Config) { c.RetrySafety = forward.PreDispatch }),
		},
		{
			name: "a refused connection when only what cannot have run is repeated", w1: nil, moved: true, retryAs: "dial",
			option: change(func(c *forward.Config) { c.RetrySafety = forward.PreDispatch }),
		},
		{
			name: "500 without retries", w1: raw(jsonReply(500, `{}`)), w1Seen: 1, status: 500, code: "upstream_error",
			option: change(func(c *forward.Config) { c.MaxRetries = 0 }),
		},
		{
			name: "500 without failover of direct requests", w1: raw(jsonReply(500, `{}`)), w1Seen: 1, status: 500, code: "upstream_error",
			option: change(func(c *forward.Config) { c.DirectFailover = false }),
		},
		{name: "500 on an unknown path", path: "/v1/load_lora", w1: raw(jsonReply(500, `engine text`)), w1Seen: 1, status: 500, text: "engine text"},
		{name: "500 of embeddings", path: "/v1/embeddings", body: chatBody, w1: raw(jsonReply(500, `x`)), moved: true, w1Seen: 1, retryAs: "head"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			options := []option{direct}
			if tc.option != nil {
				options = append(options, tc.option)
			}
			w := newWorld(t, []script{tc.w1, good}, options...)
			body := tc.body
			if body == "" {
				body = streamBody
			}
			got := w.do(call{path: tc.path, body: body, header: toW1})
			w.settled(1)
			w2Seen := 0
			if tc.moved {
				w2Seen = 1
			}
			if n := w.receipts(); !slices.Equal(n, []int{tc.w1Seen, w2Seen}) {
				t.Errorf("deliveries %v, want [%d %d]", n, tc.w1Seen, w2Seen)
			}
			if tc.moved {
				if got.status != 200 || strings.Contains(body, "true") && got.body != goodBody || !strings.Contains(got.body, "ok") {
					t.Errorf("status %d body %q", got.status, got.body)
				}
				if n := w.count("infera_router_retries_total", "stage="+tc.retryAs); n != 1 {
					t.Errorf("%d retries of stage %s, want 1", n, tc.retryAs)
				}
				if n := w.count("infera_request_duration_seconds", "outcome=ok"); n != 1 {
					t.Errorf("%d requests counted ok", n)
				}
				return
			}
			if got.status != tc.status || tc.text != "" && got.body != tc.text {
				t.Errorf("status %d body %q, want %d %q", got.status, got.body, tc.status, tc.text)
			}
			if tc.code != "" && errorOf(t, got).Code != tc.code {
				t.Errorf("error %+v, want code %q", errorOf(t, got), tc.code)
			}
			if n := w.count("infera_router_retries_total"); n != 0 {
				t.Errorf("%d retries", n)
			}
		})
	}
}

type openAIError struct {
	Message, Type, Code string
	Param               *string
}

func errorOf(t *testing.T, got reply) openAIError {
	t.Helper()
	var v struct{ Error openAIError }
	if err := json.Unmarshal([]byte(got.body), &v); err != nil || v.Error.Message == "" {
		t.Fatalf("not an error object: %q", got.body)
	}
	if got.header.Get("Content-Type") != "application/json" {
		t.Errorf("content type %q", got.header.Get("Content-Type"))
	}
	return v.Error
}

func TestRequestMaxRetriesGoToWorkersNotTried(t *testing.T) {
	bad := raw(jsonReply(500, `{"error":"secret 10.0.0.7"}`))
	for retries := range 4 {
		w := newWorld(t, []script{bad, bad, bad}, change(func(c *forward.Config) { c.MaxRetries = retries }))
		got := w.do(call{body: chatBody})
		total := 0
		for i, n := range w.receipts() {
			if n > 1 {
				t.Errorf("%d retries: w%d got the request %d times", retries, i+1, n)
			}
			total += n
		}
		if want := min(retries+1, 3); total != want {
			t.Errorf("%d retries: %d deliveries, want %d", retries, total, want)
		}
		if got.status != 500 || errorOf(t, got).Code != "upstream_error" || strings.Contains(got.body, "secret") {
			t.Errorf("status %d body %s", got.status, got.body)
		}
		if got.header.Get("X-Should-Retry") != "false" {
			t.Error("a client may repeat a request that may have run")
		}
		w.settled(1)
	}
}

func TestAttemptsOfOneRequestCarryItsIDAndTheirOwn(t *testing.T) {
	w := newWorld(t, []script{raw(jsonReply(500, `{}`)), good}, direct)
	got := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1", "X-Infera-Request-Id": "req.7"}})
	if got.header.Get("X-Infera-Request-Id") != "req.7" {
		t.Errorf("returned ID %q", got.header.Get("X-Infera-Request-Id"))
	}
	for i, want := range []string{"req.7/m1", "req.7/m2"} {
		h := w.engines[i].got()[0].head.Header
		if h.Get("X-Infera-Attempt-Id") != want || !strings.HasPrefix(h.Get("X-Request-Id"), want+"/") {
			t.Errorf("attempt %d: %v", i+1, h)
		}
	}
	if got := w.do(call{body: chatBody, header: map[string]string{"X-Infera-Request-Id": "bad id"}}); len(got.header.Get("X-Infera-Request-Id")) != 36 {
		t.Errorf("a bad ID was replaced by %q", got.header.Get("X-Infera-Request-Id"))
	}
}

func TestAFullFleetPassesItsRefusalOn(t *testing.T) {
	full := raw(jsonReply(429, `{"error":{"message":"full"}}`, "Retry-After: 7"))
	w := newWorld(t, []script{full, full})
	got := w.do(call{body: chatBody})
	if got.status != 429 || got.header.Get("Retry-After") != "7" || got.body != `{"error":{"message":"full"}}` {
		t.Errorf("status %d, Retry-After %q, body %q", got.status, got.header.Get("Retry-After"), got.body)
	}
	if n := w.receipts(); !slices.Equal(n, []int{1, 1}) {
		t.Errorf("deliveries %v: the other worker was not asked", n)
	}
	w.settled(1)

	busy := raw(jsonReply(503, `busy`, "Retry-After: 9"))
	w = newWorld(t, []script{busy})
	got = w.do(call{body: chatBody})
	if got.status != 503 || got.header.Get("Retry-After") != "9" || got.header.Get("X-Should-Retry") != "" {
		t.Errorf("status %d, headers %v", got.status, got.header)
	}
}

func TestOnlyAWorkersFaultsTripItsBreaker(t *testing.T) {
	tests := map[string]struct {
		script script
		trips  bool
	}{
		"400":                  {raw(jsonReply(400, `{}`)), false},
		"429":                  {raw(jsonReply(429, `{}`)), false},
		"503 with Retry-After": {raw(jsonReply(503, `{}`, "Retry-After: 1")), false},
		"503":                  {raw(jsonReply(503, `{}`)), true},
		"500":                  {raw(jsonReply(500, `{}`)), true},
		"no answer":            {rawClose(""), true},
		"a refused connection": {nil, true},
		"a cut stream":         {rawClose(sseOpen(tok0)), true},
		"an error event":       {raw(sse(tok0, `data: {"error":{"message":"x"}}`+"\n\n")), true},
		"success":              {good, false},
	}
	for name, tc := range tests {
		w := newWorld(t, []script{tc.script})
		for range 3 {
			w.do(call{body: streamBody})
		}
		w.settled(3)
		open := !w.breakers.Circuit("w1").Allows(time.Now())
		if open != tc.trips {
			t.Errorf("%s three times: circuit open %v, want %v", name, open, tc.trips)
		}
	}
}

func TestAWorkerWithoutATransportIsPassedOver(t *testing.T) {
	w := newWorld(t, []script{good, good}, direct)
	workers := w.fleet()
	workers[0].Transport = "nats"
	w.feed.Replace(workers)
	if got := w.do(call{body: chatBody, header: toW1}); got.status != 200 {
		t.Errorf("status %d", got.status)
	}
	workers = w.fleet()[:1]
	workers[0].Transport = "nats"
	w.feed.Replace(workers)
	got := w.do(call{body: chatBody, header: toW1})
	if got.status != http.StatusServiceUnavailable || errorOf(t, got).Code != "no_transport" {
		t.Errorf("status %d body %s", got.status, got.body)
	}
	w.settled(2)
}
