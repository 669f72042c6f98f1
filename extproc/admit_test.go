package extproc

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/internal/testkit"
)

// gated puts a gate before w's picker.
func gated(w *world, change func(*admission.Config)) *admission.Gate {
	cfg := admission.DefaultConfig()
	cfg.Mode = admission.Enforce
	change(&cfg)
	g := admission.NewGate(cfg)
	w.server.deps.Gate = g
	w.picker.OnRelease(g.Wake)
	return g
}

func (w *world) queued(n int) {
	w.t.Helper()
	testkit.Until(w.t, strconv.Itoa(n)+" queued", func() bool { return w.server.deps.Gate.Snapshot().Queued == n })
}

// asks opens a stream with a whole request on it.
func (w *world) asks(extra ...string) *gateway {
	g := w.open()
	g.send(post(chatPath, extra...), requestBody(chat("m", "x"), true))
	return g
}

func TestARequestOverTheCeilingIsParkedAndNothingIsSentUpstream(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	gate := gated(w, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth = 1, 2 })
	first := w.asks()
	first.routedHeaders()
	second := w.asks()
	w.queued(1)
	if n := w.held(); n != 1 {
		t.Errorf("%d picks while one request runs and one waits", n)
	}
	first.cancel()
	second.routedHeaders() // the first answer it gets
	if s := gate.Snapshot(); s.Inflight != 1 || s.Queued != 0 {
		t.Errorf("in flight %d, queued %d, want 1 and 0", s.Inflight, s.Queued)
	}
	second.cancel()
	testkit.Until(t, "all given back", func() bool { return gate.Snapshot().Inflight == 0 && w.held() == 0 })
}

func TestAStreamThatEndsWhileItsRequestWaitsLeavesTheQueueAtOnce(t *testing.T) {
	for name, end := range map[string]func(*gateway){
		"reset":       func(g *gateway) { g.cancel() },
		"half-closed": func(g *gateway) { _ = g.stream.CloseSend(); g.ended() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed(workerID, "m"))
			gate := gated(w, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 1, 2, time.Hour })
			first := w.asks()
			first.routedHeaders()
			gone := w.asks()
			w.queued(1)
			behind := w.asks()
			w.queued(2)
			end(gone)
			w.queued(1)
			first.cancel()
			behind.routedHeaders()
			behind.cancel()
			testkit.Until(t, "all given back", func() bool { return gate.Snapshot().Inflight == 0 })
		})
	}
}

func TestAdmissionRefusalsSayWhenToComeBack(t *testing.T) {
	tests := []struct {
		name, code string
		status     int
		change     func(*admission.Config)
		before     func(*admission.Gate)
	}{
		{"no queue", admission.CodeCapacity, 429, func(*admission.Config) {}, nil},
		{"the wait is over", admission.CodeQueueTime, 504, func(c *admission.Config) { c.QueueDepth, c.QueueWait = 5, 20*time.Millisecond }, nil},
		{"the bodies' memory is full", admission.CodeMemory, 429, func(c *admission.Config) { c.QueueDepth, c.QueueBytes = 5, 10 }, nil},
		{"draining", admission.CodeDraining, 503, func(*admission.Config) {}, (*admission.Gate).Drain},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, testConfig(), mixed(workerID, "m"))
			gate := gated(w, func(c *admission.Config) { c.MaxOutstanding = 1; tt.change(c) })
			first := w.asks()
			first.routedHeaders()
			if tt.before != nil {
				tt.before(gate)
			}
			r := w.asks().immediate()
			checkOpenAIError(t, r, tt.status, tt.code, true)
			m := mutationsOf(r.GetHeaders()).set
			seconds, _ := strconv.Atoi(m["retry-after"])
			millis, _ := strconv.Atoi(m["retry-after-ms"])
			if seconds < 1 || millis < seconds*1000 || m[admission.HeaderInflight] != "1" || m[admission.HeaderLimit] != "1" || m[admission.HeaderQueued] != "0" {
				t.Errorf("headers %v", m)
			}
			var body struct {
				Error struct {
					RetryAfter int   `json:"retry_after"`
					Jitter     int64 `json:"jitter_hint_ms"`
					Queued     int64 `json:"queued_ms"`
				}
			}
			if err := json.Unmarshal(r.GetBody(), &body); err != nil || body.Error.RetryAfter != seconds || body.Error.Jitter == 0 || (body.Error.Queued >= 20) != (tt.status == 504) {
				t.Errorf("body %s (%v)", r.GetBody(), err)
			}
			first.cancel()
		})
	}
}

func TestParkedRequestsEndWhenTheDrainBegins(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	gated(w, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 1, 2, time.Hour })
	first := w.asks()
	first.routedHeaders()
	parked := w.asks()
	w.queued(1)
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	checkOpenAIError(t, parked.immediate(), 503, admission.CodeDrained, true)
	if s := w.server.deps.Gate.Snapshot(); s.Inflight != 1 || !s.Draining {
		t.Errorf("the read-back says %+v while one request runs", s)
	}
	first.cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// security S18: choices count as units.
func TestChoicesAskedForCountAsUnits(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	gate := gated(w, func(c *admission.Config) { c.MaxOutstanding = 100 })
	many := func(n int) *gateway {
		g := w.open()
		g.send(post("/v1/completions"), requestBody(`{"model":"m","prompt":"x","n":`+strconv.Itoa(n)+`}`, true))
		return g
	}
	checkOpenAIError(t, many(128).immediate(), 429, admission.CodeCapacity, true)
	g := many(60)
	g.routedHeaders()
	if s := gate.Snapshot(); s.Units != 60 || s.Inflight != 1 {
		t.Errorf("%d units of %d requests, want 60 of 1", s.Units, s.Inflight)
	}
	checkOpenAIError(t, many(60).immediate(), 429, admission.CodeCapacity, true)
	g.cancel()
}

func TestFcExposeHeadersTellHowFullTheGateIs(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	gated(w, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth = 7, 2 })
	g := w.asks()
	g.routedHeaders()
	g.streamedBody(0, true)
	g.send(responseHeaders(false, ":status", "200"))
	m := mutationsOf(g.receive().GetResponseHeaders().GetResponse().GetHeaderMutation()).set
	if m[admission.HeaderInflight] != "1" || m[admission.HeaderQueued] != "0" || m[admission.HeaderLimit] != "7" {
		t.Errorf("headers %v", m)
	}
	g.cancel()
}

func TestThePriorityAndTheTenantComeFromTheConfiguredHeaders(t *testing.T) {
	cfg := testConfig()
	cfg.Admission = admission.Headers{Tenant: "x-tenant", Priority: "x-priority"}
	w := newWorld(t, cfg, mixed(workerID, "m"))
	gated(w, func(c *admission.Config) {
		c.MaxOutstanding, c.QueueDepth, c.QueueWait, c.TenantSharePct = 2, 1, time.Hour, 50
	})
	first := w.asks("x-tenant", "a")
	first.routedHeaders()
	low := w.asks("x-tenant", "a", "x-priority", "-1") // its tenant has half
	w.queued(1)
	other := w.asks("x-tenant", "b")
	other.routedHeaders() // goes past a tenant that has its share
	high := w.asks("x-tenant", "b", "x-priority", "5")
	checkOpenAIError(t, low.immediate(), 429, admission.CodeCapacity, true) // thrown out for it
	first.cancel()
	other.cancel()
	high.routedHeaders()
	high.cancel()
}

func TestRequestsThatComputeNothingAreNotCounted(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	gate := gated(w, func(c *admission.Config) { c.MaxOutstanding = 1 })
	first := w.asks()
	first.routedHeaders()
	g := w.open()
	g.send(get("/v1/models"))
	g.routedHeaders()
	g.finish()
	if s := gate.Snapshot(); s.Inflight != 1 {
		t.Errorf("in flight %d, want 1", s.Inflight)
	}
	first.cancel()
}
