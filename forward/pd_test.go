package forward_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/testkit"
	"pointsman/plugins"
)

// pairWorld is a forwarder with prefill workers p1, p2 … and decode workers d1,
// d2 … of one protocol.
type pairWorld struct {
	*world
	prefill, decode []*engine
}

func connectors(_ *forward.Config, d *forward.Deps) { d.Connectors = plugins.Connectors }

func newPairWorld(t *testing.T, protocol string, prefill, decode []script, options ...option) *pairWorld {
	t.Helper()
	w := &pairWorld{world: newWorld(t, nil, append([]option{connectors}, options...)...)}
	var all []*fleet.Worker
	for i, s := range prefill {
		e := newEngine(t, s)
		w.prefill = append(w.prefill, e)
		all = append(all, legWorker("p"+strconv.Itoa(i+1), e, fleet.Prefill, protocol))
	}
	for i, s := range decode {
		e := newEngine(t, s)
		w.decode = append(w.decode, e)
		all = append(all, legWorker("d"+strconv.Itoa(i+1), e, fleet.Decode, protocol))
	}
	w.feed.Replace(all)
	return w
}

func legWorker(id string, e *engine, role fleet.Role, protocol string) *fleet.Worker {
	w := worker(id, e)
	w.Role, w.Protocol = role, protocol
	switch protocol {
	case "sglang-bootstrap":
		w.Engine, w.Params = fleet.SGLang, json.RawMessage(`{"bootstrap_addr":"10.0.0.1:8998"}`)
	case "vllm-mooncake":
		w.Params = json.RawMessage(`{"engine_id":"E-` + id + `","bootstrap_addr":"http://10.0.0.1:8998"}`)
	case "vllm-mori-write", "vllm-mori-read":
		w.Params = json.RawMessage(`{"kv_connector_extra_config":{"handshake_port":6301,"notify_port":61005}}`)
	}
	return w
}

func count(es []*engine) []int {
	var n []int
	for _, e := range es {
		n = append(n, len(e.got()))
	}
	return n
}

var rooms = regexp.MustCompile(`"bootstrap_room":(\d+)|"transfer_id":"([^"]+)"`)

// room returns what pairs a leg with its partner.
func room(t *testing.T, r receipt) string {
	t.Helper()
	m := rooms.FindSubmatch(r.body)
	if m == nil {
		t.Fatalf("no room in %s", r.body)
	}
	return string(m[1]) + string(m[2])
}

// pairs returns the n legs of each side by room, once they have all come: a prefill
// leg may be sent after its decode leg is done.
func (w *pairWorld) pairs(n int) map[string][2]receipt {
	w.t.Helper()
	gather := func(es []*engine) (all []receipt) {
		for _, e := range es {
			all = append(all, e.got()...)
		}
		return all
	}
	var p, d []receipt
	testkit.Until(w.t, fmt.Sprintf("%d legs on each side", n), func() bool {
		p, d = gather(w.prefill), gather(w.decode)
		return len(p) == n && len(d) == n
	}, func() string { return fmt.Sprintf("%d prefill and %d decode legs", len(p), len(d)) })
	out := make(map[string][2]receipt)
	for _, r := range p {
		out[room(w.t, r)] = [2]receipt{r}
	}
	for _, r := range d {
		pair, ok := out[room(w.t, r)]
		if !ok || pair[1].head != nil {
			w.t.Errorf("room %s has one leg, or more than two", room(w.t, r))
		}
		out[room(w.t, r)] = [2]receipt{pair[0], r}
	}
	if len(out) != n {
		w.t.Errorf("%d rooms for %d requests", len(out), n)
	}
	return out
}

// hang answers nothing until the connection ends.
func hang(c net.Conn, _ receipt) bool {
	_, _ = c.Read(make([]byte, 1))
	return true // the engine notes that the client is gone
}

// slowly is good after a while.
func slowly(d time.Duration) script {
	return func(c net.Conn, r receipt) bool {
		testkit.Pass(d, "a slow worker")
		return good(c, r)
	}
}

// handoff is a prefill answer with the given kv_transfer_params.
func handoff(params string) script {
	return raw(jsonReply(200, `{"choices":[],"kv_transfer_params":`+params+`}`))
}

const nixlHandoff = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_block_ids":[1,2],"remote_host":"h","remote_port":5600}`

func TestBothLegsGetOneRoom(t *testing.T) {
	for _, protocol := range []string{"sglang-bootstrap", "vllm-mooncake", "vllm-mori-write"} {
		for _, body := range []string{chatBody, streamBody} {
			w := newPairWorld(t, protocol, []script{good}, []script{good})
			for range 3 {
				got := w.do(call{body: body, header: map[string]string{"X-Request-Id": "mine"}})
				if got.status != 200 || got.err != nil || body == streamBody && got.body != goodBody {
					t.Fatalf("%s: %d %q %v", protocol, got.status, got.body, got.err)
				}
				if id := got.header.Get("X-Worker-Instance-Id"); id != "d1" {
					t.Errorf("answered by %q", id)
				}
			}
			w.settled(3)
			for _, pair := range w.pairs(3) {
				p, d := pair[0].head.Header, pair[1].head.Header
				pid, did := p.Get("X-Infera-Attempt-Id"), d.Get("X-Infera-Attempt-Id")
				if pid != "mine/p1" || did != "mine/d1" {
					t.Errorf("attempts %q and %q", pid, did)
				}
				forged := p.Get("X-Request-Id")
				if protocol == "vllm-mooncake" { // vLLM knows each leg by its own name
					if !strings.HasPrefix(forged, "mine/p1/") || !strings.HasPrefix(d.Get("X-Request-Id"), "mine/d1/") {
						t.Errorf("request IDs %q and %q", forged, d.Get("X-Request-Id"))
					}
					continue
				}
				if forged != d.Get("X-Request-Id") || strings.HasPrefix(forged, "___prefill_addr") != (protocol == "vllm-mori-write") {
					t.Errorf("%s: request IDs %q and %q", protocol, forged, d.Get("X-Request-Id"))
				}
			}
			if n := w.count("infera_request_duration_seconds", "router=disagg", "outcome=ok"); n != 3 {
				t.Errorf("%d counted as disagg", n)
			}
		}
	}
}

// A leg on a connection that its worker is just closing could not be repeated.
func TestLegsGoOverFreshConnections(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{good}, []script{good})
	for range 3 {
		w.do(call{body: chatBody})
	}
	w.pairs(3)
	for _, e := range []*engine{w.prefill[0], w.decode[0]} {
		e.mu.Lock()
		if n := len(e.conns); n != 3 {
			t.Errorf("%d connections for 3 legs", n)
		}
		e.mu.Unlock()
	}
	w.settled(3)
}

func TestASerialDecodeLegGetsThePrefillLegsHandoff(t *testing.T) {
	w := newPairWorld(t, "vllm-nixl", []script{handoff(nixlHandoff)}, []script{good})
	if got := w.do(call{body: streamBody}); got.status != 200 || got.body != goodBody {
		t.Fatalf("%d %q", got.status, got.body)
	}
	p, d := w.prefill[0].got(), w.decode[0].got()
	if len(p) != 1 || len(d) != 1 || !bytes.Contains(p[0].body, []byte(`"max_tokens":1`)) || !bytes.Contains(d[0].body, []byte(`"kv_transfer_params":`+nixlHandoff)) {
		t.Errorf("prefill %d, decode %d: %s", len(p), len(d), d[0].body)
	}
	w.settled(1)
}

// TestP10AFailedLegTakesAnotherPair: before the first byte a failure of either
// leg ends the other, and another pair is tried in a fresh room.
func TestP10AFailedLegTakesAnotherPair(t *testing.T) {
	broken := raw(jsonReply(500, `{"error":{"message":"no"}}`))
	tests := []struct {
		name            string
		prefill, decode []script
		healthy         bool // a pair is left that works
	}{
		{"prefill answers 500", []script{broken, good}, []script{slowly(300 * time.Millisecond)}, true},
		{"prefill resets", []script{rawReset("", nil), good}, []script{slowly(300 * time.Millisecond)}, true},
		{"prefill refuses the connection", []script{nil, good}, []script{slowly(300 * time.Millisecond)}, true},
		{"prefill is full", []script{raw(jsonReply(429, `{}`)), good}, []script{slowly(300 * time.Millisecond)}, true},
		{"decode refuses the connection", []script{good}, []script{nil, good}, true},
		{"decode answers 500 while prefill hangs", []script{hang, good}, []script{broken, good}, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := newPairWorld(t, "sglang-bootstrap", tc.prefill, tc.decode)
			start, failures := time.Now(), 0
			const requests = 6
			for range requests {
				if got := w.do(call{body: streamBody}); got.status != 200 || got.body != goodBody {
					failures++
				}
			}
			if tc.healthy && failures > 0 {
				t.Errorf("%d of %d requests failed", failures, requests)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %s", took)
			}
			w.settled(requests)
			unique := map[string]int{}
			for _, e := range append(slices.Clone(w.prefill), w.decode...) {
				for _, r := range e.got() {
					unique[room(t, r)]++
				}
			}
			for id, n := range unique {
				if n > 2 {
					t.Errorf("room %s was used %d times", id, n)
				}
			}
			if tc.healthy {
				repeats := w.count("infera_router_retries_total")
				if repeats == 0 {
					t.Error("nothing was repeated: the test tests nothing")
				}
				if want := requests + repeats; w.count("pointsman_forward_prefills_total") != want {
					t.Errorf("%d prefill legs, want %d", w.count("pointsman_forward_prefills_total"), want)
				}
			}
		})
	}
}

// A decode leg that hangs because its prefill leg failed must not hold the client
// for the engine's own timeout of minutes.
func TestP10PrefillErrorsReachTheClientAsWhatTheyAre(t *testing.T) {
	tests := []struct {
		name   string
		answer string
		status int
		body   string
	}{
		{"400", jsonReply(400, `{"error":{"message":"too long","code":"context"}}`), 400, `{"error":{"message":"too long","code":"context"}}`},
		{"500", jsonReply(500, `{"error":{"message":"secret 10.0.0.1"}}`), 500, "upstream_error"},
		{"503 with Retry-After", jsonReply(503, `{}`, "Retry-After: 7"), 503, "upstream_error"},
		{"a stream's error event", sse(`data: {"error":{"message":"bad prompt","code":400}}` + "\n\n"), 400, "bad prompt"},
	}
	for _, tc := range tests {
		answer := func(c net.Conn, r receipt) bool {
			testkit.Pass(20*time.Millisecond, "the decode leg is under way")
			return raw(tc.answer)(c, r)
		}
		w := newPairWorld(t, "sglang-bootstrap", []script{answer}, []script{hang})
		got := w.do(call{body: streamBody})
		if got.status != tc.status || !strings.Contains(got.body, tc.body) || strings.Contains(got.body, "10.0.0.1") {
			t.Errorf("%s: %d %s", tc.name, got.status, got.body)
		}
		w.settled(1)
		if len(w.decode[0].got()) == 0 {
			continue // the prefill leg was faster than the decode leg's connection
		}
		select {
		case <-w.decode[0].gone:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the decode leg was not aborted", tc.name)
		}
	}
}

func TestPrefillErrorsOfSerialPairs(t *testing.T) {
	tests := []struct {
		name   string
		script script
		status int
		code   string
	}{
		{"400", raw(jsonReply(400, `{"error":{"code":"context"}}`)), 400, "context"},
		{"500", raw(jsonReply(500, `{}`)), 500, "upstream_error"},
		{"refused connection", nil, 502, "upstream_connect_failed"},
		{"no handoff", good, 502, "pd_handoff_failed"},
		{"no JSON", raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), 502, "pd_handoff_failed"},
	}
	for _, tc := range tests {
		w := newPairWorld(t, "vllm-nixl", []script{tc.script}, []script{good})
		if got := w.do(call{body: chatBody}); got.status != tc.status || !strings.Contains(got.body, tc.code) {
			t.Errorf("%s: %d %s", tc.name, got.status, got.body)
		}
		if n := count(w.decode); n[0] != 0 {
			t.Errorf("%s: %d decode legs", tc.name, n[0])
		}
		w.settled(1)
	}
}

// TestP22P23ADispatchedDecodeLegIsNotRepeated: a decode leg that failed after it
// was sent may have run, so it is not repeated whatever --retry-safety says.
func TestP22P23ADispatchedDecodeLegIsNotRepeated(t *testing.T) {
	for name, s := range map[string]script{"a reset": rawReset("", nil), "500": raw(jsonReply(500, `{}`)), "an error event": raw(sse(`data: {"error":{"message":"x","code":500}}` + "\n\n"))} {
		for _, safety := range []forward.RetrySafety{forward.PreDispatch, forward.BeforeFirstToken} {
			w := newPairWorld(t, "vllm-mooncake", []script{good, good}, []script{s, s}, change(func(c *forward.Config) { c.RetrySafety = safety }))
			got := w.do(call{body: streamBody})
			if got.status < 500 || got.header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s, %s: %d %s", name, safety, got.status, got.body)
			}
			if n := count(w.decode); n[0]+n[1] != 1 {
				t.Errorf("%s, %s: decode legs %v", name, safety, n)
			}
			w.settled(1)
		}
	}
}

// TestP23APairThatIsRepeatedGetsAnotherRoom: nothing is ever sent into a room again.
func TestP23APairThatIsRepeatedGetsAnotherRoom(t *testing.T) {
	w := newPairWorld(t, "vllm-mooncake", []script{good, good}, []script{raw(jsonReply(429, "{}")), good})
	seen := map[string]bool{}
	for range 8 {
		if got := w.do(call{body: streamBody}); got.status != 200 || got.body != goodBody {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	full, whole := w.decode[0].got(), w.decode[1].got()
	if len(full) == 0 || len(whole) != 8 {
		t.Fatalf("%d legs were refused, %d were served; want some and 8", len(full), len(whole))
	}
	for _, r := range append(full, whole...) {
		if id := room(t, r); seen[id] {
			t.Errorf("room %q was used twice", id)
		} else {
			seen[id] = true
		}
	}
	w.settled(8)
}

// A finished prefill leg is not thrown away because one decode worker is down.
func TestDecodeAltDialReplacesAWorkerThatCannotBeDialed(t *testing.T) {
	w := newPairWorld(t, "vllm-nixl", []script{handoff(nixlHandoff)}, []script{nil, good})
	for range 4 {
		if got := w.do(call{body: streamBody}); got.status != 200 || got.body != goodBody || got.header.Get("X-Worker-Instance-Id") != "d2" {
			t.Fatalf("%d %s by %s", got.status, got.body, got.header.Get("X-Worker-Instance-Id"))
		}
	}
	if n := count(w.prefill); n[0] != 4 {
		t.Errorf("%d prefill legs for 4 requests", n[0])
	}
	if w.count("infera_router_decode_alt_dial_total") == 0 || w.count("infera_router_retries_total") != 0 {
		t.Error("no alternate was dialed, or attempts were spent on it")
	}
	w.settled(4)
	w = newPairWorld(t, "vllm-nixl", []script{handoff(nixlHandoff)}, []script{nil, nil, nil}, change(func(c *forward.Config) { c.MaxRetries = 0 }))
	if got := w.do(call{body: streamBody}); got.status != 502 {
		t.Errorf("status %d", got.status)
	}
	if n := w.count("infera_router_decode_alt_dial_total"); n != 1 {
		t.Errorf("%d alternates dialed, want 1", n)
	}
	w.settled(1)
}

// TestADecodeLegThatHasAnsweredIsNotMoved: the worker's own error event says at no
// stage that it could not be dialed. A second answer must not follow the first.
func TestADecodeLegThatHasAnsweredIsNotMoved(t *testing.T) {
	event := "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n"
	failed := "data: {\"error\":{\"message\":\"broke\",\"code\":500}}\n\n"
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
	huge := "data: " + strings.Repeat("x", 2<<20)
	for name, tail := range map[string]string{"error event": failed, "with [DONE] behind it": failed + "data: [DONE]\n\n", "endless event": huge, "cut": ""} {
		s := rawClose(head + event + tail)
		w := newPairWorld(t, "vllm-nixl", []script{handoff(nixlHandoff)}, []script{s, s})
		got := w.do(call{body: streamBody})
		if got.status != 200 || strings.Count(got.body, `"hi"`) != 1 || strings.Count(got.body, `"error"`) != 1 || strings.Contains(got.body, "[DONE]") {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if d := count(w.decode); d[0]+d[1] != 1 {
			t.Errorf("%s: decode legs %v", name, d)
		}
		w.settled(1)
	}
}

// TestTheReceiptNamesEachLegThatFailed: the endpoint picker blames by it.
func TestTheReceiptNamesEachLegThatFailed(t *testing.T) {
	broken, full := rawClose(""), raw(jsonReply(429, "{}"))
	tests := []struct {
		name, protocol  string
		prefill, decode []script
		receipt         string
	}{
		{"a prefill worker, concurrent", "sglang-bootstrap", []script{broken, good}, []script{hang, good}, "d1@d1;aborted,p1@p1;reset,d2@d2;ok"},
		{"a prefill worker, serial", "vllm-nixl", []script{broken, handoff(nixlHandoff)}, []script{good}, "p1@p1;reset,p2@p2;ok,d1@d1;ok"},
		{"a full prefill worker", "vllm-nixl", []script{full, handoff(nixlHandoff)}, []script{good}, "p1@p1;busy,p2@p2;ok,d1@d1;ok"},
		{"a decode worker that was replaced", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{nil, good}, "p1@p1;ok,d1@d1;refused,d2@d1;refused,d3@d2;ok"},
		{"both that were dialed", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{nil, broken}, "p1@p1;ok,d1@d1;refused,d2@d1;refused,d3@d2;transfer"},
		{"nobody", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{good}, "p1@p1;ok,d1@d1;ok"},
	}
	for _, tt := range tests {
		w := newPairWorld(t, tt.protocol, tt.prefill, tt.decode, direct)
		got := w.do(call{body: streamBody, header: map[string]string{"X-Worker-Instance-Id": "d1", "X-Prefill-Instance-Id": "p1"}})
		receipt := got.header.Get("X-Infera-Attempts")
		if tt.protocol == "sglang-bootstrap" { // the prefill leg may or may not have ended by now
			receipt = strings.Replace(receipt, ",p2@p2;ok", "", 1)
		}
		if sorted(receipt) != sorted(tt.receipt) {
			t.Errorf("%s: %d with the receipt %q, want %q", tt.name, got.status, receipt, tt.receipt)
		}
		w.settled(1)
	}
}

// sorted puts the tries of a receipt in order: the legs of a pair begin together.
func sorted(receipt string) string {
	tries := strings.Split(receipt, ",")
	slices.Sort(tries)
	return strings.Join(tries, ",")
}

// TestASlowPrefillLegIsNoFaultOfTheDecodeWorker that has not been asked.
func TestASlowPrefillLegIsNoFaultOfTheDecodeWorker(t *testing.T) {
	{
		w := newPairWorld(t, "vllm-nixl", []script{hang}, []script{good}, change(func(c *forward.Config) {
			c.MaxRetries, c.PrefillTimeout = 0, 50*time.Millisecond
		}))
		for range 3 {
			if got := w.do(call{body: streamBody}); got.status != 504 {
				t.Errorf("status %d %s", got.status, got.body)
			}
		}
		w.settled(3)
		if d := w.breakers.Circuit("d1").State(time.Now()); d.String() != "closed" {
			t.Errorf("decode circuit %v", d)
		}
	}
}

func TestThePrefillLegIsLeftAloneOnceDecodeHasBegun(t *testing.T) {
	aborted := make(chan bool, 1)
	late := func(c net.Conn, r receipt) bool {
		testkit.Pass(400*time.Millisecond, "a slow prefill worker")
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		aborted <- errors.Is(err, io.EOF)
		_ = c.SetReadDeadline(time.Time{})
		return good(c, r)
	}
	w := newPairWorld(t, "vllm-mooncake", []script{late}, []script{good})
	start := time.Now()
	if got := w.do(call{body: streamBody}); got.status != 200 || got.body != goodBody {
		t.Fatalf("%d %q", got.status, got.body)
	}
	if took := time.Since(start); took > 300*time.Millisecond {
		t.Errorf("the client waited %s for the prefill worker", took)
	}
	if <-aborted {
		t.Error("the prefill leg was aborted")
	}
	w.settled(1)
}

func TestAFailedPrefillLegAfterTheFirstTokenIsNoNews(t *testing.T) {
	fail := make(chan struct{})
	w := newPairWorld(t, "vllm-mooncake",
		[]script{func(c net.Conn, r receipt) bool { <-fail; return raw(jsonReply(500, `{}`))(c, r) }},
		[]script{func(c net.Conn, _ receipt) bool {
			_, _ = io.WriteString(c, sseOpen(role, tok0))
			testkit.Pass(100*time.Millisecond, "the client gets the first token")
			close(fail)
			testkit.Pass(200*time.Millisecond, "the failure gets to the forwarder")
			_, _ = io.WriteString(c, chunk(tok1+stop+done)+"0\r\n\r\n")
			return true
		}})
	if got := w.do(call{body: streamBody}); got.status != 200 || got.body != goodBody {
		t.Errorf("%d %q", got.status, got.body)
	}
	w.settled(1)
}

func TestAClientThatLeavesEndsBothLegs(t *testing.T) {
	for _, protocol := range []string{"sglang-bootstrap", "vllm-nixl"} {
		w := newPairWorld(t, protocol, []script{hang}, []script{hang})
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			resp, err := w.client.Do(w.request(ctx, call{body: streamBody}))
			if err == nil {
				resp.Body.Close()
			}
			failed <- err
		}()
		testkit.Until(t, "the legs at the workers", func() bool {
			return len(w.prefill[0].got()) > 0 && (protocol == "vllm-nixl" || len(w.decode[0].got()) > 0)
		})
		cancel()
		<-failed
		for _, e := range append(slices.Clone(w.prefill), w.decode...) {
			if protocol == "vllm-nixl" && e == w.decode[0] {
				continue // it was never asked
			}
			select {
			case <-e.gone:
			case <-time.After(5 * time.Second):
				t.Errorf("%s: a leg was not aborted", protocol)
			}
		}
		w.settled(1)
	}
}

// The decode leg's refusal waits a moment for the prefill leg, in which the client leaves.
func TestNoSecondPairIsAskedForAClientThatHasLeft(t *testing.T) {
	refused := make(chan struct{}, 2)
	refuse := func(c net.Conn, r receipt) bool {
		defer func() { refused <- struct{}{} }()
		return raw(jsonReply(503, `{"error":{"message":"full"}}`, "Retry-After: 1"))(c, r)
	}
	w := newPairWorld(t, "sglang-bootstrap", []script{hang, hang}, []script{refuse, refuse})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody)
	fatal(t, err)
	<-refused
	fatal(t, conn.Close())
	w.settled(1)
	if n := w.count("infera_router_retries_total"); n != 0 || len(refused) > 0 {
		t.Errorf("%d repetitions, %d more decode legs", n, len(refused))
	}
}

func TestTimersOfAPair(t *testing.T) {
	tests := []struct {
		name            string
		protocol        string
		prefill, decode script
		change          func(*forward.Config)
		code            string
	}{
		{"a concurrent prefill leg", "sglang-bootstrap", hang, hang, func(c *forward.Config) { c.PrefillTimeout = 100 * time.Millisecond }, "pd_prefill_timeout"},
		{"a serial prefill leg", "vllm-nixl", hang, good, func(c *forward.Config) { c.PrefillTimeout = 100 * time.Millisecond }, "pd_prefill_timeout"},
		{"the first token", "sglang-bootstrap", good, hang, func(c *forward.Config) { c.FirstTokenTimeout = 100 * time.Millisecond }, "first_token_timeout"},
		{"the first token after a handoff", "vllm-nixl", handoff(nixlHandoff), hang, func(c *forward.Config) { c.FirstTokenTimeout = 100 * time.Millisecond }, "first_token_timeout"},
	}
	for _, tc := range tests {
		w := newPairWorld(t, tc.protocol, []script{tc.prefill, tc.prefill}, []script{tc.decode, tc.decode}, change(tc.change))
		start := time.Now()
		got := w.do(call{body: streamBody})
		if got.status != 504 || !strings.Contains(got.body, tc.code) || time.Since(start) > 3*time.Second {
			t.Errorf("%s: %d %s after %s", tc.name, got.status, got.body, time.Since(start))
		}
		w.settled(1)
	}
}

// A whole answer may take longer than a first token.
func TestTheFirstTokenTimerIsForStreams(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{good}, []script{slowly(400 * time.Millisecond)}, change(func(c *forward.Config) { c.FirstTokenTimeout = 100 * time.Millisecond }))
	if got := w.do(call{body: chatBody}); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	w.settled(1)
}

func TestP11RoomsAndHeadersAgreeOnTheRank(t *testing.T) {
	for _, mode := range []option{direct, func(*forward.Config, *forward.Deps) {}} {
		w := newPairWorld(t, "vllm-mooncake", []script{good}, []script{good}, mode)
		p := legWorker("p1", w.prefill[0], fleet.Prefill, "vllm-mooncake")
		d := legWorker("d1", w.decode[0], fleet.Decode, "vllm-mooncake")
		p.DPSize, d.DPSize = 4, 2
		w.feed.Replace([]*fleet.Worker{p, d})
		headers := []map[string]string{
			{"X-Worker-Instance-Id": "d1", "X-Prefill-Instance-Id": "p1"},
			{"X-Worker-Instance-Id": "d1", "X-Prefill-Instance-Id": "p1", "X-Prefill-Data-Parallel-Rank": "3", "X-Data-Parallel-Rank": "1"},
			{"X-Dynamo-Worker-Instance-Id": "d1", "X-Dynamo-Prefill-Instance-Id": "p1", "X-Dynamo-Prefill-Dp-Rank": "2", "X-Dynamo-Dp-Rank": "0"},
		}
		for i := range 12 {
			h := map[string]string{"X-Request-Id": strconv.Itoa(i % 3)}
			maps.Copy(h, headers[i%3])
			if got := w.do(call{body: chatBody, header: h}); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		w.settled(12)
		isDirect := w.count("infera_request_duration_seconds", "router=direct") > 0
		for _, pair := range w.pairs(12) {
			p, d := pair[0].head.Header, pair[1].head.Header
			i, _ := strconv.Atoi(p.Get("X-Request-Id"))
			rank := p.Get("X-Data-Parallel-Rank")
			engine := `"remote_engine_id":"E-p1_dp` + rank + `"`
			if rank == "" || !bytes.Contains(pair[1].body, []byte(engine)) {
				t.Errorf("prefill on rank %q, decode told %s", rank, pair[1].body)
			}
			if want := [...]string{"", "3", "2"}[i]; isDirect && want != "" && rank != want {
				t.Errorf("prefill rank %q, want %q", rank, want)
			}
			if want := [...]string{"", "1", "0"}[i]; isDirect && want != "" && d.Get("X-Data-Parallel-Rank") != want {
				t.Errorf("decode rank %q, want %q", d.Get("X-Data-Parallel-Rank"), want)
			}
			for k := range p {
				if strings.HasPrefix(k, "X-Dynamo") || strings.HasPrefix(k, "X-Prefill") || k == "X-Worker-Instance-Id" {
					t.Errorf("routing header %s reached a worker", k)
				}
			}
		}
	}
}

// TestP12P13P14DirectModeWithPairs: Infera forwards half a pair, swapped roles and
// draining workers, and does not fall back.
func TestP12P13P14DirectModeWithPairs(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{good, good}, []script{good, good}, direct)
	p2 := legWorker("p2", w.prefill[1], fleet.Prefill, "sglang-bootstrap")
	p2.Status = fleet.Draining
	w.feed.Put(p2)
	w.feed.Put(legWorker("other", w.decode[1], fleet.Decode, "vllm-mooncake"))
	pair := func(worker, prefill string) map[string]string {
		h := map[string]string{"X-Worker-Instance-Id": worker}
		if prefill != "" {
			h["X-Prefill-Instance-Id"] = prefill
		}
		return h
	}
	tests := []struct {
		name   string
		header map[string]string
		status int
	}{
		{"P12: no header falls back to the policy, which picks a pair", nil, 200},
		{"a prefill header alone says nothing", map[string]string{"X-Prefill-Instance-Id": "p1"}, 200},
		{"both headers", pair("d2", "p1"), 200},
		{"P13: a decode worker alone", pair("d1", ""), 503},
		{"P14: swapped roles", pair("p1", "d1"), 503},
		{"P14: a draining prefill worker", pair("d1", "p2"), 503},
		{"an unknown prefill worker", pair("d1", "nobody"), 503},
		{"an unknown decode worker", pair("nobody", "p1"), 503},
		{"a prefill worker alone", pair("p1", ""), 503},
		{"P8: workers of different protocols", pair("other", "p1"), 503},
	}
	for _, tc := range tests {
		got := w.do(call{body: chatBody, header: tc.header})
		if got.status != tc.status || tc.status == 503 && errorOf(t, got).Code != "stale_worker" {
			t.Errorf("%s: %d %s", tc.name, got.status, got.body)
		}
	}
	w.pairs(3)
	if p, d := count(w.prefill), count(w.decode); p[0] != 3 || p[1] != 0 || d[0]+d[1] != 3 || d[1] == 0 {
		t.Errorf("prefill legs %v, decode legs %v", p, d)
	}
	alone := pair("d1", "")
	alone["X-Prefill-Skip"] = "true"
	if got := w.do(call{body: chatBody, header: alone}); got.status != 200 {
		t.Errorf("a decode worker that is to compute the prompt: %d %s", got.status, got.body)
	}
	last := w.decode[0].got()
	if body := last[len(last)-1].body; string(body) != chatBody {
		t.Errorf("it got %s", body)
	}
	w.settled(len(tests) + 1)
}

// TestP8HalfAPoolSaysWhichHalf is Infera's 503, with a code.
func TestP8HalfAPoolSaysWhichHalf(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{good}, nil)
	got := w.do(call{body: chatBody})
	e := errorOf(t, got)
	if got.status != 503 || e.Code != "pd_pool_unavailable" || !strings.Contains(e.Message, "1 prefill worker(s) but no decode worker") {
		t.Errorf("%d %+v", got.status, e)
	}
	if got := w.do(call{path: "/v1/embeddings", body: `{"model":"m","input":"x"}`}); got.status != 503 {
		t.Errorf("a request that no pair can serve: %d", got.status)
	}
	w.settled(2)
}

func TestAForwarderWithoutConnectorsUsesMixedWorkersOnly(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{good}, []script{good}, func(_ *forward.Config, d *forward.Deps) { d.Connectors = nil })
	if got := w.do(call{body: chatBody}); got.status != 503 {
		t.Errorf("status %d", got.status)
	}
	mixed := newEngine(t, good)
	w.feed.Put(worker("m", mixed))
	if got := w.do(call{body: chatBody}); got.status != 200 || len(mixed.got()) != 1 {
		t.Errorf("status %d", got.status)
	}
	w.settled(2)
}

// TestP15InternalFieldsOfAClientGoNowhere: Infera's router obeys them.
func TestP15InternalFieldsOfAClientGoNowhere(t *testing.T) {
	w := newPairWorld(t, "vllm-mooncake", []script{good, good}, []script{good, good})
	body := `{"model":"m","_infera_direct_worker":"d1","messages":[{"role":"user","content":"x"}],"_infera_direct_prefill":"nobody","kv_transfer_params":{"transfer_id":"mine"}}`
	for range 8 {
		if got := w.do(call{body: body}); got.status != http.StatusOK {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for _, e := range append(slices.Clone(w.prefill), w.decode...) {
		if len(e.got()) == 0 {
			t.Error("a client's field has pinned the requests")
		}
		for _, r := range e.got() {
			if bytes.Contains(r.body, []byte("_infera_")) || bytes.Contains(r.body, []byte(`"mine"`)) {
				t.Errorf("a worker got %s", r.body)
			}
		}
	}
	w.settled(8)
}

func TestACircuitForEachLeg(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{raw(jsonReply(500, `{}`))}, []script{hang}, change(func(c *forward.Config) { c.MaxRetries = 0 }))
	for range 3 {
		if got := w.do(call{body: chatBody}); got.status != 500 {
			t.Fatalf("status %d", got.status)
		}
	}
	w.settled(3)
	if p, d := w.breakers.Circuit("p1").State(time.Now()), w.breakers.Circuit("d1").State(time.Now()); p.String() != "open" || d.String() != "closed" {
		t.Errorf("prefill circuit %v, decode circuit %v", p, d)
	}
}

// TestP7ARequestWithoutModelGoesToNoWorker: Infera's router sends it to any.
func TestP7ARequestWithoutModelGoesToNoWorker(t *testing.T) {
	w := newPairWorld(t, "sglang-bootstrap", []script{good}, []script{good})
	mixed := newEngine(t, good)
	w.feed.Put(worker("m1", mixed))
	for _, body := range []string{`{"messages":[{"role":"user","content":"x"}]}`, `{"model":"","messages":[{"role":"user","content":"x"}]}`} {
		if got := w.do(call{body: body}); got.status != 400 && got.status != 404 {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	if n := len(mixed.got()) + len(w.prefill[0].got()) + len(w.decode[0].got()); n != 0 {
		t.Errorf("%d deliveries", n)
	}
	w.settled(2)
}
