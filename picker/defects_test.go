package picker_test

import (
	"fmt"
	"testing"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

// spread picks n unrelated prompts of 160 tokens and returns where they went. Each
// ends after eight more have begun.
func spread(w *world, n int) map[string]int {
	went := map[string]int{}
	var open []picker.Decision
	for i := range n {
		d := w.pick(w.request(fmt.Sprintf("own%d:160", i)))
		went[d.Worker.ID]++
		if open = append(open, d); len(open) > 8 {
			open[0].FirstToken(w.now)
			open[0].Done(w.now, breaker.Success)
			open = open[1:]
		}
	}
	return went
}

// TestP1PagesOfDifferentSizeShareTheLoad: in blocks, a worker with pages of one
// token looks sixteen times as expensive as one with pages of sixteen.
func TestP1PagesOfDifferentSizeShareTheLoad(t *testing.T) {
	small, large := worker("sglang"), worker("vllm")
	small.BlockSize = 1
	w := newWorld(t, config(picker.KVAware, 1), small, large)
	if went := spread(w, 200); went["sglang"] < 80 || went["vllm"] < 80 {
		t.Errorf("200 prompts went to %v", went)
	}
}

// TestP2AWorkerOfUnknownBlockSizeIsNotFree: with no blocks to miss it would cost
// nothing and get everything.
func TestP2AWorkerOfUnknownBlockSizeIsNotFree(t *testing.T) {
	unknown := worker("unknown")
	unknown.BlockSize = 0
	w := newWorld(t, config(picker.KVAware, 1), unknown, worker("a"), worker("b"))
	if went := spread(w, 210); went["unknown"] > 85 || went["unknown"] < 35 {
		t.Errorf("210 prompts went to %v", went)
	}
}

// TestP6RotationSurvivesChangesOfTheFleet: a counter for each set of candidates
// would begin anew with each of them.
func TestP6RotationSurvivesChangesOfTheFleet(t *testing.T) {
	w := newWorld(t, config(picker.RoundRobin, 1), workers("a", "b", "c")...)
	went := map[string]int{}
	for i := range 300 {
		req := w.request("x:16")
		switch i % 3 { // the candidates are never the same twice running
		case 1:
			req.Tried = []string{"nobody"}
			w.feed.Put(worker("d"))
		case 2:
			w.feed.Delete("d")
		}
		d := w.pick(req)
		went[d.Worker.ID]++
		d.Done(w.now, breaker.Success)
	}
	for _, id := range []string{"a", "b", "c"} {
		if went[id] < 60 || went[id] > 105 {
			t.Errorf("went to %v", went)
		}
	}
}

// TestP16DirectPicksShareTheOneBreaker: what they learn counts for all picks, and
// departs with the worker.
func TestP16DirectPicksShareTheOneBreaker(t *testing.T) {
	p, other, d := leg("p1", "x"), leg("p2", "x"), leg("d1", "x")
	w := newWorld(t, config(picker.KVAware, 1), p, other, d)
	for range 3 {
		dec, err := w.p.Direct(w.now, "d1", "p1", w.request("x:16"))
		if err != nil {
			t.Fatal(err)
		}
		dec.PrefillDone(w.now, breaker.Connect)
		dec.Done(w.now, breaker.Neutral)
	}
	for range 4 {
		dec := w.pick(w.request("x:16"))
		if dec.Prefill.ID != "p2" {
			t.Errorf("picked %s, whose circuit direct picks have opened", dec.Prefill.ID)
		}
		dec.Done(w.now, breaker.Success)
	}
	w.feed.Delete("p1")
	w.p.Refresh(w.now)
	w.feed.Put(leg("p1", "x"))
	w.p.Refresh(w.now)
	if got := w.set.Circuit("p1").State(w.now); got != breaker.Closed {
		t.Errorf("a new worker of the same ID begins with its circuit %v", got)
	}
}

// TestK18DecodeWorkersWithoutEventsAreChosenByLoad: most keep no prefixes, so that
// to expect some would only pull requests to one of them.
func TestK18DecodeWorkersWithoutEventsAreChosenByLoad(t *testing.T) {
	for _, events := range []bool{false, true} {
		d1, d2 := leg("d1", "x"), leg("d2", "x")
		for _, d := range []*fleet.Worker{d1, d2} {
			if events {
				d.KVEvents = "tcp://h:1"
			}
		}
		w := newWorld(t, config(picker.KVAware, 20), leg("p", "x"), d1, d2)
		went := map[string]int{}
		for i := range 20 {
			dec := w.served(w.request(fmt.Sprintf("sys:1600+q%d:16", i)))
			went[dec.Worker.ID]++
		}
		if even := went["d1"] > 5 && went["d2"] > 5; even == events {
			t.Errorf("events %v: decode legs went to %v", events, went)
		}
	}
}
