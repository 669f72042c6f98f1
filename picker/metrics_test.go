package picker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
	"pointsman/picker"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 20), workers("A", "B")...)
	w.hold("A", "sys:160", 16)
	w.now = w.now.Add(time.Second)
	long := w.request("sys:160+q:32") // 12 blocks, 10 of them on A
	long.Retention = picker.RetentionLong
	flying := w.pick(long)
	w.served(w.request("sys:160"))
	fresh := w.request("new:64")
	fresh.Tried = []string{"A"}
	failed := w.pick(fresh)
	failed.Done(w.now, breaker.Connect)
	images := w.request("pic:64")
	images.Multimodal, images.Images, images.Tried, images.Reason = true, []uint64{7}, []string{"B"}, "multimodal"
	w.served(images)

	expect := func(when, want string, names ...string) {
		t.Helper()
		if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want), names...); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("after four picks", `
# HELP infera_cache_control_seen_total Requests that said how long to cache their prompt.
# TYPE infera_cache_control_seen_total counter
infera_cache_control_seen_total{retention="long"} 1
infera_cache_control_seen_total{retention="none"} 0
infera_cache_control_seen_total{retention="short"} 0
# HELP infera_cache_locality_skipped_total Requests whose prompt was not compared with the caches.
# TYPE infera_cache_locality_skipped_total counter
infera_cache_locality_skipped_total{reason="multimodal"} 1
# HELP infera_policy_active_blocks Distinct prompt blocks in flight on the target; a request without blocks counts one.
# TYPE infera_policy_active_blocks gauge
infera_policy_active_blocks{worker_id="A"} 12
infera_policy_active_blocks{worker_id="B"} 0
# HELP infera_router_outcomes_total Picks by what their end said of the worker.
# TYPE infera_router_outcomes_total counter
infera_router_outcomes_total{class="busy"} 0
infera_router_outcomes_total{class="connect"} 1
infera_router_outcomes_total{class="neutral"} 0
infera_router_outcomes_total{class="origin"} 0
infera_router_outcomes_total{class="stream"} 0
infera_router_outcomes_total{class="success"} 2
infera_router_outcomes_total{class="transfer"} 0
# HELP infera_router_picks_total Picks by role and target.
# TYPE infera_router_picks_total counter
infera_router_picks_total{role="mixed",worker_id="A"} 3
infera_router_picks_total{role="mixed",worker_id="B"} 1
# HELP pointsman_router_hit_tokens_total Prompt tokens that the chosen worker was believed to hold.
# TYPE pointsman_router_hit_tokens_total counter
pointsman_router_hit_tokens_total{role="mixed"} 320
# HELP pointsman_router_in_flight Requests picked and not done.
# TYPE pointsman_router_in_flight gauge
pointsman_router_in_flight{worker_id="A"} 1
pointsman_router_in_flight{worker_id="B"} 0
# HELP pointsman_router_pick_reason_total Picks by how the prompt was known.
# TYPE pointsman_router_pick_reason_total counter
pointsman_router_pick_reason_total{reason="exact"} 2
pointsman_router_pick_reason_total{reason="multimodal"} 1
pointsman_router_pick_reason_total{reason="no_match"} 1
# HELP pointsman_router_prompt_tokens_total Prompt tokens in full blocks of all picks.
# TYPE pointsman_router_prompt_tokens_total counter
pointsman_router_prompt_tokens_total{role="mixed"} 480
# HELP pointsman_router_waiting_tokens Tokens to prefill for requests without a first token.
# TYPE pointsman_router_waiting_tokens gauge
pointsman_router_waiting_tokens{worker_id="A"} 32
pointsman_router_waiting_tokens{worker_id="B"} 0
`, "infera_cache_control_seen_total", "infera_cache_locality_skipped_total", "infera_policy_active_blocks",
		"infera_router_picks_total", "pointsman_router_hit_tokens_total",
		"pointsman_router_in_flight", "infera_router_outcomes_total", "pointsman_router_pick_reason_total",
		"pointsman_router_prompt_tokens_total", "pointsman_router_waiting_tokens")

	w.feed.Delete("A")
	w.p.Refresh(w.now)
	flying.Done(w.now, breaker.Success)
	expect("after the removal of A", `
# HELP infera_policy_active_blocks Distinct prompt blocks in flight on the target; a request without blocks counts one.
# TYPE infera_policy_active_blocks gauge
infera_policy_active_blocks{worker_id="B"} 0
# HELP infera_router_picks_total Picks by role and target.
# TYPE infera_router_picks_total counter
infera_router_picks_total{role="mixed",worker_id="B"} 1
# HELP pointsman_router_in_flight Requests picked and not done.
# TYPE pointsman_router_in_flight gauge
pointsman_router_in_flight{worker_id="B"} 0
`, "infera_policy_active_blocks", "infera_router_picks_total", "pointsman_router_in_flight")
}

func TestHistogramsCountBlocks(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"))
	w.served(w.request("x:160"))
	w.served(w.request("x:160"))
	byLoad := w.request("x:160")
	byLoad.ByLoad = true
	w.served(byLoad) // not compared: not observed
	sums := map[string][2]float64{}
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			sums[f.GetName()] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
		}
	}
	if got := sums["infera_router_pick_request_blocks"]; got != [2]float64{2, 20} {
		t.Errorf("request blocks: count and sum %v, want 2 and 20", got)
	}
	if got := sums["infera_router_pick_cache_hits"]; got != [2]float64{2, 10} {
		t.Errorf("cache hits: count and sum %v, want 2 and 10", got)
	}
}

func TestAllOpenIsCounted(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B")...)
	for _, id := range []string{"A", "B"} {
		for range 3 {
			w.set.Circuit(id).Force(w.now).Done(w.now, breaker.Connect)
		}
	}
	w.pick(w.request("x:16"))
	want := `
# HELP infera_router_worker_breaker_all_open_total Requests sent although the circuits of all candidates were open.
# TYPE infera_router_worker_breaker_all_open_total counter
infera_router_worker_breaker_all_open_total 1
`
	if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want), "infera_router_worker_breaker_all_open_total"); err != nil {
		t.Error(err)
	}
}

func TestMetricNames(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"), worker("not\xffutf8"))
	w.served(w.request("x:160"))
	problems, err := testutil.GatherAndLint(w.reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Reasons are constants of the code; a caller that passes anything else must not
// fill the registry.
func TestReasonsAreBounded(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"))
	for i := range 1000 {
		d := w.pick(&picker.Request{Model: "m", Reason: strings.Repeat("x", i)})
		d.Done(w.now, breaker.Neutral)
	}
	n, err := testutil.GatherAndCount(w.reg, "pointsman_router_pick_reason_total")
	if err != nil || n > 40 {
		t.Errorf("%d series, %v; want at most 40", n, err)
	}
}
