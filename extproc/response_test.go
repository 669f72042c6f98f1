package extproc

import (
	"strings"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/prompt/audit"
)

const (
	workerID    = "10.0.0.1:30000"
	destination = "10.0.0.1:8000"
)

// routedChat opens a stream and has one chat request routed on it.
func (w *world) routedChat(response modev3.ProcessingMode_BodySendMode) *gateway {
	w.t.Helper()
	g := w.open()
	g.send(withModes(post(chatPath), fullDuplex, response), requestBody(chat("m", strings.Repeat("hello ", 100)), true))
	g.routedHeaders()
	g.streamedBody(0, true)
	return g
}

func TestResponseChunksPassUnchanged(t *testing.T) {
	event := "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n"
	long := strings.Repeat("x", 200000)
	for _, mode := range []modev3.ProcessingMode_BodySendMode{fullDuplex, streamed, buffered} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed(workerID, "m"))
			g := w.routedChat(mode)
			g.send(responseHeaders(false, ":status", "200", "content-type", "text/event-stream"))
			g.unchanged(kindResponseHeaders)
			chunks := []string{event, "", event, long, "data: [DONE]\n\n"}
			if mode == buffered {
				chunks = []string{strings.Join(chunks, "")}
			}
			for i, chunk := range chunks {
				g.send(responseBody(chunk, i == len(chunks)-1))
			}
			if mode == fullDuplex {
				if got := g.streamedBody(0, true); got != strings.Join(chunks, "") {
					t.Errorf("the body came back with %d bytes, not as it was sent", len(got))
				}
			} else {
				for range chunks { // one answer for each message
					g.unchanged(kindResponseBody)
				}
			}
			if w.held() != 0 {
				t.Error("the pick is in flight after the response's end")
			}
			g.finish()
			if n := testutil.ToFloat64(w.server.metrics.byEnding[endComplete][2]); n != 1 {
				t.Errorf("%v complete requests counted, want 1", n)
			}
		})
	}
}

func TestResponseTrailersEndAResponse(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	g := w.routedChat(fullDuplex)
	g.send(responseHeaders(false, ":status", "200"), responseBody("x", false))
	g.unchanged(kindResponseHeaders)
	g.streamedBody(1, false)
	if w.held() != 1 {
		t.Error("the pick was given back before the trailers")
	}
	g.send(responseTrailers("grpc-status", "0"))
	g.unchanged(kindResponseTrailers)
	if w.held() != 0 {
		t.Error("the pick is in flight after the trailers")
	}
	g.finish()
}

func TestUsageIsAudited(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	g := w.routedChat(fullDuplex)
	g.send(
		responseHeaders(false, ":status", "200"),
		responseBody("data: {\"choices\":[]}\n\n", false),
		// Cut in the middle: chunks do not respect events.
		responseBody("data: {\"usage\":{\"prompt_tokens\":1", false),
		responseBody("60,\"prompt_tokens_details\":{\"cached_tokens\":128}}}\n\ndata: [DONE]\n\n", true),
	)
	g.unchanged(kindResponseHeaders)
	g.streamedBody(0, true)
	g.finish()

	g = w.routedChat(fullDuplex) // compressed: not read
	g.send(responseHeaders(false, ":status", "200", "content-encoding", "gzip"), responseBody(`{"usage":{"prompt_tokens":1}}`, true))
	g.unchanged(kindResponseHeaders)
	g.streamedBody(0, true)
	g.finish()

	g = w.routedChat(fullDuplex) // an error's body is no usage
	g.send(responseHeaders(false, ":status", "400"), responseBody(`{"usage":{"prompt_tokens":1}}`, true))
	g.unchanged(kindResponseHeaders)
	g.streamedBody(0, true)
	g.finish()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if len(w.usage) != 1 {
		t.Fatalf("audited %v, want one", w.usage)
	}
	u := w.usage[0]
	if u.Worker != workerID || u.Counted != 160 || u.Cached != 128 || u.Tokens == 0 || u.Model != "m" || u.Skip != audit.SkipApprox || u.Began.IsZero() {
		t.Errorf("audited %+v", u)
	}
	m := w.server.metrics
	if testutil.ToFloat64(m.usagePrompt) != 160 || testutil.ToFloat64(m.usageCached) != 128 || testutil.ToFloat64(m.usageRequests) != 1 {
		t.Error("the usage counters do not say so")
	}
}

func TestTheFirstTokenMarksThePromptAsCached(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"), mixed("10.0.0.2:30000", "m"))
	g := w.routedChat(fullDuplex)
	g.send(responseHeaders(false, ":status", "200"), responseBody("x", true))
	g.unchanged(kindResponseHeaders)
	g.streamedBody(0, true)
	g.finish()
	again := w.routedChat(fullDuplex)
	again.send(responseHeaders(false, ":status", "200"), responseBody(`{"usage":{"prompt_tokens":160}}`, true))
	again.unchanged(kindResponseHeaders)
	again.streamedBody(0, true)
	again.finish()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if len(w.usage) != 1 || w.usage[0].Hit == 0 {
		t.Errorf("audited %+v, want a predicted hit for the repeated prompt", w.usage)
	}
}

// outcomes are what a response says about the picked worker.
func TestOnlyThePickedWorkersFaultsTripItsBreaker(t *testing.T) {
	attribute := func(m *extprocv3.ProcessingRequest, address string) *extprocv3.ProcessingRequest {
		s, err := structpb.NewStruct(map[string]any{attributeUpstream: address})
		if err != nil {
			t.Fatal(err)
		}
		m.Attributes = map[string]*structpb.Struct{namespaceExtProc: s}
		return m
	}
	served := func(m *extprocv3.ProcessingRequest, address string) *extprocv3.ProcessingRequest {
		return withMetadata(m, namespaceLB, HeaderServed, address)
	}
	status := func(code string, more ...string) *extprocv3.ProcessingRequest {
		return responseHeaders(false, append([]string{":status", code}, more...)...)
	}
	cases := []struct {
		name string
		head func() *extprocv3.ProcessingRequest
		want breaker.Outcome
	}{
		{"500", func() *extprocv3.ProcessingRequest { return status("500") }, breaker.Origin},
		{"500 with the status in value", func() *extprocv3.ProcessingRequest {
			m := status("500")
			h := m.GetResponseHeaders().GetHeaders().GetHeaders()[0]
			h.Value, h.RawValue = "500", nil
			return m
		}, breaker.Origin},
		{"503 that names the picked worker as served", func() *extprocv3.ProcessingRequest { return served(status("503"), destination) }, breaker.Origin},
		{"503 with the picked worker's address", func() *extprocv3.ProcessingRequest { return attribute(status("503"), destination) }, breaker.Origin},
		{"503 that Envoy marked as a worker's", func() *extprocv3.ProcessingRequest { return status("503", "x-envoy-upstream-service-time", "3") }, breaker.Origin},
		{"503 of nobody: Envoy's own", func() *extprocv3.ProcessingRequest { return status("503") }, breaker.Neutral},
		{"504 of nobody: Envoy's own", func() *extprocv3.ProcessingRequest { return status("504") }, breaker.Neutral},
		{"500 of another worker", func() *extprocv3.ProcessingRequest { return served(status("500"), "10.0.0.9:8000") }, breaker.Neutral},
		{"503 of another address", func() *extprocv3.ProcessingRequest { return attribute(status("503"), "10.0.0.9:8000") }, breaker.Neutral},
		{"200 of another worker after the picked one failed", func() *extprocv3.ProcessingRequest {
			return served(status("200", HeaderAttempts, "m1@"+workerID+";5xx,m2@10.0.0.9:30000;ok"), destination)
		}, breaker.Origin},
		{"200 of another worker after the picked one was full", func() *extprocv3.ProcessingRequest {
			return served(status("200", HeaderAttempts, "m1@"+workerID+";busy,m2@10.0.0.9:30000;ok"), destination)
		}, breaker.Neutral},
		{"200 of the picked worker after another failed", func() *extprocv3.ProcessingRequest {
			return served(status("200", HeaderAttempts, "m1@10.0.0.9:30000;5xx, m2@"+workerID+";ok"), destination)
		}, breaker.Success},
		{"502 after all failed", func() *extprocv3.ProcessingRequest {
			return served(status("502", HeaderAttempts, "m1@10.0.0.9:30000;5xx,m2@"+workerID+";5xx"), destination)
		}, breaker.Origin},
		{"503 of the forwarder itself", func() *extprocv3.ProcessingRequest {
			return served(status("503", HeaderAttempts, "none"), destination)
		}, breaker.Neutral},
		{"a receipt that is none", func() *extprocv3.ProcessingRequest {
			return served(status("200", HeaderAttempts, "@,,x@y@"), destination)
		}, breaker.Success},
		{"429", func() *extprocv3.ProcessingRequest { return status("429") }, breaker.Neutral},
		{"400", func() *extprocv3.ProcessingRequest { return status("400") }, breaker.Neutral},
		{"no status", func() *extprocv3.ProcessingRequest { return responseHeaders(false) }, breaker.Neutral},
		{"200", func() *extprocv3.ProcessingRequest { return status("200") }, breaker.Success},
		{"200 of another worker", func() *extprocv3.ProcessingRequest { return served(status("200"), "10.0.0.9:8000") }, breaker.Neutral},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			// The breaker trips at two faults in a row: the response under test
			// stands between two faults, or after one.
			w := newWorld(t, testConfig(), mixed(workerID, "m"))
			respond := func(head *extprocv3.ProcessingRequest) {
				g := w.routedChat(fullDuplex)
				g.send(head, responseBody("x", true))
				g.unchanged(kindResponseHeaders)
				g.streamedBody(0, true)
				g.finish()
			}
			state := func() breaker.State { return w.breakers.Circuit(workerID).State(time.Now()) }
			respond(served(status("500"), destination))
			respond(c.head())
			if got := state() != breaker.Closed; got != (c.want == breaker.Origin) {
				t.Fatalf("breaker open after it: %t; want the outcome %v", got, c.want)
			}
			if c.want == breaker.Origin {
				return
			}
			respond(served(status("500"), destination))
			if got := state() != breaker.Closed; got != (c.want == breaker.Neutral) {
				t.Errorf("breaker open after another fault: %t; want the outcome %v", got, c.want)
			}
		})
	}
}

// TestAPrefillWorkersFaultsTripItsBreaker: a gateway sees the decode worker's
// forwarder only, so that its receipt alone tells of a sick prefill worker. Without
// it every request would be sent there first.
func TestAPrefillWorkersFaultsTripItsBreaker(t *testing.T) {
	const prefillID = "10.0.0.7:30000"
	cases := []struct {
		name, status, receipt string
		want                  breaker.Outcome
	}{
		{"another pair served", "200", "p1@" + prefillID + ";5xx,d1@" + workerID + ";aborted,p2@10.0.0.8:30000;ok,d2@10.0.0.9:30000;ok", breaker.Origin},
		{"another prefill worker served the same decode worker", "200", "p1@" + prefillID + ";5xx,p2@10.0.0.8:30000;ok,d1@" + workerID + ";ok", breaker.Origin},
		{"all failed", "502", "p1@" + prefillID + ";5xx,d1@" + workerID + ";aborted", breaker.Origin},
		{"the pair served", "200", "", breaker.Success},
		{"the decode worker alone failed", "500", "p1@" + prefillID + ";ok,d1@" + workerID + ";5xx", breaker.Neutral},
		{"a receipt of others", "200", "m1@10.0.0.9:30000;5xx,m2@10.0.0.8:30000;ok", breaker.Neutral},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, d := mixed(prefillID, "m"), mixed(workerID, "m")
			p.Role, d.Role, p.Protocol, d.Protocol = fleet.Prefill, fleet.Decode, "x", "x"
			w := newWorld(t, testConfig(), p, d)
			respond := func(status, receipt string) {
				g := w.routedChat(fullDuplex)
				g.send(responseHeaders(false, ":status", status, HeaderAttempts, receipt), responseBody("x", true))
				g.unchanged(kindResponseHeaders)
				g.streamedBody(0, true)
				g.finish()
			}
			state := func() breaker.State { return w.breakers.Circuit(prefillID).State(time.Now()) }
			bad := "p1@" + prefillID + ";5xx,d1@" + workerID + ";aborted"
			respond("502", bad)
			respond(c.status, c.receipt)
			if got := state() != breaker.Closed; got != (c.want == breaker.Origin) {
				t.Fatalf("breaker open after it: %t; want the outcome %v", got, c.want)
			}
			if c.want == breaker.Origin {
				return
			}
			respond("502", bad)
			if got := state() != breaker.Closed; got != (c.want == breaker.Neutral) {
				t.Errorf("breaker open after another fault: %t; want the outcome %v", got, c.want)
			}
			if w.breakers.Circuit(workerID).State(time.Now()) != breaker.Closed || w.held() != 0 {
				t.Errorf("decode circuit %v, %d picks held", w.breakers.Circuit(workerID).State(time.Now()), w.held())
			}
		})
	}
}

// TestAWorkerThatTheGatewayCouldNotReachIsBlamedForIt, and no other: Envoy's own
// 503 for a failed connection counts on the picked worker, as does an answer of the
// next endpoint of the list, and other answers of Envoy's own on nobody.
func TestAWorkerThatTheGatewayCouldNotReachIsBlamedForIt(t *testing.T) {
	for _, c := range []struct {
		name, status, served, details, receipt string
		trips                                  bool
	}{
		{"UF: the connection failed", "503", "", "upstream_reset_before_response_started{connection_failure}", "", true},
		{"UF with the address", "503", destination, "upstream_reset_before_response_started{remote_connection_failure|connection_refused}", "", true},
		{"the next endpoint of the list served", "200", "10.0.0.9:8000", "via_upstream", "m1@10.0.0.9:30000;ok", true},
		{"UH: no healthy upstream", "503", "", "no_healthy_upstream", "", false},
		{"UT: the route's timeout", "504", "", "response_timeout", "", false},
		{"no detail", "503", "", "", "", false},
	} {
		w := newWorld(t, testConfig(), mixed(workerID, "m"))
		for range 2 { // the breaker trips at two in a row
			head := responseHeaders(false, ":status", c.status, HeaderAttempts, c.receipt)
			attributes := map[string]any{attributeDetails: c.details}
			if c.served != "" {
				attributes[attributeUpstream] = c.served
			}
			s, err := structpb.NewStruct(attributes)
			if err != nil {
				t.Fatal(err)
			}
			head.Attributes = map[string]*structpb.Struct{namespaceExtProc: s}
			g := w.routedChat(fullDuplex)
			g.send(head, responseBody("x", true))
			g.unchanged(kindResponseHeaders)
			g.streamedBody(0, true)
			g.finish()
		}
		if open := w.breakers.Circuit(workerID).State(time.Now()) != breaker.Closed; open != c.trips {
			t.Errorf("%s: circuit open %t, want %t", c.name, open, c.trips)
		}
	}
}

func TestAPickByHostNameIsComparedByPort(t *testing.T) {
	cases := []struct {
		picked, served string
		same           bool
	}{
		{"10.0.0.1:8000", "10.0.0.1:8000", true},
		{"10.0.0.1:8000", "10.0.0.1:8001", false},
		{"10.0.0.1:8000", "10.0.0.2:8000", false},
		{"worker-1:8000", "10.0.0.1:8000", true},
		{"worker-1:8000", "10.0.0.1:8001", false},
		{"worker-1:8000", "nonsense", false},
		{"[fd00::1]:8000", "[fd00::1]:8000", true},
		{"[fd00::1]:8000", "[fd00::2]:8000", false},
	}
	for _, c := range cases {
		if got := sameEndpoint([]byte(c.picked), []byte(c.served)); got != c.same {
			t.Errorf("picked %s, served %s: same %t", c.picked, c.served, got)
		}
	}
}

func TestThePickIsGivenBackOnceHoweverTheStreamEnds(t *testing.T) {
	head := func() *extprocv3.ProcessingRequest { return responseHeaders(false, ":status", "200") }
	cases := []struct {
		name     string
		response modev3.ProcessingMode_BodySendMode
		end      func(g *gateway)
		ending   ending
		class    int
	}{
		{"the client leaves while the worker thinks", fullDuplex, func(g *gateway) { g.cancel() }, endAborted, 0},
		{"the client leaves in mid-stream", fullDuplex, func(g *gateway) {
			g.send(head(), responseBody("x", false))
			g.unchanged(kindResponseHeaders)
			g.streamedBody(1, false)
			g.cancel()
		}, endAborted, 2},
		{"the gateway half-closes in mid-stream", fullDuplex, func(g *gateway) {
			g.send(head())
			g.unchanged(kindResponseHeaders)
			g.finish()
		}, endAborted, 2},
		{"headers with the end of the stream", fullDuplex, func(g *gateway) {
			g.send(responseHeaders(true, ":status", "204"))
			g.unchanged(kindResponseHeaders)
			g.finish()
		}, endComplete, 2},
		{"response bodies are not shown", none, func(g *gateway) {
			g.send(head())
			g.unchanged(kindResponseHeaders)
			g.cancel() // Envoy resets the stream right then
		}, endUnobserved, 2},
		{"responses are not shown at all", none, func(g *gateway) { g.cancel() }, endUnobserved, 0},
		{"the connection breaks", fullDuplex, func(g *gateway) { _ = g.w.conn.Close() }, endAborted, 0},
		{"a malformed message", fullDuplex, func(g *gateway) {
			broken := responseHeaders(false, ":status", "200")
			broken.ProtoReflect().SetUnknown([]byte(raw{}.bytes(3, []byte{0x0a, 0x05})))
			g.send(broken)
			g.immediate()
		}, endRefused, 5},
		{"the end of the response and then the end again", fullDuplex, func(g *gateway) {
			g.send(head(), responseBody("x", true), responseTrailers())
			g.unchanged(kindResponseHeaders)
			g.streamedBody(0, true)
			g.unchanged(kindResponseTrailers)
			g.finish()
		}, endComplete, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed(workerID, "m"))
			g := w.routedChat(c.response)
			if w.held() != 1 {
				t.Fatalf("%d picks in flight, want 1", w.held())
			}
			c.end(g)
			_ = w.stop() // waits for the stream's goroutine
			if w.held() != 0 {
				t.Error("the pick was not given back")
			}
			m := w.server.metrics
			if n := testutil.ToFloat64(m.byEnding[c.ending][c.class]); n != 1 {
				t.Errorf("%v requests counted as %v with class %d, want 1", n, c.ending, c.class)
			}
			if n := m.open.Load(); n != 0 {
				t.Errorf("%d streams counted as open", n)
			}
		})
	}
}
