package extproc

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman/breaker"
	"pointsman/fleet"
)

// listed starts a server of three workers that names up to n endpoints.
func listed(t *testing.T, n int) *world {
	t.Helper()
	cfg := testConfig()
	cfg.Endpoints = n
	return newWorld(t, cfg, mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "m"), mixed("10.0.0.3:30000", "m"))
}

func (w *world) chat() (*gateway, mutations) {
	w.t.Helper()
	g := w.open()
	g.send(post("/v1/chat/completions"), requestBody(chat("m", "hello"), true))
	m := g.routedHeaders()
	g.streamedBody(0, true)
	return g, m
}

// servedMetadata says with response headers which endpoint served, as override_host
// does.
func servedMetadata(t *testing.T, head *extprocv3.ProcessingRequest, endpoint string) *extprocv3.ProcessingRequest {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{HeaderServed: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	head.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespaceLB: s}}
	return head
}

func TestTheAnswerNamesAListOfEndpointsWhenItMay(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 3, 8: 3} {
		w := listed(t, n)
		g, m := w.chat()
		ends := strings.Split(m.set[HeaderDestination], ",")
		if len(ends) != want {
			t.Fatalf("%d endpoints allowed: destination %q", n, m.set[HeaderDestination])
		}
		var ids []string
		if list := m.set[HeaderFallback]; list != "" {
			ids = strings.Split(list, ",")
		}
		if len(ids) != want-1 {
			t.Fatalf("%d endpoints allowed: fallback workers %q", n, m.set[HeaderFallback])
		}
		seen := map[string]bool{m.set[HeaderWorker]: true}
		for i, id := range ids {
			if seen[id] || ends[i+1] != strings.TrimSuffix(id, "30000")+"8000" {
				t.Errorf("fallback %d is %s at %s, after %v", i, id, ends[i+1], seen)
			}
			seen[id] = true
		}
		g.finish()
	}
}

func TestTheBooksFollowTheEndpointThatServed(t *testing.T) {
	for _, way := range []string{"metadata", "attribute"} {
		w := listed(t, 3)
		for range 2 { // the test's breaker trips at two in a row
			g, m := w.chat()
			ends, fallback := strings.Split(m.set[HeaderDestination], ","), strings.Split(m.set[HeaderFallback], ",")
			last := fallback[len(fallback)-1]
			head := responseHeaders(false, ":status", "200", HeaderAttempts, "m1@"+last+";ok")
			if way == "metadata" {
				servedMetadata(t, head, ends[len(ends)-1])
			} else {
				s, err := structpb.NewStruct(map[string]any{attributeUpstream: ends[len(ends)-1], attributeDetails: "via_upstream"})
				if err != nil {
					t.Fatal(err)
				}
				head.Attributes = map[string]*structpb.Struct{namespaceExtProc: s}
			}
			g.send(head)
			g.unchanged(kindResponseHeaders)
			held := w.picker.Held(time.Now(), 0)
			if len(held) != 1 || held[0].Worker != last {
				t.Fatalf("%s: reserved %+v, want one request on %s", way, held, last)
			}
			g.send(responseBody("x", true))
			g.streamedBody(0, true)
			g.finish()
			if n := w.held(); n != 0 {
				t.Fatalf("%s: %d reservations stay", way, n)
			}
			if len(fallback) == 2 { // both that were passed over have a fault
				for _, id := range []string{m.set[HeaderWorker], fallback[0]} {
					if w.breakers.Circuit(id).FailedAt().IsZero() {
						t.Errorf("%s: %s, which the gateway could not reach, has no fault", way, id)
					}
				}
			}
			if !w.breakers.Circuit(last).FailedAt().IsZero() {
				t.Errorf("%s: %s served and has a fault", way, last)
			}
		}
	}
}

func TestAPairsPrefillWorkerGoesAlongWithTheFallback(t *testing.T) {
	pair := func(id string, role fleet.Role) *fleet.Worker {
		w := mixed(id, "m")
		w.Role, w.Protocol, w.Engine = role, "sglang-bootstrap", fleet.SGLang
		return w
	}
	cfg := testConfig()
	cfg.Endpoints = 2
	w := newWorld(t, cfg, pair("10.0.0.1:30000", fleet.Prefill), pair("10.0.0.2:30000", fleet.Decode), pair("10.0.0.3:30000", fleet.Decode))
	g, m := w.chat()
	if m.set[HeaderPrefill] != "10.0.0.1:30000" || m.set[HeaderFallback] == "" || m.set[HeaderFallback] == m.set[HeaderWorker] {
		t.Fatalf("headers %v", m.set)
	}
	_, second, _ := strings.Cut(m.set[HeaderDestination], ",")
	g.send(servedMetadata(t, responseHeaders(false, ":status", "200"), second))
	g.unchanged(kindResponseHeaders)
	if held := w.picker.Held(time.Now(), 0); len(held) != 1 || held[0].Worker != m.set[HeaderFallback] {
		t.Fatalf("reserved %+v", held)
	}
	g.send(responseBody("x", true))
	g.streamedBody(0, true)
	g.finish()
	if n := w.held(); n != 0 {
		t.Errorf("%d reservations stay", n)
	}
}

func TestAFallbackIsNeverAWorkerInTrouble(t *testing.T) {
	w := listed(t, 3)
	now := time.Now()
	for _, id := range []string{"10.0.0.2:30000"} {
		for range 2 {
			permit, _ := w.breakers.Circuit(id).Acquire(now)
			permit.Done(now, breaker.Connect)
		}
	}
	_, m := w.chat()
	if strings.Contains(m.set[HeaderFallback]+m.set[HeaderWorker], "10.0.0.2") {
		t.Errorf("headers %v name a worker whose circuit is open", m.set)
	}
}
