package picker_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// rate returns what w's picker believes of a target.
func (w *world) rate(key string) picker.Rate {
	w.Helper()
	for _, r := range w.p.Rates() {
		if r.Target == key {
			return r
		}
	}
	w.Fatalf("no rate of %s", key)
	return picker.Rate{}
}

// plain is least-latency with tokens that all cost the same.
func plain() picker.Config {
	cfg := config(picker.LeastLatency, 1)
	cfg.Latency.AttentionTokens = 0
	return cfg
}

func TestRatesAreLearnedFromFirstTokens(t *testing.T) {
	w := newWorld(t, plain(), workers("A", "B")...)
	serve := func(id string, took time.Duration, n int) {
		for i := range n {
			req := w.request(fmt.Sprintf("%s%d%v:1600", id, i, took))
			req.Subset, req.HasSubset = []string{id}, true
			d := w.pick(req)
			w.now = w.now.Add(took)
			d.FirstToken(w.now)
			d.Done(w.now, breaker.Success)
		}
	}
	if r := w.rate("A"); r.Source != picker.RateStart || math.Abs(r.TokensPerMS-16) > 1e-9 {
		t.Errorf("before anything was learned: %+v", r)
	}
	serve("A", 100*time.Millisecond, 200)  // 16 per ms
	serve("B", 1000*time.Millisecond, 200) // 1.6
	a, b := w.rate("A"), w.rate("B")
	if a.Source != picker.RatePrivate || b.Source != picker.RatePrivate {
		t.Errorf("sources %v and %v", a.Source, b.Source)
	}
	// The evidence of A is 50 samples of 0.1 s: three seconds of the fleet's average
	// draw it down. That of B outweighs them.
	if a.TokensPerMS < 8 || a.TokensPerMS > 16 || b.TokensPerMS < 1.6 || b.TokensPerMS > 2 {
		t.Errorf("A %.2f and B %.2f, who do 16 and 1.6 per ms", a.TokensPerMS, b.TokensPerMS)
	}
	for range 20 {
		if d := w.served(w.request("new:3200")); d.Worker.ID != "A" {
			t.Errorf("picked %s, which is ten times slower", d.Worker.ID)
		}
	}
}

func TestFirstTokensOfOneStepTeachTheRatioOfSums(t *testing.T) {
	w := newWorld(t, plain(), workers("A")...)
	for i := range 100 {
		var step []picker.Decision
		for k := range 4 { // of very different lengths, all done at once
			step = append(step, w.pick(w.request(fmt.Sprintf("p%d-%d:%d", i, k, 160<<k))))
		}
		w.now = w.now.Add(240 * time.Millisecond)
		for k := range step {
			step[k].FirstToken(w.now)
			step[k].Done(w.now, breaker.Success)
		}
	}
	if got := w.rate("A").TokensPerMS; math.Abs(got-10) > 1 { // 2400 te in 240 ms, beside the three seconds of an average
		t.Errorf("%.2f te per ms, want 10", got)
	}
}

func TestAFreshReportReplacesThePrivateRate(t *testing.T) {
	w := newWorld(t, plain(), workers("A")...)
	d := w.pick(w.request("a:1600"))
	w.now = w.now.Add(time.Second)
	d.FirstToken(w.now)
	w.p.SetExternal("A", -1, picker.External{Rate: 40}, w.now)
	if r := w.rate("A"); r.Source != picker.RateReported || math.Abs(r.TokensPerMS-40) > 1e-9 {
		t.Errorf("with a report: %+v", r)
	}
	w.now = w.now.Add(time.Minute)
	w.p.Refresh(w.now)
	if r := w.rate("A"); r.Source != picker.RatePrivate {
		t.Errorf("a minute later: %+v", r)
	}
}

// Whoever was slow and gets no requests any more is forgiven in time.
func TestEvidenceFades(t *testing.T) {
	w := newWorld(t, plain(), workers("A", "B")...)
	d := w.pick(w.request("a:1600"))
	slow := d.Worker.ID
	w.now = w.now.Add(100 * time.Second)
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	w.p.Refresh(w.now)
	before := w.rate(slow).TokensPerMS
	for range 120 {
		w.now = w.now.Add(time.Minute)
		w.p.Refresh(w.now)
	}
	if after := w.rate(slow).TokensPerMS; after < 15 || before > 1 {
		t.Errorf("%.2f at first, %.2f two hours later", before, after)
	}
}

// A worker that hangs is credited with the request at its head at most, so that what
// else waits there keeps others away.
func TestAWorkerThatStandsStillDoesNotGetFree(t *testing.T) {
	w := newWorld(t, plain(), workers("A", "B")...)
	stuck := map[string]int{}
	for i := range 40 {
		d := w.pick(w.request(fmt.Sprintf("p%d:1600", i)))
		stuck[d.Worker.ID]++
		if d.Worker.ID == "B" {
			w.now = w.now.Add(100 * time.Millisecond)
			d.FirstToken(w.now)
			d.Done(w.now, breaker.Success)
		}
	}
	if stuck["A"] > 3 {
		t.Errorf("%d of 40 went to a worker that answers nothing", stuck["A"])
	}
}

// Whatever happens to requests, nothing of them is left in a queue.
func TestNothingIsLeftInTheQueues(t *testing.T) {
	w := newWorld(t, config(picker.LeastLatency, 1), workers("A", "B", "C")...)
	rng := rand.New(rand.NewPCG(1, 2))
	var open []picker.Decision
	for i := range 5000 {
		w.now = w.now.Add(time.Duration(rng.IntN(40)) * time.Millisecond)
		switch rng.IntN(4) {
		case 0, 1:
			req := w.request(fmt.Sprintf("sys:160+p%d:%d", i%50, 16+rng.IntN(800)))
			req.Unary = rng.IntN(3) == 0
			open = append(open, w.pick(req))
		case 2:
			if len(open) > 0 {
				open[rng.IntN(len(open))].FirstToken(w.now)
			}
		default:
			if k := len(open); k > 0 {
				j := rng.IntN(k)
				open[j].Done(w.now, []breaker.Outcome{breaker.Success, breaker.Stream, breaker.Neutral}[rng.IntN(3)])
				open[j] = open[k-1]
				open = open[:k-1]
			}
		}
	}
	for i := range open {
		open[i].Done(w.now, breaker.Neutral)
	}
	for _, c := range w.p.Dry(w.now, w.request("sys:160")).Candidates {
		if c.Queue != 0 || c.Decoders != 0 || c.Context != 0 || c.Requests != 0 {
			t.Errorf("left over: %+v", c)
		}
	}
}

func TestLatencyTuningIsChecked(t *testing.T) {
	bad := picker.DefaultLatency()
	bad.Lambda, bad.Kappa, bad.StartRate = 0.5, math.NaN(), 0
	err := bad.Validate()
	for _, name := range []string{"lambda", "kappa", "start-tokens-per-ms"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not among the faults: %v", name, err)
		}
	}
	cfg := config(picker.LeastLatency, 1)
	cfg.Latency = picker.Latency{} // a Config that does not name it
	if w := newWorld(t, cfg, workers("A")...); math.Abs(w.rate("A").TokensPerMS-16) > 1e-9 {
		t.Error("the zero Latency is not the default one")
	}
}

// A policy that is changed while running knows the rates already.
func TestRatesAreLearnedUnderEveryPolicy(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A")...)
	d := w.pick(w.request("a:1600"))
	w.now = w.now.Add(time.Second)
	d.FirstToken(w.now)
	if err := w.p.SetConfig(config(picker.LeastLatency, 1)); err != nil {
		t.Fatal(err)
	}
	r := w.p.Dry(w.now, w.request("b:160"))
	if r.Policy != picker.LeastLatency || r.CostUnit != "ms" || r.Candidates[0].RateSource != "private" {
		t.Errorf("after the change: %+v", r)
	}
}
