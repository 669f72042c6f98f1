package extproc

import (
	"strconv"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"pointsman/admission"
	"pointsman/internal/testkit"
	"pointsman/objectives"
)

// standIn makes to stand in for from in w's pool.
func standIn(w *world, from, to string) {
	w.server.deps.Objectives = new(objectives.Book)
	w.server.deps.Objectives.Set(nil, []objectives.Rewrite{{Name: "canary", Rules: []objectives.Rule{
		{Models: []string{from}, Targets: []objectives.Target{{Model: to, Weight: 1}}},
	}}})
}

func TestTheModelIsRewrittenInTheBody(t *testing.T) {
	long := strings.Repeat("word ", 40_000)
	for _, tc := range []struct{ name, path, body, header, want string }{
		{"of a chat", chatPath, chat("public", "hi"), "", chat("v2", "hi")},
		{"of a long one in pieces", chatPath, chat("public", long), "", chat("v2", long)},
		{"with spaces around it", chatPath, `{"messages":[{"role":"user","content":"hi"}] , "model" : "public" }`, "", `{"messages":[{"role":"user","content":"hi"}] , "model" : "v2" }`},
		{"with an escape in its name", chatPath, `{"model":"pub\u006cic","messages":[{"role":"user","content":"hi"}]}`, "", `{"model":"v2","messages":[{"role":"user","content":"hi"}]}`},
		{"of a path that is not known", "/v1/embeddings", `{"model":"public","input":"x"}`, "", `{"model":"v2","input":"x"}`},
		{"by the header, where no rule is for the model", chatPath, chat("other", "hi"), "v2", chat("v2", "hi")},
		{"by the rule, where both say something", chatPath, chat("public", "hi"), "v1", chat("v2", "hi")},
		{"not, where neither says anything", chatPath, chat("v2", "hi"), "", chat("v2", "hi")},
	} {
		for _, pieces := range []int{1, 3} {
			t.Run(tc.name+" in "+strconv.Itoa(pieces), func(t *testing.T) {
				cfg := testConfig()
				cfg.RewriteHeader = true
				w := newWorld(t, cfg, mixed(workerID, "v2"))
				standIn(w, "public", "v2")
				g := w.open()
				headers := []string{"content-length", strconv.Itoa(len(tc.body))}
				if tc.header != "" {
					headers = append(headers, HeaderRewrite, tc.header)
				}
				g.send(post(tc.path, headers...))
				at := len(tc.body) / pieces
				for i := range pieces - 1 {
					g.send(requestBody(tc.body[i*at:(i+1)*at], false))
				}
				g.send(requestBody(tc.body[(pieces-1)*at:], true))
				m := g.routedHeaders()
				if m.set[HeaderWorker] != workerID {
					t.Errorf("went to %q", m.set[HeaderWorker])
				}
				want := ""
				if tc.body != tc.want {
					want = strconv.Itoa(len(tc.want))
				}
				if got := m.set["content-length"]; got != want {
					t.Errorf("content-length %q, want %q", got, want)
				}
				if got := g.streamedBody(0, true); got != tc.want {
					t.Errorf("the body is %.200q…, want %.200q…", got, tc.want)
				}
				g.finish()
			})
		}
	}
}

func TestABufferedBodyIsRewritten(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "v2"))
	standIn(w, "public", "v2")
	g := w.open()
	g.send(withModes(post(chatPath), buffered, none))
	g.receive()
	g.send(requestBody(chat("public", "hi"), true))
	common := g.receive().GetRequestBody().GetResponse()
	if got, want := string(common.GetBodyMutation().GetBody()), chat("v2", "hi"); got != want {
		t.Errorf("body %q, want %q", got, want)
	}
	if got, want := mutationsOf(common.GetHeaderMutation()).set["content-length"], strconv.Itoa(len(chat("v2", "hi"))); got != want {
		t.Errorf("content-length %q, want %q", got, want)
	}
	g.finish()
}

func TestARewriteToAModelThatNobodyServesIs404(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "public"))
	standIn(w, "public", "v3")
	g := w.open()
	g.send(post(chatPath), requestBody(chat("public", "hi"), true))
	if r := g.immediate(); r.GetStatus().GetCode() != 404 || !strings.Contains(string(r.GetBody()), "v3") {
		t.Errorf("got %v", r)
	}
}

func TestAnObjectiveSetsThePriority(t *testing.T) {
	for _, tc := range []struct {
		name string
		low  []string // headers of the request that shall wait longer
	}{
		{"of a named objective", []string{HeaderObjective, "batch"}},
		{"of none is 0", nil},
		{"of an unknown one is 0", []string{HeaderObjective, "nobody's"}},
		{"gives way to whoever authenticates", []string{HeaderObjective, "urgent", "x-priority", "-3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Admission.Priority = "x-priority"
			w := newWorld(t, cfg, mixed(workerID, "m"))
			w.server.deps.Objectives = new(objectives.Book)
			w.server.deps.Objectives.Set([]objectives.Objective{{Name: "batch", Priority: -5}, {Name: "urgent", Priority: 7}}, nil)
			gate := gated(w, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 1, 4, time.Minute })
			first := w.asks()
			first.routedHeaders()
			low := w.asks(tc.low...)
			w.queued(1)
			high := w.asks(HeaderObjective, "urgent")
			w.queued(2)
			first.cancel()
			high.routedHeaders() // though it came later
			if n := gate.Snapshot().Queued; n != 1 {
				t.Errorf("%d wait, want 1", n)
			}
			high.cancel()
			low.routedHeaders()
			low.cancel()
			testkit.Until(t, "all given back", func() bool { return gate.Snapshot().Inflight == 0 && w.held() == 0 })
		})
	}
}

func TestConformanceMode(t *testing.T) {
	cfg := testConfig()
	cfg.Conformance = true
	workers := []string{"10.0.0.1:30000", "10.0.0.2:30000", "10.0.0.3:30000"}
	w := newWorld(t, cfg, mixed(workers[0], "m"), mixed(workers[1], "m"), mixed(workers[2], "m"))
	for _, tc := range []struct{ name, header, want string }{
		{"an address", "10.0.0.2", "10.0.0.2:8000"},
		{"an endpoint", "10.0.0.3:8000", "10.0.0.3:8000"},
		{"a list with spaces and one that is not there", "10.0.0.9:8000, 10.0.0.1:8000", "10.0.0.1:8000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := w.open()
			g.send(withMetadata(post(chatPath, headerSelection, tc.header), namespaceSubset, HeaderSubset, []any{"10.0.0.9:8000"}),
				withMetadata(requestBody(chat("m", "x"), true), namespaceSubset, HeaderSubset, []any{"10.0.0.9:8000"}))
			m := g.routedHeaders()
			if got := m.set[HeaderDestination]; got != tc.want {
				t.Errorf("went to %s, want %s", got, tc.want)
			}
			if got, want := m.set[headerEcho], headerConformance+":"+tc.want; got != want {
				t.Errorf("%s: %q, want %q", headerEcho, got, want)
			}
			g.streamedBody(0, true)
			g.send(withMetadata(responseHeaders(true, ":status", "200"), namespaceLB, HeaderServed, "10.1.1.1:80"))
			told := mutationsOf(g.receive().GetResponseHeaders().GetResponse().GetHeaderMutation()).set[headerConformance]
			if told != "10.1.1.1:80" {
				t.Errorf("the response tells %q", told)
			}
			g.finish()
		})
	}
	t.Run("nobody of that name is 503", func(t *testing.T) {
		g := w.open()
		g.send(requestHeaders(true, ":method", "GET", ":path", "/", headerSelection, "10.0.0.9"))
		if r := g.immediate(); r.GetStatus().GetCode() != 503 {
			t.Errorf("got %v", r)
		}
	})
	t.Run("a gateway that does not tell who served fails", func(t *testing.T) {
		g := w.open()
		g.send(get("/"))
		g.routedHeaders()
		g.send(responseHeaders(true, ":status", "200"))
		told := mutationsOf(g.receive().GetResponseHeaders().GetResponse().GetHeaderMutation()).set[headerConformance]
		if !strings.HasPrefix(told, "fail:") {
			t.Errorf("the response tells %q", told)
		}
		g.finish()
	})
}

func TestWithoutConformanceModeItsHeaderIsNoHint(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	g := w.open()
	g.send(requestHeaders(true, ":method", "GET", ":path", "/", headerSelection, "10.0.0.9"))
	if m := g.routedHeaders(); m.set[headerEcho] != "" {
		t.Errorf("set %v", m.set)
	}
	g.send(responseHeaders(true, ":status", "200"))
	g.unchanged(kindResponseHeaders)
	g.finish()
}

// The helpers of GIE's own tests show no pseudo-headers.
func TestWithoutPseudoHeadersTheBodyTellsTheAPI(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	for _, tc := range []struct {
		name, body string
		status     int
	}{
		{"a chat", chat("m", "x"), 0},
		{"a completion", `{"model":"m","prompt":"x"}`, 0},
		{"no JSON", `{"model":`, 400},
		{"no model", `{"prompt":"x"}`, 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := w.open()
			g.send([]*extprocv3.ProcessingRequest{requestHeaders(false, "hi", "mom"), requestBody(tc.body, true)}...)
			if tc.status != 0 {
				if r := g.immediate(); int(r.GetStatus().GetCode()) != tc.status {
					t.Errorf("got %v", r)
				}
				return
			}
			g.routedHeaders()
			g.streamedBody(0, true)
			g.finish()
		})
	}
}
