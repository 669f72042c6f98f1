package nats

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"pointsman/forward"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// captured is one message of a request as Infera's router and worker had it.
type captured struct {
	Conversation string            `json:"conversation"`
	Subject      string            `json:"subject"`
	Headers      map[string]string `json:"headers"`
	Text         string            `json:"text"`
}

func conversations(t *testing.T) map[string][]captured {
	t.Helper()
	raw, err := os.ReadFile("../../../wire/testdata/nats_requests.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]captured{}
	for dec := json.NewDecoder(bytes.NewReader(raw)); dec.More(); {
		var m captured
		if err := dec.Decode(&m); err != nil {
			t.Fatal(err)
		}
		out[m.Conversation] = append(out[m.Conversation], m)
	}
	return out
}

func TestCapturedAnswersAreTakenAsTheyWere(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	for _, tc := range []struct {
		name, kind string
		status     int
		cut        bool
	}{
		{"core stream", "text/event-stream", 200, false},
		{"core unary", "application/json", 200, false},
		{"core canceled", "text/event-stream", 200, true},
		{"core engine error", "application/json", 500, false},
		{"jetstream unary", "application/json", 200, false},
		{"prefill", "application/json", 200, false},
		{"decode", "text/event-stream", 200, false},
	} {
		var body, request string
		out := make(<-chan reply)
		inbox := ""
		for _, m := range conversations(t)[tc.name] {
			switch {
			case strings.HasPrefix(m.Subject, "infera.req.") && inbox == "":
				env, err := wire.DecodeEnvelope([]byte(m.Text))
				if err != nil {
					t.Fatal(err)
				}
				request = string(env.Body)
				out = w.async(t.Context(), tr, post(request))
				sent := w.request()
				inbox = sent.Reply
				ours, err := wire.DecodeEnvelope(sent.Data)
				if err != nil || string(ours.Body) != request || ours.Path != env.Path {
					t.Errorf("%s: sent %+v, %v; want the body and path of %+v", tc.name, ours, err, env)
				}
				if got := sent.Header[wire.HeaderInbox]; len(got) != 1 || got[0] != inbox {
					t.Errorf("%s: %s %q, want %q", tc.name, wire.HeaderInbox, got, inbox)
				}
			case strings.HasPrefix(m.Subject, "_INBOX."):
				var h []string
				for k, v := range m.Headers {
					h = append(h, k, v)
				}
				w.say(inbox, m.Text, h...)
				if m.Headers["rs-type"] == "data" {
					body += m.Text
				}
			}
		}
		got := get(t, out)
		if got.status != tc.status || got.body != body || got.head.Get("Content-Type") != tc.kind {
			t.Errorf("%s: status %d, %v, body %q; want %d, %s, %q", tc.name, got.status, got.head, got.body, tc.status, tc.kind, body)
		}
		if errors.Is(got.err, forward.ErrTruncated) != tc.cut {
			t.Errorf("%s: error %v, want cut %v", tc.name, got.err, tc.cut)
		}
	}
	w.quiet() // none of them is canceled: each has ended by the worker's word
}

func TestN15PrefillAndDecodeBodiesPassUnchanged(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	for _, leg := range []string{"prefill", "decode"} {
		env, err := wire.DecodeEnvelope([]byte(conversations(t)[leg][0].Text))
		if err != nil {
			t.Fatal(err)
		}
		req := post(string(env.Body))
		req.Header = http.Header{
			"X-Request-Id": {"___prefill_addr_10.0.0.1"}, "X-Data-Parallel-Rank": {"3"}, "Authorization": {"Bearer k"},
			"Traceparent": {"00-1-2-3"}, "Content-Type": {"application/json"}, "Accept-Encoding": {"gzip"}, "Content-Length": {"9"},
			"X-Two": {"a", "b"}, "X-Odd": {"größe"}, "X-Line": {"a\nb"},
		}
		out := w.async(t.Context(), tr, req)
		m := w.request()
		got, err := wire.DecodeEnvelope(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"X-Request-Id": "___prefill_addr_10.0.0.1", "X-Data-Parallel-Rank": "3", "Authorization": "Bearer k", "Traceparent": "00-1-2-3",
			"X-Two": "a, b", "Accept-Encoding": "identity",
		}
		if len(got.Headers) != len(want) {
			t.Errorf("%s: headers %v, want %v", leg, got.Headers, want)
		}
		for k, v := range want {
			if got.Headers[k] != v {
				t.Errorf("%s: header %s: %q, want %q", leg, k, got.Headers[k], v)
			}
		}
		if !bytes.Equal(got.Body, env.Body) {
			t.Errorf("%s: body %s, want %s", leg, got.Body, env.Body)
		}
		w.done(m.Reply, "200")
		get(t, out)
	}
}
