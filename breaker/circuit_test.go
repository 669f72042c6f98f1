package breaker_test

import (
	"fmt"
	"testing"
	"time"

	"pointsman/breaker"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func plain() breaker.Config {
	c := breaker.DefaultConfig()
	c.Jitter = 0
	return c
}

// sec is a time in seconds after t0.
func sec(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// trip lets c's threshold of requests fail at the given time.
func trip(t *testing.T, c *breaker.Circuit, at time.Time, threshold int) {
	t.Helper()
	for i := range threshold {
		p, ok := c.Acquire(at)
		if !ok {
			t.Fatalf("request %d of %d was not let through", i+1, threshold)
		}
		p.Done(at, breaker.Connect)
	}
	if got := c.State(at); got != breaker.Open {
		t.Fatalf("after %d faults: %v, want open", threshold, got)
	}
}

func TestCircuit(t *testing.T) {
	type step struct {
		at     float64
		admit  bool
		record breaker.Outcome
		want   breaker.State
	}
	const (
		closed, half, open      = breaker.Closed, breaker.HalfOpen, breaker.Open
		neutral, success, fault = breaker.Neutral, breaker.Success, breaker.Connect
	)
	tests := []struct {
		name  string
		steps []step
	}{
		{"three consecutive faults drop the worker for the cooldown", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, fault, open},
			{0, false, 0, open},
			{4.999, false, 0, open},
		}},
		{"a success in between starts the count anew", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, success, closed},
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, fault, open},
		}},
		{"4xx and 429 neither count nor reset", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, neutral, closed},
			{0, true, neutral, closed},
			{0, true, neutral, closed},
			{0, true, fault, open},
		}},
		{"neutral answers alone never trip", []step{
			{0, true, neutral, closed},
			{0, true, neutral, closed},
			{0, true, neutral, closed},
			{0, true, neutral, closed},
		}},
		{"a successful probe restores the worker", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, fault, open},
			{5, true, success, closed},
			{5, true, success, closed},
		}},
		{"a failed probe doubles the cooldown, up to the cap, and success resets it", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, fault, open},
			{5, true, fault, open}, // 10 s
			{14.9, false, 0, open},
			{15, true, fault, open}, // 20 s
			{34.9, false, 0, open},
			{35, true, fault, open}, // 40 s
			{74.9, false, 0, open},
			{75, true, fault, open}, // 60 s, not 80
			{134.9, false, 0, open},
			{135, true, fault, open}, // still 60 s
			{194.9, false, 0, open},
			{195, true, success, closed},
			{195, true, fault, closed},
			{195, true, fault, closed},
			{195, true, fault, open}, // 5 s again
			{199.9, false, 0, open},
			{200, true, success, closed},
		}},
		{"a probe that gets a 4xx proves nothing: the next request probes at once", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, fault, open},
			{5, true, neutral, half},
			{5, true, neutral, half},
			{5, true, success, closed},
		}},
		{"one fault is enough for a worker that just failed to recover, three for one that did", []step{
			{0, true, fault, closed},
			{0, true, fault, closed},
			{0, true, fault, open},
			{5, true, success, closed},
			{6, true, fault, closed},
			{6, true, fault, closed},
			{6, true, fault, open},
			{11, true, fault, open},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := breaker.NewSet(plain()).Circuit("w")
			for i, s := range tt.steps {
				now := sec(s.at)
				if got := c.Allows(now); got != s.admit {
					t.Fatalf("step %d: Allows = %v, want %v", i, got, s.admit)
				}
				permit, ok := c.Acquire(now)
				if ok != s.admit {
					t.Fatalf("step %d: Acquire = %v, want %v", i, ok, s.admit)
				}
				permit.Done(now, s.record)
				if got := c.State(now); got != s.want {
					t.Fatalf("step %d: %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

// Infera defect P17: asking claims nothing, so a candidate that is not
// dispatched to stays available.
func TestAllowsClaimsNothing(t *testing.T) {
	c := breaker.NewSet(plain()).Circuit("w")
	trip(t, c, sec(0), 3)
	for range 10 {
		if !c.Allows(sec(5)) {
			t.Fatal("asking used up the probe")
		}
	}
	if got := c.State(sec(5)); got != breaker.HalfOpen {
		t.Errorf("after the cooldown: %v, want half-open", got)
	}
	p, ok := c.Acquire(sec(5))
	if !ok || !p.Probe() {
		t.Fatalf("Acquire = probe %v, %v; want a probe", p.Probe(), ok)
	}
	if c.Allows(sec(5)) {
		t.Error("a second probe at the same time is allowed")
	}
	if _, ok := c.Acquire(sec(5)); ok {
		t.Error("a second probe at the same time was let through")
	}
}

// Infera defect P18: what was sent before the trip says nothing afterwards.
func TestLateResultsAreIgnored(t *testing.T) {
	for _, late := range []breaker.Outcome{breaker.Success, breaker.Connect, breaker.Neutral} {
		t.Run(late.String()+" while open", func(t *testing.T) {
			c := breaker.NewSet(plain()).Circuit("w")
			early, _ := c.Acquire(sec(0))
			trip(t, c, sec(0), 3)
			early.Done(sec(4), late)
			if got := c.State(sec(4)); got != breaker.Open {
				t.Errorf("state %v, want open", got)
			}
			if c.Allows(sec(4.9)) || !c.Allows(sec(5)) {
				t.Error("the end of the cooldown has moved")
			}
		})
		t.Run(late.String()+" during the probe", func(t *testing.T) {
			c := breaker.NewSet(plain()).Circuit("w")
			early, _ := c.Acquire(sec(0))
			trip(t, c, sec(0), 3)
			probe, _ := c.Acquire(sec(5))
			early.Done(sec(6), late)
			if c.Allows(sec(6)) {
				t.Error("the probe's slot was given away")
			}
			probe.Done(sec(7), breaker.Success)
			if got := c.State(sec(7)); got != breaker.Closed {
				t.Errorf("after the probe: %v, want closed", got)
			}
		})
		t.Run(late.String()+" after the recovery", func(t *testing.T) {
			c := breaker.NewSet(plain()).Circuit("w")
			var early [3]breaker.Permit
			for i := range early {
				early[i], _ = c.Acquire(sec(0))
			}
			trip(t, c, sec(0), 3)
			probe, _ := c.Acquire(sec(5))
			probe.Done(sec(5), breaker.Success)
			for _, p := range early {
				p.Done(sec(6), late)
			}
			if got := c.State(sec(6)); got != breaker.Closed {
				t.Errorf("state %v, want closed", got)
			}
		})
	}
}

func TestBreakerProbeTimeoutLetsAnotherProbeBegin(t *testing.T) {
	setup := func(t *testing.T) (c *breaker.Circuit, first, second breaker.Permit) {
		t.Helper()
		c = breaker.NewSet(plain()).Circuit("w")
		trip(t, c, sec(0), 3)
		first, _ = c.Acquire(sec(5))
		if c.Allows(sec(64.9)) {
			t.Fatal("a second probe is allowed before the timeout")
		}
		second, ok := c.Acquire(sec(65))
		if !ok {
			t.Fatal("a probe that was never answered keeps its slot")
		}
		if c.Allows(sec(65)) {
			t.Fatal("a third probe is allowed at once")
		}
		return c, first, second
	}
	t.Run("the late fault of the first does not free the second's slot", func(t *testing.T) {
		c, first, second := setup(t)
		first.Done(sec(66), breaker.Connect)
		if c.Allows(sec(66)) || c.State(sec(66)) != breaker.HalfOpen {
			t.Errorf("allows %v, state %v", c.Allows(sec(66)), c.State(sec(66)))
		}
		second.Done(sec(67), breaker.Connect)
		if c.Allows(sec(76.9)) || !c.Allows(sec(77)) {
			t.Error("the second's fault should open it for 10 s")
		}
	})
	t.Run("the late success of the first restores the worker", func(t *testing.T) {
		c, first, second := setup(t)
		first.Done(sec(66), breaker.Success)
		if got := c.State(sec(66)); got != breaker.Closed {
			t.Errorf("state %v, want closed", got)
		}
		second.Done(sec(67), breaker.Connect) // of an epoch that is over
		if got := c.State(sec(67)); got != breaker.Closed {
			t.Errorf("state %v, want closed", got)
		}
	})
	t.Run("a probe done twice counts once", func(t *testing.T) {
		c, _, second := setup(t)
		second.Done(sec(66), breaker.Neutral)
		third, ok := c.Acquire(sec(66))
		if !ok {
			t.Fatal("a neutral probe did not give its slot back")
		}
		second.Done(sec(66), breaker.Neutral)
		if c.Allows(sec(66)) {
			t.Error("the second's repeated end gave the third's slot away")
		}
		third.Done(sec(67), breaker.Success)
	})
}

func TestForce(t *testing.T) {
	t.Run("a success while open restores the worker", func(t *testing.T) {
		c := breaker.NewSet(plain()).Circuit("w")
		trip(t, c, sec(0), 3)
		c.Force(sec(1)).Done(sec(2), breaker.Success)
		if got := c.State(sec(2)); got != breaker.Closed {
			t.Errorf("state %v, want closed", got)
		}
	})
	t.Run("a fault while open does not push the cooldown", func(t *testing.T) {
		c := breaker.NewSet(plain()).Circuit("w")
		trip(t, c, sec(0), 3)
		for range 10 {
			c.Force(sec(4)).Done(sec(4), breaker.Connect)
		}
		if c.Allows(sec(4.9)) || !c.Allows(sec(5)) {
			t.Error("the end of the cooldown has moved")
		}
	})
	t.Run("it is the probe when one is due", func(t *testing.T) {
		c := breaker.NewSet(plain()).Circuit("w")
		trip(t, c, sec(0), 3)
		p := c.Force(sec(5))
		if !p.Probe() || c.Allows(sec(5)) {
			t.Errorf("probe %v, allows %v; want a probe, and no other", p.Probe(), c.Allows(sec(5)))
		}
		p.Done(sec(5), breaker.Connect)
		if c.Allows(sec(14.9)) || !c.Allows(sec(15)) {
			t.Error("its fault should double the cooldown")
		}
	})
	t.Run("on a closed circuit it counts like any other", func(t *testing.T) {
		c := breaker.NewSet(plain()).Circuit("w")
		for range 3 {
			c.Force(sec(0)).Done(sec(0), breaker.Connect)
		}
		if got := c.State(sec(0)); got != breaker.Open {
			t.Errorf("state %v, want open", got)
		}
	})
}

func TestThresholdZeroDisables(t *testing.T) {
	c := breaker.NewSet(breaker.Config{}).Circuit("w")
	for range 100 {
		p, ok := c.Acquire(sec(0))
		if !ok || !c.Allows(sec(0)) {
			t.Fatal("a disabled breaker refused a request")
		}
		p.Done(sec(0), breaker.Connect)
	}
	if got := c.State(sec(0)); got != breaker.Closed {
		t.Errorf("state %v, want closed", got)
	}
}

func TestZeroPermit(*testing.T) {
	var p breaker.Permit
	p.Answered()
	p.FirstToken(sec(0))
	p.Done(sec(0), breaker.Connect) // must not panic
}

// P25: routers of one fleet must not probe at the same instant.
func TestJitter(t *testing.T) {
	end := func(seed uint64, id string) float64 {
		cfg := breaker.DefaultConfig()
		cfg.Seed = seed
		c := breaker.NewSet(cfg).Circuit(id)
		trip(t, c, sec(0), 3)
		for ms := 4500; ms <= 5500; ms++ {
			if c.Allows(sec(float64(ms) / 1000)) {
				return float64(ms) / 1000
			}
		}
		t.Fatalf("seed %d, worker %s: no probe between 4.5 and 5.5 s", seed, id)
		return 0
	}
	if a, b := end(1, "w"), end(1, "w"); a != b {
		t.Errorf("the same seed gave %v and %v", a, b)
	}
	seen := map[float64]bool{}
	for seed := range uint64(50) {
		seen[end(seed, "w")] = true
	}
	if len(seen) < 40 {
		t.Errorf("50 seeds gave %d different cooldowns", len(seen))
	}
	seen = map[float64]bool{}
	for i := range 50 {
		seen[end(1, fmt.Sprint(i))] = true
	}
	if len(seen) < 40 {
		t.Errorf("50 workers of one router gave %d different cooldowns", len(seen))
	}
}

func TestOutcomeOf(t *testing.T) {
	for status, want := range map[int]breaker.Outcome{
		-1: breaker.Connect, 0: breaker.Connect,
		100: breaker.Success, 200: breaker.Success, 204: breaker.Success, 302: breaker.Success,
		400: breaker.Neutral, 404: breaker.Neutral, 413: breaker.Neutral, 429: breaker.Busy, 499: breaker.Neutral,
		500: breaker.Origin, 502: breaker.Origin, 503: breaker.Origin, 504: breaker.Origin, 599: breaker.Origin,
	} {
		if got := breaker.OutcomeOf(status); got != want {
			t.Errorf("OutcomeOf(%d) = %v, want %v", status, got, want)
		}
	}
}

func ExampleCircuit() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	set := breaker.NewSet(breaker.Config{
		Enable: true, OriginThreshold: 3, Cooldown: 5 * time.Second, MaxCooldown: time.Minute, ProbeTimeout: time.Minute,
	})
	c := set.Circuit("10.0.0.7:8000")
	for range 3 {
		permit, _ := c.Acquire(now)
		permit.Done(now, breaker.OutcomeOf(503))
	}
	fmt.Println(c.State(now), c.Allows(now))
	now = now.Add(5 * time.Second)
	fmt.Println(c.State(now), c.Allows(now))
	// Output:
	// open false
	// half-open true
}

func BenchmarkClosed(b *testing.B) {
	c := breaker.NewSet(breaker.DefaultConfig()).Circuit("w")
	b.ReportAllocs()
	for b.Loop() {
		if c.Allows(t0) {
			p, _ := c.Acquire(t0)
			p.Done(t0, breaker.Success)
		}
	}
}
