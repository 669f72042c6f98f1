package picker_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// drive lets w serve a stream of conversations and returns where they went.
func drive(w *world) (went []string) {
	w.Helper()
	var open []picker.Decision
	for i := range 120 {
		w.now = w.now.Add(7 * time.Millisecond)
		d := w.pick(w.request(fmt.Sprintf("sys:320+c%d:%d", i%11, 160+16*(i/11))))
		went = append(went, d.Worker.ID)
		if open = append(open, d); len(open) > 12 {
			open[0].FirstToken(w.now)
			open[0].Done(w.now, breaker.Success)
			open = open[1:]
		}
	}
	return went
}

// With a shadow, every policy does what it does without.
func TestAShadowChangesNothing(t *testing.T) {
	ids := []string{"A", "B", "C", "D"}
	for _, policy := range picker.Policies() {
		alone := drive(newWorld(t, config(policy, 20), workers(ids...)...))
		for _, shadow := range []string{picker.KVAware, picker.LeastLatency, picker.Random, picker.SGLang} {
			cfg := config(policy, 20)
			cfg.Shadow = shadow
			w := newWorld(t, cfg, workers(ids...)...)
			for i, id := range drive(w) {
				if id != alone[i] {
					t.Errorf("%s: pick %d went to %s, with the shadow %s to %s", policy, i, alone[i], shadow, id)
					break
				}
			}
		}
	}
}

func TestTheShadowIsCountedAndExplained(t *testing.T) {
	cfg := config(picker.RoundRobin, 1)
	cfg.Shadow = picker.LeastLatency
	w := newWorld(t, cfg, workers("A", "B")...)
	w.hold("A", "sys:1600", 16)
	w.now = w.now.Add(time.Second)
	for i := range 10 { // in turn, while the shadow wants A each time
		w.served(w.request(fmt.Sprintf("sys:1600+own%d:16", i)))
	}
	labels := map[string]string{"policy": picker.LeastLatency}
	same, other := 0.0, 0.0
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	observed := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			of := map[string]string{}
			for _, l := range m.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			if of["policy"] != labels["policy"] {
				continue
			}
			switch {
			case of["result"] == "same":
				same = m.GetCounter().GetValue()
			case of["result"] == "other":
				other = m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				observed[f.GetName()] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	if same+other != 10 || other < 1 {
		t.Errorf("%g picks were the shadow's too and %g were not, of 10", same, other)
	}
	for _, name := range []string{"pointsman_shadow_difference_seconds", "pointsman_shadow_difference_hit_tokens"} {
		if observed[name] != 10 {
			t.Errorf("%s has %d observations, want 10", name, observed[name])
		}
	}
	for _, r := range w.p.Records() {
		switch {
		case r.Shadow == nil || r.Shadow.Policy != picker.LeastLatency || r.Shadow.Chosen == "":
			t.Errorf("no shadow in %v", r)
		case r.Shadow.Chosen == r.Chosen && (r.Shadow.MS != 0 || r.Shadow.HitTokens != 0):
			t.Errorf("the same choice differs from itself: %+v", r.Shadow)
		case math.IsNaN(r.Shadow.MS):
			t.Errorf("%+v", r.Shadow)
		}
	}
}

// What no policy chose has no shadow.
func TestABoundConversationHasNoShadow(t *testing.T) {
	cfg := config(picker.KVAware, 1)
	cfg.Shadow, cfg.SessionAffinity = picker.Random, picker.SessionsAll
	w := newWorld(t, cfg, workers("A", "B")...)
	for i := range 3 {
		req := w.request("sys:160")
		req.Session = "s"
		w.served(req)
		if sh := w.p.Records()[0].Shadow; (sh.Chosen == "") != (i > 0) {
			t.Errorf("request %d of a conversation: %+v", i, sh)
		}
	}
	d, err := w.p.Direct(w.now, "A", "", w.request("sys:160"))
	if err != nil {
		t.Fatal(err)
	}
	if sh := w.p.Records()[0].Shadow; sh != nil {
		t.Errorf("a worker that was named has a shadow: %+v", sh)
	}
	d.Done(w.now, breaker.Success)
}
