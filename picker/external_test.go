package picker_test

import (
	"errors"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// busyWith tells w's picker that others have n requests in flight on id.
func (w *world) busyWith(id string, n float64) {
	w.Helper()
	load := picker.External{Requests: n, Waiting: n, PrefillTokens: 100 * n, ActiveTokens: 100 * n, Rate: 16}
	if !w.p.SetExternal(id, -1, load, w.now) {
		w.Fatalf("%s is not in the fleet", id)
	}
}

func TestWhatOthersHaveInFlightCounts(t *testing.T) {
	for _, policy := range []string{picker.KVAware, picker.LeastLoad} {
		w := newWorld(t, config(policy, 1), workers("A", "B", "C")...)
		w.busyWith("A", 5)
		w.busyWith("C", 9)
		for range 5 { // B is the least loaded until it has what A has
			if d := w.pick(w.request("x:16")); d.Worker.ID != "B" {
				t.Errorf("%s: picked %s beside an idle B", policy, d.Worker.ID)
			}
		}
		w.busyWith("A", 0)
		if d := w.pick(w.request("y:16")); d.Worker.ID != "A" {
			t.Errorf("%s: picked %s, though A is idle again", policy, d.Worker.ID)
		}
	}
}

func TestAnOldReportFadesToTheMeanAndNeverHalts(t *testing.T) {
	cfg := config(picker.LeastLoad, 1)
	cfg.Caps, cfg.ExternalStale = picker.Caps{Worker: 10, Enforce: true}, time.Second
	w := newWorld(t, cfg, workers("A", "B")...)
	w.busyWith("A", 10)
	w.busyWith("B", 2)
	got := map[string]int{}
	for range 8 {
		got[w.pick(w.request("x:16")).Worker.ID]++
	}
	if got["B"] != 8 {
		t.Errorf("A is at its cap: %v", got)
	}
	if _, err := w.p.Pick(w.now, w.request("x:16")); !errors.Is(err, picker.ErrFull) {
		t.Errorf("both are at their cap: %v", err)
	}
	w.now = w.now.Add(20 * time.Second) // nobody has reported since
	for range 8 {
		d, err := w.p.Pick(w.now, w.request("x:16"))
		if err != nil {
			t.Fatalf("with old reports: %v", err)
		}
		if d.Worker.ID != "A" { // by our own ledger B has 8
			t.Errorf("picked %s by what was said 20 s ago", d.Worker.ID)
		}
	}
}

func TestExternalRoomWakesWhoWaits(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), workers("A")...)
	woken := 0
	w.p.OnRelease(func() { woken++ })
	w.busyWith("A", 3)
	w.busyWith("A", 3)
	if woken != 0 {
		t.Errorf("woken %d times by load that came", woken)
	}
	if w.busyWith("A", 2); woken != 1 {
		t.Errorf("woken %d times when a request of others ended", woken)
	}
}

func TestReportsOfTheUnknownAndOfThePastAreIgnored(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), workers("A", "B")...)
	if w.p.SetExternal("gone", -1, picker.External{Requests: 1}, w.now) {
		t.Error("a worker that the fleet does not have was taken")
	}
	w.busyWith("A", 3)
	w.p.SetExternal("A", -1, picker.External{}, w.now.Add(-time.Second))
	if d := w.pick(w.request("x:16")); d.Worker.ID != "B" {
		t.Error("an older report replaced a newer one")
	}
	w.feed.Delete("A")
	w.feed.Replace(workers("A"))
	if d := w.pick(w.request("x:16")); d.Worker.ID != "A" {
		t.Fatal("A is alone")
	}
}

func TestADecisionTellsWhatItAdds(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A")...)
	w.hold("A", "sys:32", 16)
	first := w.pick(w.request("sys:32+q1:32"))
	if first.PromptTokens != 64 || first.MissTokens != 32 || first.AddedTokens != 64 {
		t.Errorf("%d tokens, %d to compute, %d new in flight; want 64, 32, 64", first.PromptTokens, first.MissTokens, first.AddedTokens)
	}
	if second := w.pick(w.request("sys:32+q2:16")); second.AddedTokens != 16 {
		t.Errorf("a second prompt with the same beginning adds %d", second.AddedTokens)
	}
	first.Done(w.now, breaker.Success)
}
