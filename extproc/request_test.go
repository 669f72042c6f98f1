package extproc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"pointsman/fleet"
	"pointsman/picker"
)

const (
	none       = modev3.ProcessingMode_NONE
	streamed   = modev3.ProcessingMode_STREAMED
	buffered   = modev3.ProcessingMode_BUFFERED
	partial    = modev3.ProcessingMode_BUFFERED_PARTIAL
	fullDuplex = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// forged are the headers by which a client might try to steer.
func forged() []string {
	var pairs []string
	for _, h := range controls {
		pairs = append(pairs, h.name, "10.6.6.6:666")
	}
	return pairs
}

func cut(body string, sizes ...int) []*extprocv3.ProcessingRequest {
	var msgs []*extprocv3.ProcessingRequest
	for _, n := range sizes {
		msgs = append(msgs, requestBody(body[:n], false))
		body = body[n:]
	}
	return append(msgs, requestBody(body, true))
}

func TestFullDuplexAnswersHeadersOnlyAfterTheWholeBody(t *testing.T) {
	long := chat("m", strings.Repeat("a long prompt, ", 20000)) // 300 KB
	cases := []struct {
		name string
		body string
		msgs []*extprocv3.ProcessingRequest
	}{
		{"one chunk", chat("m", "hello"), cut(chat("m", "hello"))},
		{"two chunks", chat("m", "hello"), cut(chat("m", "hello"), 9)},
		{"HTTP/1.1: an empty chunk ends it", chat("m", "hello"), cut(chat("m", "hello"), len(chat("m", "hello")))},
		{"an empty chunk first", chat("m", "hello"), cut(chat("m", "hello"), 0, 20)},
		{"a large chunk", long, cut(long)},
		{"many chunks", long, cut(long, 16384, 16384, 100000, 1, 62000)},
	}
	for _, c := range cases {
		for _, explicit := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, protocol_config %t", c.name, explicit), func(t *testing.T) {
				w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
				g := w.open()
				head := post(chatPath, forged()...)
				if explicit {
					head = withModes(head, fullDuplex, fullDuplex)
				}
				g.send(head)
				g.send(c.msgs...)
				m := g.routedHeaders()
				if m.set[HeaderDestination] != "10.0.0.1:8000" || m.set[HeaderWorker] != "10.0.0.1:30000" || len(m.set) != 2 {
					t.Errorf("headers set: %v", m.set)
				}
				if got := g.streamedBody(0, true); got != c.body {
					t.Errorf("the body came back with %d bytes, not as it was sent (%d)", len(got), len(c.body))
				}
				if w.held() != 1 {
					t.Errorf("%d picks in flight, want 1", w.held())
				}
				g.finish()
				if w.held() != 0 {
					t.Error("the pick is in flight after its stream ended")
				}
			})
		}
	}
}

func TestTrailersEndABody(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	body := chat("m", "hello")
	g := w.open()
	g.send(post(chatPath), requestBody(body[:10], false), requestBody(body[10:], false), requestTrailers("x-checksum", "1"))
	g.routedHeaders()
	if got := g.streamedBody(len(body), false); got != body {
		t.Errorf("the body came back as %q", got)
	}
	g.unchanged(kindRequestTrailers)
	g.finish()
}

func TestTrailersWithoutABodyAreABadRequestOnlyWhereABodyIsNeeded(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	g := w.open()
	g.send(post("/v1/other"), requestTrailers("x", "1"))
	g.routedHeaders()
	g.unchanged(kindRequestTrailers)
	g.finish()

	g = w.open()
	g.send(post(chatPath), requestTrailers("x", "1"))
	if r := g.immediate(); r.GetStatus().GetCode() != 400 {
		t.Errorf("status %v", r.GetStatus())
	}

	g = w.open()
	g.send(withModes(post(chatPath), buffered, none), requestTrailers("x", "1"))
	g.receive() // headers, answered at once
	if r := g.immediate(); r.GetStatus().GetCode() != 400 {
		t.Errorf("BUFFERED: status %v", r.GetStatus())
	}
}

func TestBufferedAnswersHeadersAtOnceAndRoutesOnTheBody(t *testing.T) {
	for _, mode := range []modev3.ProcessingMode_BodySendMode{buffered, partial} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "other"))
			g := w.open()
			g.send(withModes(post(chatPath, forged()...), mode, buffered))
			r := g.receive()
			m := mutationsOf(r.GetRequestHeaders().GetResponse().GetHeaderMutation())
			g.checkControl(m)
			if r.GetRequestHeaders() == nil || len(m.set) != 0 || r.GetDynamicMetadata() != nil {
				t.Fatalf("headers answer: %v", r)
			}
			g.send(requestBody(chat("other", "hello"), true))
			r = g.receive()
			if r.GetRequestBody() == nil || r.GetRequestBody().GetResponse().GetBodyMutation() != nil {
				t.Fatalf("body answer: %v", r)
			}
			m = mutationsOf(r.GetRequestBody().GetResponse().GetHeaderMutation())
			g.checkRouted(r, m)
			if m.set[HeaderWorker] != "10.0.0.2:30000" {
				t.Errorf("routed to %v, want the worker that serves the model", m.set)
			}
			g.send(responseHeaders(false, ":status", "200"), responseBody("{}", true))
			g.unchanged(kindResponseHeaders)
			g.unchanged(kindResponseBody)
			if w.held() != 0 {
				t.Error("the pick is in flight after the response's end")
			}
			g.finish()
		})
	}
}

func TestAPartialBodyIsRoutedByLoad(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	g := w.open()
	g.send(withModes(post(chatPath), partial, none))
	g.receive()
	g.send(requestBody(chat("m", "hello")[:20], false))
	r := g.receive()
	g.checkRouted(r, mutationsOf(r.GetRequestBody().GetResponse().GetHeaderMutation()))
	g.finish()
}

func TestModesThatDoNotShowTheBodyRouteByLoad(t *testing.T) {
	for _, mode := range []modev3.ProcessingMode_BodySendMode{none, streamed} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "m"))
			seen := map[string]bool{}
			for range 2 {
				g := w.open()
				g.send(withModes(post(chatPath, forged()...), mode, none))
				seen[g.routedHeaders().set[HeaderWorker]] = true
				if mode == streamed {
					g.send(requestBody(chat("m", "x")[:10], false), requestBody(chat("m", "x")[10:], true))
					g.unchanged(kindRequestBody)
					g.unchanged(kindRequestBody)
				}
				defer g.finish()
			}
			if len(seen) != 2 {
				t.Errorf("two requests went to %v; by load they go to both workers", seen)
			}
		})
	}
}

func TestRequestsWithoutABodyGoToAnyWorker(t *testing.T) {
	for _, head := range []*extprocv3.ProcessingRequest{
		get("/v1/models"), get(chatPath), get("/metrics"),
		requestHeaders(true, ":method", "DELETE", ":path", "/v1/files/1"),
		requestHeaders(true, ":method", "POST", ":path", "/v1/load_lora_adapter"),
		requestHeaders(true),
	} {
		w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
		g := w.open()
		g.send(head)
		if m := g.routedHeaders(); m.set[HeaderDestination] != "10.0.0.1:8000" {
			t.Errorf("%v: %v", head, m.set)
		}
		g.finish()
	}
}

func TestUnknownPathsAreNeverRefused(t *testing.T) {
	cases := []struct {
		name, path, body string
		want             string // worker, "" for any
	}{
		{"a model that is served", "/v1/embeddings", `{"model":"b","input":"x"}`, "10.0.0.2:30000"},
		{"a model that nobody serves", "/v1/messages/count_tokens", `{"model":"zzz","messages":[]}`, ""},
		{"no model", "/tokenize", `{"prompt":"x"}`, ""},
		{"no JSON", "/v1/audio/transcriptions", "--boundary\r\n\x00\xff", ""},
		{"an empty body", "/v1/x", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "a"), mixed("10.0.0.2:30000", "b"))
			g := w.open()
			g.send(post(c.path), requestBody(c.body, true))
			m := g.routedHeaders()
			if c.want != "" && m.set[HeaderWorker] != c.want {
				t.Errorf("routed to %s, want %s", m.set[HeaderWorker], c.want)
			}
			if got := g.streamedBody(0, true); got != c.body {
				t.Errorf("body %q", got)
			}
			g.finish()
		})
	}
}

func TestAPairAndARankAreNamedInHeaders(t *testing.T) {
	t.Run("prefill and decode", func(t *testing.T) {
		p, d := mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "m")
		r := route{rank: []byte("3"), prefill: "stale"}
		r.to(&picker.Decision{Worker: d, Prefill: p, Rank: -1, PrefillRank: -1}, 8000)
		m := mutationsOf(decode(t, testAssembler().route(answerRequestHeaders, &r)).
			GetRequestHeaders().GetResponse().GetHeaderMutation())
		if m.set[HeaderWorker] != d.ID || m.set[HeaderPrefill] != p.ID || m.set[HeaderDestination] != "10.0.0.2:8000" || len(m.set) != 3 {
			t.Errorf("headers set: %v", m.set)
		}
	})
	t.Run("P11: the ranks of a pair, of which each leg has its own", func(t *testing.T) {
		p, d := mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "m")
		p.Role, d.Role, p.Protocol, d.Protocol, p.DPSize, d.DPSize = fleet.Prefill, fleet.Decode, "x", "x", 4, 2
		w := newWorld(t, testConfig(), p, d)
		g := w.open()
		g.send(post(chatPath), requestBody(chat("m", "x"), true))
		set := g.routedHeaders().set
		if set[HeaderPrefill] != p.ID || set[HeaderWorker] != d.ID || set[HeaderPrefillRank] == "" || set[HeaderRank] == "" || set[HeaderPrefillSkip] != "" {
			t.Errorf("headers set: %v", set)
		}
		g.streamedBody(0, true)
		g.finish()
	})
	t.Run("a decode worker that computes the prompt itself", func(t *testing.T) {
		d := mixed("10.0.0.2:30000", "m")
		d.Role = fleet.Decode
		r := route{prefill: "stale", prefillRank: []byte("1")}
		r.to(&picker.Decision{Worker: d, Rank: -1, PrefillRank: -1}, 8000)
		if r.prefill != "" || len(r.prefillRank) != 0 || !r.alone {
			t.Errorf("route %+v", r)
		}
		r.to(&picker.Decision{Worker: mixed("10.0.0.3:30000", "m"), Rank: -1, PrefillRank: -1}, 8000)
		if r.alone {
			t.Error("a mixed worker needs no leave to be alone")
		}
	})
	t.Run("a rank", func(t *testing.T) {
		ranks := mixed("10.0.0.1:30000", "m")
		ranks.DPSize = 2
		w := newWorld(t, testConfig(), ranks)
		seen := map[string]bool{}
		for range 2 {
			g := w.open()
			g.send(post(chatPath), requestBody(chat("m", "x"), true))
			seen[g.routedHeaders().set[HeaderRank]] = true
			g.streamedBody(0, true)
			defer g.finish()
		}
		if !seen["0"] || !seen["1"] {
			t.Errorf("two requests went to ranks %v, want both", seen)
		}
	})
	t.Run("an endpoint of its own, and IPv6", func(t *testing.T) {
		own := mixed("10.0.0.1:30000", "a")
		own.Endpoint = "forwarder.local:9000"
		six := &fleet.Worker{ID: "[fd00::1]:30000", Host: "fd00::1", Port: 30000, Model: "b", DPRank: -1}
		w := newWorld(t, testConfig(), own, six)
		for model, want := range map[string]string{"a": "forwarder.local:9000", "b": "[fd00::1]:8000"} {
			g := w.open()
			g.send(post(chatPath), requestBody(chat(model, "x"), true))
			if m := g.routedHeaders(); m.set[HeaderDestination] != want {
				t.Errorf("model %s: %v, want %s", model, m.set, want)
			}
			g.streamedBody(0, true)
			g.finish()
		}
	})
}

func TestSubsetConfinesThePick(t *testing.T) {
	workers := []*fleet.Worker{mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "m"), mixed("10.0.0.3:30000", "m")}
	cases := []struct {
		name   string
		onHead any
		onBody any
		want   string // worker, "" for 503
	}{
		{"a list on the headers", []any{"10.0.0.2:8000"}, nil, "10.0.0.2:30000"},
		{"a string on the headers", "10.0.0.3:8000", nil, "10.0.0.3:30000"},
		{"no port", []any{"10.0.0.2"}, nil, "10.0.0.2:30000"},
		{"repeated on the body", []any{"10.0.0.2:8000"}, []any{"10.0.0.2:8000"}, "10.0.0.2:30000"},
		{"another one on the body", []any{"10.0.0.2:8000"}, []any{"10.0.0.3:8000"}, "10.0.0.3:30000"},
		{"an empty one on the body", []any{"10.0.0.2:8000"}, []any{}, "10.0.0.2:30000"},
		{"empty", []any{}, nil, ""},
		{"unknown endpoints", []any{"10.9.9.9:8000"}, nil, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, testConfig(), workers...)
			g := w.open()
			head, body := post(chatPath), requestBody(chat("m", "x"), true)
			withMetadata(head, namespaceSubset, HeaderSubset, c.onHead)
			if c.onBody != nil {
				withMetadata(body, namespaceSubset, HeaderSubset, c.onBody)
			}
			g.send(head, body)
			if c.want == "" {
				if r := g.immediate(); r.GetStatus().GetCode() != 503 {
					t.Errorf("status %v, want 503", r.GetStatus())
				}
				return
			}
			if m := g.routedHeaders(); m.set[HeaderWorker] != c.want {
				t.Errorf("routed to %s, want %s", m.set[HeaderWorker], c.want)
			}
			g.streamedBody(0, true)
			g.finish()
		})
	}
}

// openAIError is the body that OpenAI clients parse.
type openAIError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
}

func TestRefusalsAreOpenAIErrors(t *testing.T) {
	small := testConfig()
	small.MaxBody = 1000
	full := testConfig()
	full.MaxInFlight = 1
	one := []*fleet.Worker{mixed("10.0.0.1:30000", "m")}
	cases := []struct {
		name    string
		cfg     Config
		workers []*fleet.Worker
		msgs    []*extprocv3.ProcessingRequest
		busy    bool // another request is open
		status  int
		code    string
		retry   bool
	}{
		{"malformed JSON", testConfig(), one, []*extprocv3.ProcessingRequest{post(chatPath), requestBody(`{"model":`, true)}, false, 400, "invalid_json", false},
		{"no model", testConfig(), one, []*extprocv3.ProcessingRequest{post(chatPath), requestBody(`{"messages":[]}`, true)}, false, 400, "no_model", false},
		{"an empty body", testConfig(), one, []*extprocv3.ProcessingRequest{post(chatPath), requestBody("", true)}, false, 400, "", false},
		{"a POST without a body", testConfig(), one, []*extprocv3.ProcessingRequest{requestHeaders(true, ":method", "POST", ":path", chatPath)}, false, 400, "", false},
		{"an unknown model", testConfig(), one, []*extprocv3.ProcessingRequest{post(chatPath), requestBody(chat("nobody", "x"), true)}, false, 404, "model_not_found", false},
		{"a body over the limit", small, one, []*extprocv3.ProcessingRequest{post(chatPath), requestBody(strings.Repeat(" ", 600), false), requestBody(strings.Repeat(" ", 600), false)}, false, 413, "request_too_large", false},
		{"a content-length over the limit", small, one, []*extprocv3.ProcessingRequest{post(chatPath, "content-length", "1001")}, false, 413, "request_too_large", false},
		{"a compressed prompt", testConfig(), one, []*extprocv3.ProcessingRequest{post(chatPath, "content-encoding", "gzip"), requestBody("\x1f\x8b", true)}, false, 415, "unsupported_encoding", false},
		{"too many open", full, one, []*extprocv3.ProcessingRequest{post(chatPath)}, true, 429, "admission_capacity", true},
		{"no worker at all", testConfig(), nil, []*extprocv3.ProcessingRequest{get("/v1/models")}, false, 503, "no_worker", true},
		{"a BUFFERED body that is refused", testConfig(), one, []*extprocv3.ProcessingRequest{withModes(post(chatPath), buffered, none), requestBody("[]", true)}, false, 400, "invalid_json", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.cfg, c.workers...)
			if c.busy {
				other := w.open()
				other.send(get("/v1/models"))
				other.routedHeaders()
			}
			g := w.open()
			g.send(c.msgs...)
			if c.msgs[0].GetProtocolConfig().GetRequestBodyMode() == buffered {
				g.receive()
			}
			checkOpenAIError(t, g.immediate(), c.status, c.code, c.retry)
		})
	}
}

func checkOpenAIError(t *testing.T, r *extprocv3.ImmediateResponse, status int, code string, retry bool) {
	t.Helper()
	if int(r.GetStatus().GetCode()) != status {
		t.Errorf("status %v, want %d", r.GetStatus(), status)
	}
	m := mutationsOf(r.GetHeaders())
	if m.set["content-type"] != "application/json" || (m.set["retry-after"] != "") != retry {
		t.Errorf("headers %v", m.set)
	}
	var body openAIError
	if err := json.Unmarshal(r.GetBody(), &body); err != nil {
		t.Fatalf("body %q: %v", r.GetBody(), err)
	}
	if body.Error.Message == "" || body.Error.Type == "" || body.Error.Code == "" || code != "" && body.Error.Code != code {
		t.Errorf("body %s, want code %q", r.GetBody(), code)
	}
	if r.GetDetails() != "pointsman_"+body.Error.Code {
		t.Errorf("details %q", r.GetDetails())
	}
}

func TestAnthropicPathsAreRefusedInAnthropicShape(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	g := w.open()
	g.send(post("/v1/messages"), requestBody(`{"model":"nobody","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, true))
	r := g.immediate()
	var body struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(r.GetBody(), &body); err != nil {
		t.Fatal(err)
	}
	if body.Type != "error" || body.Error.Type != "not_found_error" || body.Error.Message == "" {
		t.Errorf("body %s", r.GetBody())
	}
}

func TestBytesThatAreNoMessageAreAnsweredWith500(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	g := w.open()
	broken := post(chatPath)
	broken.ProtoReflect().SetUnknown([]byte(raw{}.bytes(2, []byte{0x0a, 0x05}))) // headers again, cut off
	g.send(broken)
	checkOpenAIError(t, g.immediate(), 500, "internal_error", false)
}

func TestMessagesOutOfOrderAreNoReasonToHang(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	t.Run("request headers are not shown", func(t *testing.T) {
		g := w.open()
		g.send(requestBody("x", false), requestBody("y", true))
		if got := g.streamedBody(0, true); got != "xy" {
			t.Errorf("body %q", got)
		}
		g.finish()
	})
	t.Run("a response before the request was answered", func(t *testing.T) {
		g := w.open()
		g.send(post(chatPath), responseHeaders(false, ":status", "408"), responseBody("timeout", true))
		g.unchanged(kindResponseHeaders)
		if got := g.streamedBody(0, true); got != "timeout" {
			t.Errorf("body %q", got)
		}
		g.finish()
	})
	t.Run("an empty message", func(*testing.T) {
		g := w.open()
		g.send(&extprocv3.ProcessingRequest{}, get("/"))
		g.routedHeaders()
		g.finish()
	})
}

// A gateway that starts a second request on a stream is out of its mind; the
// reservation of the first must not be lost by that.
func TestASecondRequestOnAStreamIsRefusedAndLosesNoReservation(t *testing.T) {
	cases := []struct {
		name  string
		first []*extprocv3.ProcessingRequest
		heard int // answers to them
	}{
		{"behind a request without a body", []*extprocv3.ProcessingRequest{get("/v1/models")}, 1},
		{"behind a whole request", []*extprocv3.ProcessingRequest{post(chatPath), requestBody(chat("m", "hi"), true)}, 2},
		{"before the body's end", []*extprocv3.ProcessingRequest{post(chatPath), requestBody("{", false)}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
			g := w.open()
			g.send(c.first...)
			for range c.heard {
				g.receive()
			}
			g.send(post(chatPath))
			if code := g.immediate().GetStatus().GetCode(); code != 500 {
				t.Errorf("status %d, want 500", code)
			}
		})
	}
}

func TestARefusalDoesNotEchoAModelNameOfAnySize(t *testing.T) {
	w := newWorld(t, testConfig(), mixed("10.0.0.1:30000", "m"))
	g := w.open()
	g.send(post(chatPath), requestBody(chat(strings.Repeat("z", 1<<20), "hi"), true))
	r := g.immediate()
	if code := r.GetStatus().GetCode(); code != 404 {
		t.Errorf("status %d, want 404", code)
	}
	if n := len(r.GetBody()); n > 1024 {
		t.Errorf("the refusal has %d bytes", n)
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if n := w.log.Len(); n > 4096 {
		t.Errorf("%d bytes were logged", n)
	}
}
