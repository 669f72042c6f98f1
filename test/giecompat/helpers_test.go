package giecompat

import (
	"encoding/json"
	"strconv"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"
)

// The cases are those of GIE's hermetic suite (test/integration/epp), told by its
// own builders of messages.

var pods = []string{"192.168.1.1", "192.168.1.2", "192.168.1.3"}

func endpoints(ips ...string) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip + ":8000"
	}
	return out
}

func TestRequests(t *testing.T) {
	w := newWorld(t, pods...)
	t.Run("a prompt in one body", func(t *testing.T) {
		sub := w.in(t)
		r := sub.ask(2, integration.ReqLLM(discard(), "hello", model, model)...)
		sub.routed(r[0], endpoints(pods...)...)
		sub.body(r[1], "model", model, "prompt", "hello")
	})
	t.Run("another model for the header", func(t *testing.T) {
		sub := w.in(t)
		r := sub.ask(2, integration.ReqLLM(discard(), "hello", model, "sql-lora-1fdg2")...)
		_, set := sub.routed(r[0], endpoints(pods...)...)
		body := sub.body(r[1], "model", "sql-lora-1fdg2", "prompt", "hello")
		if set["content-length"] == "" || set["content-length"] != strconv.Itoa(len(body)) {
			t.Errorf("content-length %q of a body of %d bytes", set["content-length"], len(body))
		}
	})
	t.Run("a prompt that streams", func(t *testing.T) {
		sub := w.in(t)
		r := sub.ask(2, integration.ReqLLMWithStream(discard(), "hello", model, model)...)
		sub.routed(r[0], endpoints(pods...)...)
		sub.body(r[1], "stream", true)
	})
	t.Run("a body split across chunks", func(t *testing.T) {
		sub := w.in(t)
		r := sub.ask(2, integration.ReqRaw(map[string]string{"hi": "mom"}, `{"max_tokens":100,"model":"my-mo`, `del","prompt":"test","temperature":0}`)...)
		sub.routed(r[0], endpoints(pods...)...)
		sub.body(r[1], "model", model, "prompt", "test")
	})
	t.Run("a body that is no JSON is 400", func(t *testing.T) {
		sub := w.in(t)
		sub.refused(sub.ask(1, integration.ReqRaw(map[string]string{"hi": "mom"}, "no healthy upstream")...)[0], 400)
	})
	t.Run("a body without a model is 400", func(t *testing.T) {
		sub := w.in(t)
		sub.refused(sub.ask(1, integration.ReqLLM(discard(), "hello", "", "")...)[0], 400)
	})
	t.Run("a body of a path that is not known passes through", func(t *testing.T) {
		sub := w.in(t)
		const body = "\x00\x01 no JSON at all"
		r := sub.ask(2, integration.ReqRaw(map[string]string{":path": "/v1/audio/transcriptions", ":method": "POST"}, body)...)
		sub.routed(r[0], endpoints(pods...)...)
		if got := string(r[1].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()); got != body {
			t.Errorf("the body became %q", got)
		}
	})
	t.Run("headers alone go to any endpoint", func(t *testing.T) {
		sub := w.in(t)
		sub.routed(sub.ask(1, integration.ReqHeaderOnly(map[string]string{"content-type": "text/event-stream", "status": "200"})...)[0], endpoints(pods...)...)
		sub.routed(sub.ask(1, integration.ReqHeaderOnly(map[string]string{":method": "GET", ":path": "/healthz"})...)[0], endpoints(pods...)...)
	})
}

func TestSubsets(t *testing.T) {
	w := newWorld(t, pods...)
	for _, tc := range []struct {
		name   string
		subset []string
		want   []string // none for 503
	}{
		{"one endpoint", endpoints("192.168.1.2"), endpoints("192.168.1.2")},
		{"two", endpoints("192.168.1.1", "192.168.1.3"), endpoints("192.168.1.1", "192.168.1.3")},
		{"some of them not in the pool", endpoints("192.168.1.3", "192.168.1.9"), endpoints("192.168.1.3")},
		{"entries without ports", []string{"192.168.1.2"}, endpoints("192.168.1.2")},
		{"entries that are lists", []string{"192.168.1.9:8000, 192.168.1.1:8000"}, endpoints("192.168.1.1")},
		{"none of them in the pool", endpoints("192.168.1.8", "192.168.1.9"), nil},
		{"none at all", []string{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sub := w.in(t)
			messages := integration.GenerateStreamedRequestSet(discard(), "hello", model, model, tc.subset)
			if len(tc.want) == 0 {
				sub.refused(sub.ask(1, messages...)[0], 503)
				return
			}
			sub.routed(sub.ask(2, messages...)[0], tc.want...)
		})
	}
}

func TestAPoolWithoutPods(t *testing.T) {
	w := newWorld(t)
	w.refused(w.ask(1, integration.ReqLLM(discard(), "hello", model, model)...)[0], 503)
	w.refused(w.ask(1, integration.ReqHeaderOnly(map[string]string{":method": "GET", ":path": "/"})...)[0], 503)
}

func responseHeaders(pairs ...string) *extprocv3.ProcessingRequest {
	var list []*corev3.HeaderValue
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, &corev3.HeaderValue{Key: pairs[i], Value: pairs[i+1]})
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: list}},
	}}
}

func responseBody(body string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos},
	}}
}

func TestResponses(t *testing.T) {
	w := newWorld(t, pods...)
	for _, tc := range []struct {
		name, kind string
		chunks     []string
	}{
		{"JSON in several chunks", "application/json", []string{`{"max_tokens":100,"model":"my-mo`, `del","prompt":"test","temperature":0}`}},
		{"what is no JSON", "application/json", []string{"no healthy upstream"}},
		{"an empty chunk at the end", "application/json", []string{`{"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}`, ""}},
		{"a stream of events with usage", "text/event-stream", []string{
			"data: {\"id\":\"cmpl-0\",\"choices\":[{\"text\":\"NEVER\"}],\"usage\":null}\n\n",
			"data: {\"id\":\"cmpl-0\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"total_tokens\":17,\"completion_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\ndata: [DONE]\n\n", "",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sub := w.in(t)
			messages := integration.ReqLLM(discard(), "hello", model, model)
			messages = append(messages, responseHeaders(":status", "200", "content-type", tc.kind))
			for i, chunk := range tc.chunks {
				messages = append(messages, responseBody(chunk, i == len(tc.chunks)-1))
			}
			r := sub.ask(len(messages), messages...)
			if r[2].GetResponseHeaders() == nil {
				t.Errorf("got %v, want an answer to the response headers", r[2])
			}
			for i, chunk := range tc.chunks {
				got := r[3+i].GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				if got == nil || string(got.GetBody()) != chunk || got.GetEndOfStream() != (i == len(tc.chunks)-1) {
					t.Errorf("chunk %d: %v", i, r[3+i])
				}
			}
		})
	}
}

// in is w for a subtest.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	out := *w
	out.t = t
	return &out
}

// body checks fields of a body that is passed on, and returns it.
func (w *world) body(r *extprocv3.ProcessingResponse, fields ...any) string {
	w.t.Helper()
	piece := r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
	if piece == nil || !piece.GetEndOfStream() {
		w.t.Fatalf("got %v, want a whole body", r)
	}
	got := map[string]any{}
	if err := json.Unmarshal(piece.GetBody(), &got); err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		if key := fields[i].(string); got[key] != fields[i+1] {
			w.t.Errorf("%s is %v, want %v", key, got[key], fields[i+1])
		}
	}
	return string(piece.GetBody())
}
