package forward_test

import (
	"slices"
	"strings"
	"testing"
)

// litellm 40404 and 38610: what a broken stream comes to depends on whether content
// was sent, and on nothing else.
func TestLitellm40404And38610ABrokenStreamIsRepeatedBeforeItsContentOnly(t *testing.T) {
	start := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[]}}\n\n"
	block := "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
	text := "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n"
	stopped := "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	message := `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`
	tests := []struct {
		name, path, body string
		first            script
		second           script
		whole            string // what the client gets when it is repeated; "" for an error behind the content
		content          string
	}{
		{"role only, then a reset", "", streamBody, rawReset(sseOpen(role), nil), good, goodBody, ""},
		{"one token, then a reset", "", streamBody, rawReset(sseOpen(role, tok0), nil), good, "", role + tok0},
		{"message_start only, then a reset", "/v1/messages", message, rawReset(sseOpen(start, block), nil), raw(sse(start, block, text, stopped)), start + block + text + stopped, ""},
		{"message_start and a text, then a reset", "/v1/messages", message, rawReset(sseOpen(start, block, text), nil), raw(sse(start, block, text, stopped)), "", start + block + text},
	}
	for _, tc := range tests {
		w := newWorld(t, []script{tc.first, tc.second}, direct)
		got := w.do(call{path: tc.path, body: tc.body, header: toW1})
		w.settled(1)
		if tc.whole != "" {
			if got.status != 200 || got.body != tc.whole || !slices.Equal(w.receipts(), []int{1, 1}) {
				t.Errorf("%s: %d %q, receipts %v", tc.name, got.status, got.body, w.receipts())
			}
			continue
		}
		rest, ok := strings.CutPrefix(got.body, tc.content)
		if got.status != 200 || !ok || strings.Count(rest, `"error"`) < 1 || strings.Contains(rest, "[DONE]") || strings.Contains(rest, "message_stop") || !slices.Equal(w.receipts(), []int{1, 0}) {
			t.Errorf("%s: %d %q, receipts %v", tc.name, got.status, got.body, w.receipts())
		}
	}
}

// litellm 40404: one event that is no JSON, in a stream that is complete otherwise.
func TestLitellm40404AMalformedEventPassesAndTheStreamGoesOn(t *testing.T) {
	bad := "data: {\"choices\":[{\"delta\":{\"content\":\n\n"
	w := newWorld(t, []script{raw(sse(role, tok0, bad, tok1, stop, done))})
	if got := w.do(call{body: streamBody}); got.status != 200 || got.body != role+tok0+bad+tok1+stop+done {
		t.Errorf("%d %q", got.status, got.body)
	}
	w.settled(1)
	if n := w.count("infera_request_duration_seconds", "outcome=ok"); n != 1 {
		t.Errorf("%d counted as ok", n)
	}
}
