package picker_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
	"pointsman/picker"
)

// newCanaryWorld is a fleet of two prefill and two decode workers whose pairs are
// tried by canaries.
func newCanaryWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("p2", "x"), leg("d1", "x"), leg("d2", "x"))
	cfg := breaker.DefaultConfig()
	cfg.Jitter, cfg.PairCanary = 0, breaker.CanaryOnRecovery
	if err := w.set.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

// due returns the pairs that wait for canaries.
func (w *world) due() string {
	w.p.Refresh(w.now)
	var out []string
	for _, p := range w.set.DuePairs(w.now, nil) {
		out = append(out, p.Prefill+p.Decode)
	}
	return strings.Join(out, " ")
}

// canary sends one, and returns its pair.
func (w *world) canary(o breaker.Outcome) string {
	w.Helper()
	prefill, decode, ok := w.p.CanaryDue(w.now)
	if !ok {
		return ""
	}
	d, err := w.p.Direct(w.now, decode.ID, prefill.ID, &picker.Request{Model: "m", Canary: true})
	if err != nil {
		w.Fatal(err)
	}
	if o == breaker.Success {
		d.PrefillDone(w.now, o)
		d.FirstToken(w.now)
	}
	d.Done(w.now, o)
	return prefill.ID + decode.ID
}

func TestPairsOfWorkersThatComeAreDue(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world)
		want string
	}{
		{"a fleet that this process joins", func(*world) {}, ""},
		{"a decode worker joins", func(w *world) { w.feed.Put(leg("d3", "x")) }, "p1d3 p2d3"},
		{"a prefill worker joins", func(w *world) { w.feed.Put(leg("p3", "x")) }, "p3d1 p3d2"},
		{"a worker of another protocol joins", func(w *world) { w.feed.Put(leg("d3", "y")) }, ""},
		{"a mixed worker joins", func(w *world) { w.feed.Put(worker("A")) }, ""},
		{"a worker comes back", func(w *world) {
			w.feed.Delete("d1")
			w.p.Refresh(w.now)
			w.feed.Put(leg("d1", "x"))
		}, "p1d1 p2d1"},
		{"a worker is a new process", func(w *world) {
			old, again := leg("d1", "x"), leg("d1", "x")
			old.Incarnation, again.Incarnation = "1", "2"
			w.feed.Put(old)
			w.p.Refresh(w.now)
			w.feed.Put(again)
		}, "p1d1 p2d1"},
		{"a worker's own circuit closes by a request: that pair has been tried", func(w *world) {
			for range 3 {
				d, err := w.p.Direct(w.now, "d1", "p1", &picker.Request{Model: "m"})
				if err != nil {
					t.Fatal(err)
				}
				d.Done(w.now, breaker.Origin)
			}
			w.now = w.now.Add(5 * time.Second)
			d, err := w.p.Direct(w.now, "d1", "p1", &picker.Request{Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			d.FirstToken(w.now)
			d.Done(w.now, breaker.Success)
		}, "p2d1"},
		{"and so without a first token", func(w *world) {
			for _, o := range []breaker.Outcome{breaker.Origin, breaker.Origin, breaker.Origin, breaker.Success} {
				d, err := w.p.Direct(w.now, "d1", "p1", &picker.Request{Model: "m"})
				if err != nil {
					t.Fatal(err)
				}
				d.Done(w.now, o)
				w.now = w.now.Add(5 * time.Second)
			}
		}, "p2d1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCanaryWorld(t)
			w.p.Refresh(w.now)
			if tt.do(w); w.due() != tt.want {
				t.Errorf("due: %q, want %q", w.due(), tt.want)
			}
		})
	}
}

// The pairs of a worker that comes back get no request before a canary each has gone
// well; then they have their share.
func TestDuePairsAreLeftOutUntilTheirCanaries(t *testing.T) {
	w := newCanaryWorld(t)
	w.p.Refresh(w.now)
	w.feed.Put(leg("d3", "x"))
	met := func() string {
		w.Helper()
		got := w.spread(60, w.request("x:16"))
		return strings.Join(slices.Sorted(maps.Keys(got)), " ")
	}
	if got := met(); got != "p1d1 p1d2 p2d1 p2d2" {
		t.Fatalf("before the canaries: %s", got)
	}
	if got := w.canary(breaker.Success); got != "p1d3" {
		t.Fatalf("first canary: %s", got)
	}
	if got := met(); got != "p1d1 p1d2 p1d3 p2d1 p2d2" {
		t.Errorf("after one canary: %s", got)
	}
	if got := w.canary(breaker.Transfer); got != "p2d3" {
		t.Fatalf("second canary: %s", got)
	}
	if got := w.canary(breaker.Success); got != "" {
		t.Errorf("a third canary, of %s", got)
	}
	if got := met(); got != "p1d1 p1d2 p1d3 p2d1 p2d2" {
		t.Errorf("after a canary that failed: %s", got)
	}
	w.now = w.now.Add(20 * time.Second)
	if got := w.canary(breaker.Success); got != "p2d3" {
		t.Errorf("behind the cooldown: %q", got)
	}
	if got := met(); got != "p1d1 p1d2 p1d3 p2d1 p2d2 p2d3" {
		t.Errorf("in the end: %s", got)
	}
}

func TestACanaryIsNoPickThatCounts(t *testing.T) {
	w := newCanaryWorld(t)
	w.p.Refresh(w.now)
	w.feed.Put(leg("d3", "x"))
	before := len(w.p.Records())
	w.canary(breaker.Success)
	w.canary(breaker.Transfer)
	if after := len(w.p.Records()); after != before {
		t.Errorf("%d picks in the records, %d before", after, before)
	}
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); strings.HasSuffix(name, "outcomes_total") || strings.Contains(name, "picks") {
			for _, m := range f.GetMetric() {
				if v := m.GetCounter().GetValue(); v != 0 {
					t.Errorf("%s %v is %v", name, m.GetLabel(), v)
				}
			}
		}
	}
	if n, err := testutil.GatherAndCount(w.reg, "infera_router_outcomes_total"); n == 0 || err != nil {
		t.Errorf("%d series of outcomes, %v", n, err)
	}
}

// Where no pair is left but due ones, requests are served by them.
func TestAFleetOfDuePairsOnlyServes(t *testing.T) {
	w := newCanaryWorld(t)
	w.p.Refresh(w.now)
	w.feed.Delete("d1")
	w.feed.Delete("d2")
	w.p.Refresh(w.now)
	w.feed.Put(leg("d3", "x"))
	if got := w.due(); got != "p1d3 p2d3" {
		t.Fatalf("due: %q", got)
	}
	d := w.pick(w.request("x:16"))
	if d.Worker.ID != "d3" || w.due() != "p1d3 p2d3" {
		t.Errorf("picked %s, then due: %q", d.Worker.ID, w.due())
	}
	d.PrefillDone(w.now, breaker.Success)
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	if got := w.due(); strings.Contains(got, d.Prefill.ID) || got == "" {
		t.Errorf("after %s has served with d3, due: %q", d.Prefill.ID, got)
	}
}

func TestCanariesGoToWorkersThatCanBeAsked(t *testing.T) {
	w := newCanaryWorld(t)
	w.p.Refresh(w.now)
	w.feed.Put(leg("d3", "x"))
	w.ends("p1", 3, breaker.Origin) // its circuit is open
	if got := w.canary(breaker.Success); got != "p2d3" {
		t.Errorf("canary of %q, want p2d3", got)
	}
	if got := w.canary(breaker.Success); got != "" {
		t.Errorf("canary of %q, want none", got)
	}
	w.now = w.now.Add(5 * time.Second) // it takes a probe now: the canary is one
	if got := w.canary(breaker.Success); got != "p1d3" || w.set.Circuit("p1").State(w.now) != breaker.Closed {
		t.Errorf("canary of %q, p1 %v", got, w.set.Circuit("p1").State(w.now))
	}
}
