package forward_test

import (
	"strings"
	"testing"

	"pointsman/forward"
)

// TestTheResponseNamesTheWorkerThatAnswered holds after a fail-over too, for a
// stream, an object and a worker's own refusal, and never for a forged one.
func TestTheResponseNamesTheWorkerThatAnswered(t *testing.T) {
	const header = "X-Worker-Instance-Id"
	broken := rawClose("")
	forged := raw(jsonReply(200, "{}", header+": somebody-else", "X-Infera-Attempts: m1@w1;refused"))
	tests := []struct {
		name    string
		scripts []script
		body    string
		off     bool
		want    string
		receipt string
	}{
		{"an object", []script{good}, chatBody, false, "w1", "m1@w1;ok"},
		{"a stream", []script{good}, streamBody, false, "w1", "m1@w1;ok"},
		{"after a fail-over", []script{broken, good}, streamBody, false, "w2", "m1@w1;reset,m2@w2;ok"},
		{"after a full worker", []script{raw(jsonReply(429, "{}")), good}, streamBody, false, "w2", "m1@w1;busy,m2@w2;ok"},
		{"when all fail", []script{broken, broken}, chatBody, false, "w2", "m1@w1;reset,m2@w2;reset"},
		{"a refusal", []script{raw(jsonReply(422, `{"error":{"message":"no"}}`))}, chatBody, false, "w1", "m1@w1;4xx"},
		{"a refusal of our own", []script{good}, `{"model":1}`, false, "", "none"},
		{"a worker that lies about its name", []script{forged}, chatBody, false, "w1", "m1@w1;ok"},
		{"turned off", []script{forged}, chatBody, true, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.scripts, direct, change(func(c *forward.Config) { c.NameWorker = !tt.off }))
			got := w.do(call{body: tt.body, header: map[string]string{header: "w1"}})
			if name := got.header.Get(header); name != tt.want {
				t.Errorf("status %d names %q, want %q", got.status, name, tt.want)
			}
			if receipt := got.header.Get("X-Infera-Attempts"); receipt != tt.receipt {
				t.Errorf("status %d has the receipt %q, want %q", got.status, receipt, tt.receipt)
			}
		})
	}
}

// TestAnUnknownModelIsNotEchoedAtAnySize: what a client sends must not come
// back to it, or go into the log, by the megabyte.
func TestAnUnknownModelIsNotEchoedAtAnySize(t *testing.T) {
	w := newWorld(t, []script{good})
	got := w.do(call{body: `{"model":"` + strings.Repeat("z", 1<<20) + `","messages":[{"role":"user","content":"hi"}]}`})
	if got.status != 404 || len(got.body) > 2048 {
		t.Errorf("status %d with %d bytes, want 404 with no more than 2048", got.status, len(got.body))
	}
}
