package breaker_test

import (
	"slices"
	"testing"
	"time"

	"pointsman/breaker"
)

func canaries() breaker.Config {
	cfg := plain()
	cfg.PairCanary = breaker.CanaryOnRecovery
	return cfg
}

// canary lets one canary of the pair end, and reports whether it got the probe.
func canary(s *breaker.Set, now time.Time, prefill, decode string, o breaker.Outcome) bool {
	p, ok := s.AcquireCanary(now, prefill, decode)
	if !ok {
		return false
	}
	if o == breaker.Success {
		p.FirstToken(now)
	}
	p.Done(now, o)
	return true
}

// Whatever a canary comes to but a first token opens the pair again, for longer
// each time; nothing but a canary gets its probe (failover §2A, pair readiness
// canary).
func TestOnlyACanaryProbesAPair(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start func(s *breaker.Set)
		first float64 // when a canary may go
	}{
		{"a pair one of whose workers has come back", func(s *breaker.Set) { s.Due("P", "D") }, 0},
		{"a pair that has failed twice", func(s *breaker.Set) {
			handoff(s, sec(0), "P", "D", breaker.Transfer)
			handoff(s, sec(0), "P", "D", breaker.Transfer)
		}, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := breaker.NewSet(canaries())
			tt.start(s)
			now := tt.first
			if now > 0 && canary(s, sec(now-0.1), "P", "D", breaker.Success) {
				t.Fatal("a canary before the cooldown was over")
			}
			for i, o := range []breaker.Outcome{breaker.Transfer, breaker.Neutral, breaker.Connect, breaker.Busy} {
				if handoff(s, sec(now), "P", "D", breaker.Success) {
					t.Fatalf("at %v s a request got the probe", now)
				}
				if got := s.OpenPairs(sec(now), nil); len(got) != 1 {
					t.Fatalf("at %v s the pair is not left out: %v", now, got)
				}
				if got := s.DuePairs(sec(now), nil); !slices.Equal(got, []breaker.Pair{{Prefill: "P", Decode: "D"}}) {
					t.Fatalf("at %v s due: %v", now, got)
				}
				if got := s.Pair("P", "D").State(sec(now)); got != breaker.HalfOpen {
					t.Fatalf("at %v s: %v", now, got)
				}
				if !canary(s, sec(now), "P", "D", o) {
					t.Fatalf("at %v s no canary", now)
				}
				wait := []float64{20, 40, 80, 120}[i]
				if got := s.DuePairs(sec(now+wait-0.1), nil); len(got) != 0 {
					t.Fatalf("%v s after a canary that was %v: due %v", wait-0.1, o, got)
				}
				now += wait
			}
			if !canary(s, sec(now), "P", "D", breaker.Success) || s.Troubled() {
				t.Fatal("a canary that went well did not close the pair")
			}
			if !handoff(s, sec(now), "P", "D", breaker.Success) {
				t.Fatal("a closed pair lets nothing through")
			}
		})
	}
}

func TestACanaryHasItsPairToItself(t *testing.T) {
	s := breaker.NewSet(canaries())
	s.Due("P", "D")
	if _, ok := s.AcquireCanary(sec(0), "P", "D"); !ok {
		t.Fatal("no canary")
	}
	if _, ok := s.AcquireCanary(sec(1), "P", "D"); ok || len(s.DuePairs(sec(1), nil)) > 0 {
		t.Error("a second canary while the first flies")
	}
	if _, ok := s.AcquireCanary(sec(60), "P", "D"); !ok {
		t.Error("no other canary after one that never came back")
	}
}

// A forced request, one of an all-open fleet, closes a due pair as any; what was
// under way when the pair became due says nothing.
func TestADuePairsOtherRequests(t *testing.T) {
	s := breaker.NewSet(canaries())
	s.Pair("P", "D")
	early, _ := s.AcquirePair(sec(0), "P", "D")
	s.Due("P", "D")
	early.FirstToken(sec(1))
	early.Done(sec(1), breaker.Success)
	if s.Pair("P", "D").Closed() {
		t.Error("a request from before has closed it")
	}
	forced := s.ForcePair(sec(1), "P", "D")
	if got := s.DuePairs(sec(1), nil); len(got) != 1 {
		t.Errorf("a forced request has taken the probe: %v", got)
	}
	forced.FirstToken(sec(2))
	if !s.Pair("P", "D").Closed() {
		t.Error("a forced request's first token has not closed it")
	}
}

// The pairs that nobody has tried come first, then those that failed longest ago.
func TestDuePairsComeInTurn(t *testing.T) {
	s := breaker.NewSet(canaries())
	for i, p := range []string{"P3", "P2"} {
		s.Due(p, "D")
		canary(s, sec(float64(i)), p, "D", breaker.Connect)
	}
	s.Due("P1", "D")
	want := []breaker.Pair{{Prefill: "P1", Decode: "D"}, {Prefill: "P3", Decode: "D"}, {Prefill: "P2", Decode: "D"}}
	if got := s.DuePairs(sec(100), nil); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestWithoutCanariesNothingIsDue(t *testing.T) {
	for name, edit := range map[string]func(*breaker.Config){
		"off":                 func(c *breaker.Config) { c.PairCanary = breaker.CanaryOff },
		"no breaker":          func(c *breaker.Config) { c.Enable = false },
		"no circuits of pair": func(c *breaker.Config) { c.PairThreshold = 0 },
	} {
		cfg := canaries()
		edit(&cfg)
		s := breaker.NewSet(cfg)
		s.Due("P", "D")
		if s.Troubled() || len(s.DuePairs(sec(0), nil)) > 0 || !handoff(s, sec(0), "P", "D", breaker.Success) {
			t.Errorf("%s: a pair is due", name)
		}
	}
	s := breaker.NewSet(canaries()) // switched off while a pair is due: a request may try it
	s.Due("P", "D")
	if err := s.SetConfig(plain()); err != nil {
		t.Fatal(err)
	}
	if !handoff(s, sec(0), "P", "D", breaker.Success) || s.Troubled() {
		t.Error("the pair is lost without its canary")
	}
	bad := canaries()
	bad.PairCanary = "always"
	if bad.Validate() == nil {
		t.Error("an unknown word is taken")
	}
}
