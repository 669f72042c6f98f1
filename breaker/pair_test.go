package breaker_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
)

// handoff lets one request of the pair end, and charges the workers as the picker
// does. It reports whether the pair let it through.
func handoff(s *breaker.Set, now time.Time, prefill, decode string, o breaker.Outcome) bool {
	p, ok := s.AcquirePair(now, prefill, decode)
	if !ok {
		return false
	}
	w := [2]breaker.Permit{s.Circuit(prefill).Force(now), s.Circuit(decode).Force(now)}
	if o == breaker.Success {
		p.FirstToken(now)
		w[0].FirstToken(now)
		w[1].FirstToken(now)
	}
	var charged [2]bool
	charged[0], charged[1] = p.Done(now, o)
	for i := range w {
		switch {
		case o == breaker.Success, charged[i]:
			w[i].Done(now, o)
		default:
			w[i].Done(now, breaker.Neutral)
		}
	}
	return true
}

// P1·D1 fails, the other three are fine: after two faults it gets nothing, and both
// workers' circuits stay closed (failover §2A, pair memory).
func TestPairBreakerThresholdIsolatesTheHealthyPairs(t *testing.T) {
	s := breaker.NewSet(plain())
	got := map[string]int{}
	for i := range 40 {
		now := sec(float64(i) / 10)
		for _, pair := range [][2]string{{"P1", "D1"}, {"P1", "D2"}, {"P2", "D1"}, {"P2", "D2"}} {
			o := breaker.Success
			if pair == [2]string{"P1", "D1"} {
				o = breaker.Transfer
			}
			if handoff(s, now, pair[0], pair[1], o) {
				got[pair[0]+pair[1]]++
			}
		}
	}
	if got["P1D1"] != 2 || got["P1D2"] != 40 || got["P2D1"] != 40 || got["P2D2"] != 40 {
		t.Errorf("requests: %v", got)
	}
	for _, id := range []string{"P1", "P2", "D1", "D2"} {
		if state := s.Circuit(id).State(sec(4)); state != breaker.Closed {
			t.Errorf("%s is %v", id, state)
		}
	}
	if pairs := s.OpenPairs(sec(4), nil); len(pairs) != 1 || pairs[0] != (breaker.Pair{Prefill: "P1", Decode: "D1"}) {
		t.Errorf("open pairs: %v", pairs)
	}
}

func TestPairBreakerCooldownDoublesToPairBreakerMaxCooldown(t *testing.T) {
	s := breaker.NewSet(plain())
	handoff(s, sec(0), "P", "D", breaker.Transfer)
	handoff(s, sec(0), "P", "D", breaker.Transfer)
	now := 0.0
	for _, window := range []float64{10, 20, 40, 80, 120, 120} {
		if handoff(s, sec(now+window-0.1), "P", "D", breaker.Transfer) {
			t.Fatalf("after %v s of %v: let through", window-0.1, window)
		}
		now += window
		if !handoff(s, sec(now), "P", "D", breaker.Transfer) {
			t.Fatalf("after %v s: no probe", window)
		}
	}
	now += 120
	p, ok := s.AcquirePair(sec(now), "P", "D")
	if _, second := s.AcquirePair(sec(now), "P", "D"); !ok || second {
		t.Errorf("probe %v, second one %v", ok, second)
	}
	p.FirstToken(sec(now))
	if s.Troubled() || !s.Trusts("P", "D", sec(now)) || s.Trusts("P", "D", sec(now-1)) {
		t.Error("the first token has not closed it, or it says it was never open")
	}
}

// Two or more partners against one worker within the window: it is charged instead.
func TestDistinctPeersChargeTheWorker(t *testing.T) {
	t.Run("a prefill worker that no decode worker can fetch from", func(t *testing.T) {
		s := breaker.NewSet(plain())
		for i := range 8 {
			handoff(s, sec(float64(i)), "P1", []string{"D1", "D2"}[i%2], breaker.Transfer)
			handoff(s, sec(float64(i)), "P2", []string{"D1", "D2"}[i%2], breaker.Success)
		}
		if got := s.Circuit("P1").State(sec(8)); got != breaker.Open && got != breaker.HalfOpen {
			t.Errorf("P1 is %v, want open", got)
		}
		for _, id := range []string{"P2", "D1", "D2"} {
			if got := s.Circuit(id).State(sec(8)); got != breaker.Closed {
				t.Errorf("%s is %v", id, got)
			}
		}
		if pairs := s.OpenPairs(sec(8), nil); len(pairs) != 0 {
			t.Errorf("its pairs are charged too: %v", pairs)
		}
	})
	t.Run("too far apart they are two pairs' troubles", func(t *testing.T) {
		s := breaker.NewSet(plain())
		for i := range 8 {
			handoff(s, sec(61*float64(i)), "P1", []string{"D1", "D2"}[i%2], breaker.Transfer)
		}
		if got := s.Circuit("P1").State(sec(500)); got != breaker.Closed {
			t.Errorf("P1 is %v", got)
		}
		if pairs := s.OpenPairs(sec(61*7), nil); len(pairs) == 0 {
			t.Error("no pair is open")
		}
	})
	t.Run("a partner that it serves well speaks for it", func(t *testing.T) {
		s := breaker.NewSet(plain())
		for i := range 20 {
			handoff(s, sec(float64(i)), []string{"P1", "P2"}[i%2], "D1", breaker.Transfer)
			handoff(s, sec(float64(i)), "P3", "D1", breaker.Success)
		}
		if got := s.Circuit("D1").State(sec(20)); got != breaker.Closed {
			t.Errorf("D1 is %v", got)
		}
	})
}

func TestPairsAreForgottenWithTheirWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := breaker.NewSet(plain())
		reg := prometheus.NewPedanticRegistry()
		if err := s.Register(reg); err != nil {
			t.Fatal(err)
		}
		handoff(s, time.Now(), "P", "D", breaker.Transfer)
		if n, _ := testutil.GatherAndCount(reg, "infera_router_pair_breaker_state"); n != 0 {
			t.Error("a closed pair has a series")
		}
		late, _ := s.AcquirePair(time.Now(), "P", "D")
		handoff(s, time.Now(), "P", "D", breaker.Transfer)
		want := `
# HELP infera_router_pair_breaker_state State of the pair's circuit, unless it is closed: 1 half-open, 2 open.
# TYPE infera_router_pair_breaker_state gauge
infera_router_pair_breaker_state{decode="D",prefill="P"} 2
# HELP infera_router_pair_trips_total How often a pair's circuit opened, failed probes included.
# TYPE infera_router_pair_trips_total counter
infera_router_pair_trips_total 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "infera_router_pair_breaker_state", "infera_router_pair_trips_total"); err != nil {
			t.Error(err)
		}
		s.Retain(func(id string) bool { return id != "D" })
		if n, _ := testutil.GatherAndCount(reg, "infera_router_pair_breaker_state"); n != 0 || s.Troubled() {
			t.Errorf("%d series after the departure; troubled %v", n, s.Troubled())
		}
		late.Done(time.Now(), breaker.Success) // harmless
		if s.Troubled() {
			t.Error("troubled by a pair that is gone")
		}
	})
}

func TestPairThresholdZeroIsOff(t *testing.T) {
	cfg := plain()
	cfg.PairThreshold = 0
	s := breaker.NewSet(cfg)
	for range 10 {
		if !handoff(s, sec(0), "P", "D", breaker.Transfer) {
			t.Fatal("left out")
		}
	}
}

// TestPairsUnderRandomSchedules: whatever happens, the count of troubled pairs is
// that of the pairs which are not closed, and an hour later every pair is let
// through.
func TestPairsUnderRandomSchedules(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 6))
		s := breaker.NewSet(plain())
		now := t0
		workers := []string{"P1", "P2", "P3", "D1", "D2", "D3"}
		for range 400 {
			now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			prefill, decode := workers[rng.IntN(3)], workers[3+rng.IntN(3)]
			handoff(s, now, prefill, decode, breaker.Outcome(rng.IntN(7)))
			if rng.IntN(40) == 0 {
				gone := workers[rng.IntN(6)]
				s.Retain(func(id string) bool { return id != gone })
			}
			open := 0
			for _, p := range workers[:3] {
				for _, d := range workers[3:] {
					if !s.Pair(p, d).Closed() {
						open++
					}
				}
			}
			if (open > 0) != s.Troubled() {
				t.Fatalf("seed %d: %d pairs not closed, troubled %v", seed, open, s.Troubled())
			}
		}
		if left := s.OpenPairs(now.Add(time.Hour), nil); len(left) != 0 {
			t.Fatalf("seed %d: %v are left out an hour later", seed, left)
		}
	}
}

func TestPairsConcurrently(t *testing.T) {
	s := breaker.NewSet(plain())
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(g)))
			for i := range 2000 {
				now := t0.Add(time.Duration(i) * 50 * time.Millisecond)
				handoff(s, now, []string{"P1", "P2"}[rng.IntN(2)], []string{"D1", "D2"}[rng.IntN(2)], breaker.Outcome(rng.IntN(7)))
				s.OpenPairs(now, nil)
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			s.Retain(func(string) bool { return true })
		}
	})
	wg.Wait()
	if left := s.OpenPairs(t0.Add(time.Hour), nil); len(left) != 0 {
		t.Errorf("%v are left out an hour later", left)
	}
}
