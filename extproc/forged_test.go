package extproc

import (
	"bytes"
	"testing"
	"time"

	"pointsman/trust"
)

func TestEveryHeaderThatCouldSteerIsRemoved(t *testing.T) {
	forged := []string{
		"x-infera-attempt-id", "x-infera-attempts", "X-Infera-Anything", "x-infera-anything", "x-infera-anything", "x-data-parallel-size",
		"x-gateway-destination-endpoint-fallback", "x-dynamo-dp-rank", "x-dynamo-routing-mode",
	}
	pairs := []string{HeaderPrefill, "victim", HeaderFallback, "victim", HeaderTicket, "v1,1,x", HeaderRequestID, "mine", "x-api-key", "k"}
	for _, name := range forged {
		pairs = append(pairs, name, "victim")
	}
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	g := w.open()
	g.send(post("/v1/chat/completions", pairs...), requestBody(chat("m", "hello"), true))
	m := g.routedHeaders()
	g.streamedBody(0, true)
	g.finish()
	for _, name := range append(forged, HeaderPrefill, HeaderFallback, HeaderTicket, "x-prefiller-host-port") {
		if !m.removed[name] {
			t.Errorf("%s stays", name)
		}
	}
	for _, name := range []string{HeaderRequestID, "x-api-key"} {
		if m.removed[name] {
			t.Errorf("%s is removed", name)
		}
	}
}

func TestTheRouteIsSignedForItsRequest(t *testing.T) {
	keys := trust.StaticKeys(bytes.Repeat([]byte("k"), 32))
	for _, tc := range []struct {
		name   string
		header []string
		id     string // "" for one of the EPP's making
	}{
		{"the gateway's ID", []string{"x-request-id", "r-7"}, "r-7"},
		{"our own programs' ID counts first", []string{"x-request-id", "r-7", HeaderRequestID, "i-7"}, "i-7"},
		{"no ID", []string{"x-request-id", ""}, ""},
		{"an ID that is none", []string{"x-request-id", "a b"}, ""},
	} {
		w := newWorld(t, testConfig(), mixed(workerID, "m"))
		w.server.deps.Keys = keys
		g := w.open()
		g.send(requestHeaders(false, append([]string{":method", "POST", ":path", "/v1/chat/completions", ":authority", "api.example"}, tc.header...)...),
			requestBody(chat("m", "hello"), true))
		m := g.routedHeaders()
		g.streamedBody(0, true)
		g.finish()
		id := tc.id
		if id == "" {
			if id = m.set[HeaderRequestID]; id == "" {
				t.Errorf("%s: none was made", tc.name)
			}
		}
		r := &trust.Route{RequestID: id, Worker: workerID, Host: "api.example"}
		if _, err := trust.NewTickets(keys).Check(time.Now(), m.set[HeaderTicket], r); err != nil {
			t.Errorf("%s: ticket %q: %v", tc.name, m.set[HeaderTicket], err)
		}
	}
}
