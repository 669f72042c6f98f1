package lab_test

import (
	"testing"
	"time"

	"pointsman/internal/lab"
)

// guardTrace is small and shows what policies differ in: conversations with a hot
// beginning that all share.
func guardTrace(t *testing.T) *lab.Trace {
	t.Helper()
	return drawn(t, lab.Conversations, 1500)
}

// TestLeastLatencyHoldsItsGoalsOnASmallTrace replays a fixed trace through the real
// picker and holds what findings/policy.md §6 asks of the whole comparison, with a
// margin for what so small a trace shows. It takes less than two seconds of CPU; make
// replay-goals is the whole.
func TestLeastLatencyHoldsItsGoalsOnASmallTrace(t *testing.T) {
	trace := guardTrace(t)
	base := setup(t, "least_latency")
	base.Rate, base.CacheBlocks = 7, lab.CacheFor(trace, base.Workers, 30)
	with := func(change func(*lab.Setup)) *lab.Result {
		s := base
		change(&s)
		return run(t, trace, s)
	}
	policy := func(name string) *lab.Result {
		return with(func(s *lab.Setup) { s.Policy = setup(t, name).Policy })
	}
	ours := policy("least_latency")
	w20 := policy("infera_w20")
	for _, c := range []struct {
		name        string
		got, atMost float64
	}{
		{"p90 of the first token against kv-aware at 20", ours.TTFT.P90 / w20.TTFT.P90, 0.85},
		{"against kv-aware at 1", ours.TTFT.P90 / policy("infera_w1").TTFT.P90, 0.50},
		{"against Dynamo's cost", ours.TTFT.P90 / policy("dynamo").TTFT.P90, 0.50},
		{"against its lmetric", ours.TTFT.P90 / policy("lmetric").TTFT.P90, 0.80},
		{"against llm-d", ours.TTFT.P90 / policy("llmd_50ms").TTFT.P90, 0.75},
		{"against SGLang", ours.TTFT.P90 / policy("sglang").TTFT.P90, 0.55},
		{"against fewest in flight", ours.TTFT.P90 / policy("least-load").TTFT.P90, 0.10},
		{"p90 with 8 routers and reports", with(func(s *lab.Setup) { s.Routers, s.ReportInterval = 8, 100*time.Millisecond }).TTFT.P90 / ours.TTFT.P90, 1.20},
		{"p90 when 20 % of events are lost", with(func(s *lab.Setup) { s.Loss = 0.2 }).TTFT.P90 / ours.TTFT.P90, 1.05},
		{"p99 with a worker that is 10 times slower", with(func(s *lab.Setup) {
			s.Slow, s.Rate = []lab.Slowness{{Worker: 7, Factor: 10}}, s.Rate*7.1/8
		}).TTFT.P99 / ours.TTFT.P99, 1.15},
	} {
		t.Logf("%s: %.3f, at most %.2f", c.name, c.got, c.atMost)
		if !(c.got <= c.atMost) {
			t.Errorf("%s: %.3f, want at most %.2f", c.name, c.got, c.atMost)
		}
	}
	if ours.Hit < 0.85*ours.Ceiling {
		t.Errorf("hits %.3f of %.3f possible", ours.Hit, ours.Ceiling)
	}
}

func TestAColdBurstIsSpreadEvenly(t *testing.T) {
	trace, err := lab.NewBurst(lab.ColdBurst(), 512)
	if err != nil {
		t.Fatal(err)
	}
	ours, turns := run(t, trace, setup(t, "least_latency")), run(t, trace, setup(t, "round-robin"))
	if ours.Imbalance > 1.1 {
		t.Errorf("the worst worker got %.2f times the mean, want at most 1.1", ours.Imbalance)
	}
	if ratio := ours.TTFT.P90 / turns.TTFT.P90; ratio > 1.05 {
		t.Errorf("p90 is %.3f times round-robin's, want at most 1.05", ratio)
	}
}

func TestABurstWithinATraceIsMeasuredApart(t *testing.T) {
	trace, err := lab.WithBurst(drawn(t, lab.Documents, 300), lab.Burst{Requests: 50, At: 30 * time.Minute, Over: time.Second, Shared: 4096, Own: 512, Output: 10}, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := setup(t, "least_latency")
	s.Rate = 5
	r := run(t, trace, s)
	if r.Probe == nil || r.Probe.P90 <= 0 || r.Requests != 270 {
		t.Errorf("burst %+v beside %d requests, want one of 50 beside 270", r.Probe, r.Requests)
	}
}
