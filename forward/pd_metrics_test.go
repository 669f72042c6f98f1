package forward_test

import (
	"testing"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/testkit"
)

// TestFailuresOfPairsHaveInferasNames: one request each, and the reason that
// Infera's dashboards know it by.
func TestFailuresOfPairsHaveInferasNames(t *testing.T) {
	const name = "infera_pd_bootstrap_failures_total"
	broken, full := raw(jsonReply(500, `{}`)), raw(jsonReply(400, `{}`))
	tests := []struct {
		reason   string
		protocol string
		prefill  []script
		decode   []script
		call     call
	}{
		{"no_pd_workers", "sglang-bootstrap", []script{good}, nil, call{body: chatBody}},
		{"protocol_unresolved", "nobody-knows-it", []script{good}, []script{good}, call{body: chatBody}},
		{"direct_worker_missing", "sglang-bootstrap", []script{good}, []script{good}, call{body: chatBody, header: map[string]string{"x-worker-instance-id": "d1", "x-prefill-instance-id": "p9"}}},
		{"prefill_unreachable", "vllm-nixl", []script{nil}, []script{good}, call{body: chatBody}},
		{"prefill_5xx", "vllm-nixl", []script{broken}, []script{good}, call{body: chatBody}},
		{"prefill_4xx", "vllm-nixl", []script{full}, []script{good}, call{body: chatBody}},
		{"prefill_exception", "vllm-nixl", []script{rawReset("", nil)}, []script{good}, call{body: chatBody}},
		{"handoff_extract_failed", "vllm-nixl", []script{good}, []script{good}, call{body: chatBody}},
		{"decode_unreachable", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{nil}, call{body: chatBody}},
		{"decode_5xx", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{broken}, call{body: chatBody}},
		{"decode_4xx", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{full}, call{body: chatBody}},
		{"decode_stream_broken", "vllm-nixl", []script{handoff(nixlHandoff)}, []script{rawClose(sseOpen(tok0))}, call{body: streamBody}},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			w := newPairWorld(t, tt.protocol, tt.prefill, tt.decode, change(func(c *forward.Config) {
				c.MaxRetries, c.ConnectRetrySameEP = 0, 0
				if tt.call.header != nil {
					c.Mode = forward.Direct
				}
			}))
			w.do(tt.call)
			w.settled(1)
			if n, all := w.count(name, "reason="+tt.reason), w.count(name); n != 1 || all != 1 {
				t.Errorf("%d of %d failures have the name, want 1 of 1", n, all)
			}
		})
	}
}

// TestTheTimeOfALegIsKeptByWorkerWhileItIsThere: both legs are timed, and a worker
// that has left takes its series along.
func TestTheTimeOfALegIsKeptByWorkerWhileItIsThere(t *testing.T) {
	const name = "infera_pd_dispatch_duration_seconds"
	w := newPairWorld(t, "vllm-nixl", []script{handoff(nixlHandoff)}, []script{good})
	if got := w.do(call{body: chatBody}); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	w.settled(1)
	if p, d := w.count(name, "leg=prefill", "worker_id=p1"), w.count(name, "leg=decode", "worker_id=d1"); p != 1 || d != 1 {
		t.Errorf("%d prefill and %d decode legs are timed, want 1 of each", p, d)
	}
	w.feed.Replace([]*fleet.Worker{legWorker("p1", w.prefill[0], fleet.Prefill, "vllm-nixl")})
	testkit.Until(t, "the series gone of a worker that left", func() bool { return w.count(name, "worker_id=d1") == 0 })
	if n := w.count(name, "worker_id=p1"); n != 1 {
		t.Errorf("%d series of the worker that stayed, want 1", n)
	}
}
