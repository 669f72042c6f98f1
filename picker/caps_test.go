package picker_test

import (
	"errors"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

func capped(caps picker.Caps) picker.Config {
	cfg := config(picker.LeastLoad, 1)
	cfg.Caps = caps
	return cfg
}

// fc_ep_max_inflight: never more than the cap on one worker, and what is over is
// told; observe lets it pass and says so for the same arrivals.
func TestFcEpMaxInflight(t *testing.T) {
	for _, enforce := range []bool{true, false} {
		w := newWorld(t, capped(picker.Caps{Worker: 2, Enforce: enforce}), workers("A", "B")...)
		var flying []picker.Decision
		over := 0
		for range 7 {
			d, err := w.p.Pick(w.now, w.request("x:16"))
			switch {
			case errors.Is(err, picker.ErrFull):
				over++
				continue
			case err != nil:
				t.Fatal(err)
			case d.OverCap:
				over++
			}
			flying = append(flying, d)
		}
		if over != 3 {
			t.Errorf("enforce %v: %d of 7 over two caps of 2, want 3", enforce, over)
		}
		if enforce && w.why()["A"] != "at_cap" {
			t.Errorf("%v", w.why())
		}
		for i := range flying {
			flying[i].Done(w.now, breaker.Success)
		}
		if d := w.pick(w.request("x:16")); d.OverCap {
			t.Errorf("enforce %v: over the cap when all is given back", enforce)
		}
	}
}

func TestFcPrefillMaxInflightAndFcDecodeMaxInflight(t *testing.T) {
	tests := []struct {
		name string
		caps picker.Caps
		held int // pairs that fit
		free func(d *picker.Decision, now time.Time)
	}{
		{"prefill legs", picker.Caps{Prefill: 1, Enforce: true}, 1, func(d *picker.Decision, now time.Time) { d.PrefillDone(now, breaker.Success) }},
		{"decode legs", picker.Caps{Decode: 2, Enforce: true}, 2, func(d *picker.Decision, now time.Time) { d.Done(now, breaker.Success) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, capped(tt.caps), leg("p1", "x"), leg("d1", "x"))
			var flying []picker.Decision
			for range tt.held {
				flying = append(flying, w.pick(w.request("x:16")))
			}
			if _, err := w.p.Pick(w.now, w.request("x:16")); !errors.Is(err, picker.ErrFull) {
				t.Fatalf("beyond the cap: %v", err)
			}
			if _, err := w.p.Direct(w.now, "d1", "p1", w.request("x:16")); !errors.Is(err, picker.ErrFull) {
				t.Fatalf("named directly: %v", err)
			}
			tt.free(&flying[0], w.now)
			w.pick(w.request("x:16"))
		})
	}
}

// Workers at their cap are worth waiting for: a request does not go to an open
// circuit instead. One that is only busy is asked.
func TestFullBeatsOpenAndBusyBeatsFull(t *testing.T) {
	w := newWorld(t, capped(picker.Caps{Worker: 1, Enforce: true}), workers("A", "B")...)
	w.ends("B", 3, breaker.Origin)
	held := w.pick(w.request("x:16"))
	if _, err := w.p.Pick(w.now, w.request("x:16")); held.Worker.ID != "A" || !errors.Is(err, picker.ErrFull) {
		t.Errorf("A full and B open: %v", err)
	}
	w.now = w.now.Add(5 * time.Second)
	w.spread(1, w.request("x:16")) // B's probe
	w.ends("B", 1, breaker.Busy)
	if d := w.pick(w.request("x:16")); d.Worker.ID != "B" {
		t.Errorf("A full and B busy: %s", d.Worker.ID)
	}
	mixed := newWorld(t, capped(picker.Caps{Worker: 1, Decode: 1, Enforce: true}), leg("p1", "x"), leg("d1", "x"), worker("M"))
	mixed.ends("M", 3, breaker.Origin)
	mixed.pick(mixed.request("x:16"))
	if d, err := mixed.p.Pick(mixed.now, mixed.request("x:16")); !errors.Is(err, picker.ErrFull) {
		t.Errorf("pairs full and the mixed worker open: %+v, %v", d.Worker, err)
	}
	open := newWorld(t, capped(picker.Caps{Worker: 1, Enforce: true}), worker("A"))
	open.ends("A", 3, breaker.Origin)
	open.pick(open.request("x:16"))
	if _, err := open.p.Pick(open.now, open.request("x:16")); !errors.Is(err, picker.ErrFull) {
		t.Errorf("all open, and at their caps: %v", err)
	}
}

// fc_warmup_ms: the cap grows in a line from a quarter to the whole after a breaker
// has closed, a worker was found healthy or has joined.
func TestFcWarmupMs(t *testing.T) {
	caps := picker.Caps{Worker: 8, Enforce: true, Warmup: 8 * time.Second}
	room := func(w *world, id string) (n int) {
		w.Helper()
		var flying []picker.Decision
		for {
			d, err := w.p.Direct(w.now, id, "", w.request("x:16"))
			if errors.Is(err, picker.ErrFull) {
				break
			}
			if err != nil {
				w.Fatal(err)
			}
			flying = append(flying, d)
		}
		for i := range flying {
			flying[i].Done(w.now, breaker.Neutral)
		}
		return len(flying)
	}
	ramp := func(w *world, id string) {
		w.Helper()
		start := w.now
		for _, at := range []struct {
			after float64
			want  int
		}{{0, 2}, {2, 4}, {4, 5}, {6, 7}, {8, 8}, {100, 8}} {
			w.now = start.Add(time.Duration(at.after * float64(time.Second)))
			if n, warming := w.p.Warming(w.now), at.want < 8; (n == 1) != warming {
				w.Errorf("%v s after it: %d workers warm up", at.after, n)
			}
			if got := room(w, id); got != at.want {
				w.Errorf("%v s after it: room for %d, want %d", at.after, got, at.want)
			}
		}
	}
	w := newWorld(t, capped(caps), workers("A", "B")...)
	if got := room(w, "A"); got != 8 {
		t.Errorf("of the fleet found at the start: %d", got)
	}
	w.feed.Put(worker("C"))
	ramp(w, "C")
	w.ends("A", 3, breaker.Origin)
	w.now = w.now.Add(5 * time.Second)
	probe, err := w.p.Direct(w.now, "A", "", w.request("x:16"))
	if err != nil {
		t.Fatal(err)
	}
	probe.FirstToken(w.now)
	probe.Done(w.now, breaker.Success)
	ramp(w, "A")
	h := sick{"B": true}
	w.p.SetHealth(h)
	w.p.Refresh(w.now)
	clear(h)
	w.now = w.now.Add(time.Second)
	w.p.Refresh(w.now)
	ramp(w, "B")
}

func TestACapIsOfAWorkerWithAllItsRanks(t *testing.T) {
	a := worker("A")
	a.DPSize = 4
	w := newWorld(t, capped(picker.Caps{Worker: 3, Enforce: true}), a)
	for range 3 {
		w.pick(w.request("x:16"))
	}
	if _, err := w.p.Pick(w.now, w.request("x:16")); !errors.Is(err, picker.ErrFull) {
		t.Errorf("the fourth: %v", err)
	}
}

func TestCapsAreValidated(t *testing.T) {
	for _, caps := range []picker.Caps{{Worker: -1}, {Prefill: 100_001}, {Decode: -5}, {Warmup: -1}, {Warmup: 2 * time.Hour}} {
		if err := capped(caps).Validate(); err == nil {
			t.Errorf("%+v is accepted", caps)
		}
	}
	for _, ttl := range []time.Duration{-1, time.Millisecond, 25 * time.Hour} {
		cfg := picker.DefaultConfig()
		cfg.SessionTTL = ttl
		if err := cfg.Validate(); err == nil {
			t.Errorf("session time %v is accepted", ttl)
		}
	}
	cfg := picker.DefaultConfig()
	cfg.SessionAffinity = "sometimes"
	if _, err := newPicker(cfg); err == nil {
		t.Error("an unknown affinity is accepted")
	}
}
