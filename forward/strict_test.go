package forward_test

import (
	"strings"
	"testing"
)

// What an engine could read otherwise than we do, in both modes: Envoy's retry
// doubles a body (failover 6), parsers differ in which of two members they take.
func TestS7ABodyThatTwoReadersCouldReadDifferentlyIsRefused(t *testing.T) {
	deep := `{"model":"m","x":` + strings.Repeat("[", 1<<20) + "}"
	for name, body := range map[string]string{
		"a doubled body":       streamBody + streamBody,
		"text behind the body": streamBody + " x",
		"two models":           `{"model":"m","model":"n","stream":true}`,
		"two streams":          `{"model":"m","stream":true,"stream":false}`,
		"two n":                `{"model":"m","n":1,"n":2}`,
		"a deep body":          deep,
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/completions", "/v1/responses"} {
			for mode, header := range map[string]map[string]string{"auto": nil, "direct": toW1} {
				options := []option{}
				if mode == "direct" {
					options = append(options, direct)
				}
				w := newWorld(t, []script{good}, options...)
				got := w.do(call{path: path, body: body, header: header})
				if got.status != 400 || w.receipts()[0] != 0 {
					t.Errorf("%s, %s, %s: status %d, %d deliveries", name, path, mode, got.status, w.receipts()[0])
				}
			}
		}
	}
	w := newWorld(t, []script{good}, direct)
	for _, path := range []string{"/v1/chat/completions", "/v1/responses"} {
		got := w.do(call{path: path, body: "\x1f\x8b", header: map[string]string{"Content-Encoding": "gzip", "X-Worker-Instance-Id": "w1"}})
		if got.status != 415 {
			t.Errorf("%s: a compressed body: status %d", path, got.status)
		}
	}
	if got := w.do(call{path: "/v1/responses", body: streamBody + "\r\n ", header: toW1}); got.status != 200 {
		t.Errorf("white space behind the body: status %d", got.status)
	}
}
