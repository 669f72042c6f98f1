package breaker_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
)

func TestConfigValidate(t *testing.T) {
	if err := breaker.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	if err := (breaker.Config{}).Validate(); err != nil {
		t.Errorf("the zero value, a disabled breaker: %v", err)
	}
	bad := breaker.Config{Enable: true, Threshold: 101, OriginThreshold: -1, PairThreshold: 1, BusyTTL: -1, Cooldown: -1, MaxCooldown: -2, ProbeTimeout: 0, Jitter: 2}
	err := bad.Validate()
	if err == nil {
		t.Fatal("a wholly bad one is accepted")
	}
	for _, want := range []string{
		"failure threshold 101", "origin error threshold -1", "busy time -1ns", "breaker cooldown -1ns", "breaker maximum cooldown",
		"probe timeout", "jitter 2", "pair breaker cooldown 0s",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported: %v", want, err)
		}
	}
	if err := (breaker.Config{Threshold: -1}).Validate(); err == nil {
		t.Error("a negative threshold is accepted")
	}
}

func TestRetainForgets(t *testing.T) {
	s := breaker.NewSet(plain())
	gone, stays := s.Circuit("gone"), s.Circuit("stays")
	trip(t, gone, sec(0), 3)
	trip(t, stays, sec(0), 3)
	held := stays.Force(sec(1))
	late := gone.Force(sec(1))
	s.Retain(func(id string) bool { return id == "stays" })
	if s.Circuit("stays") != stays {
		t.Error("a retained worker has another circuit")
	}
	if got := s.Circuit("gone").State(sec(1)); got != breaker.Closed {
		t.Errorf("a worker that comes back: %v, want closed", got)
	}
	late.Done(sec(2), breaker.Connect) // of the dropped circuit: harmless
	held.Done(sec(2), breaker.Success)
	if got := stays.State(sec(2)); got != breaker.Closed {
		t.Errorf("the retained one after its success: %v, want closed", got)
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := breaker.NewSet(plain())
		reg := prometheus.NewPedanticRegistry()
		if err := s.Register(reg); err != nil {
			t.Fatal(err)
		}
		expect := func(when, want string) {
			t.Helper()
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
				"infera_router_worker_breaker_state", "infera_router_worker_breaker_trips_total"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		head := `# HELP infera_router_worker_breaker_state State of the worker's circuit: 0 closed, 1 half-open, 2 open.
# TYPE infera_router_worker_breaker_state gauge
`
		mid := `# HELP infera_router_worker_breaker_trips_total How often the worker's circuit opened, failed probes included.
# TYPE infera_router_worker_breaker_trips_total counter
`
		series := func(stateA, tripsA string) string {
			return head + `infera_router_worker_breaker_state{worker_id="a"} ` + stateA + "\n" +
				`infera_router_worker_breaker_state{worker_id="b"} 0` + "\n" + mid +
				`infera_router_worker_breaker_trips_total{worker_id="a"} ` + tripsA + "\n" +
				`infera_router_worker_breaker_trips_total{worker_id="b"} 0` + "\n"
		}
		a := s.Circuit("a")
		s.Circuit("b")
		s.Circuit("\xff") // what is not UTF-8 must not break the scrape
		expect("at first", series("0", "0"))
		trip(t, a, time.Now(), 3)
		expect("after a trip", series("2", "1"))
		time.Sleep(5 * time.Second)
		expect("after the cooldown", series("1", "1"))
		p, _ := a.Acquire(time.Now())
		expect("during the probe", series("1", "1"))
		p.Done(time.Now(), breaker.Connect)
		expect("after a failed probe", series("2", "2"))
		s.Retain(func(id string) bool { return id == "b" })
		expect("after the removal", head+`infera_router_worker_breaker_state{worker_id="b"} 0`+"\n"+mid+
			`infera_router_worker_breaker_trips_total{worker_id="b"} 0`+"\n")
		problems, err := testutil.GatherAndLint(reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", problems, err)
		}
	})
}

func TestLogsTripAndRecoveryOnly(t *testing.T) {
	var buf bytes.Buffer
	s := breaker.NewSet(plain())
	s.SetLogger(slog.New(slog.NewTextHandler(&buf, nil)))
	c := s.Circuit("w1")
	trip(t, c, sec(0), 3)
	if got := strings.Count(buf.String(), "\n"); got != 1 {
		t.Errorf("three faults logged %d lines, want 1:\n%s", got, &buf)
	}
	for _, want := range []string{"level=INFO", "worker_id=w1", "cooldown=5s", "trips=1"} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("no %q in %s", want, &buf)
		}
	}
	c.Force(sec(1)).Done(sec(1), breaker.Connect)
	p, _ := c.Acquire(sec(5))
	p.Done(sec(5), breaker.Success)
	for range 10 {
		p, _ := c.Acquire(sec(6))
		p.Done(sec(6), breaker.Success)
	}
	if got := strings.Count(buf.String(), "\n"); got != 2 {
		t.Errorf("%d lines in all, want 2: one for the trip, one for the recovery\n%s", got, &buf)
	}
}

// TestOneProbeAtATime hammers one circuit: whatever happens, no two unanswered
// probes are out, and a circuit that only sees successes ends closed.
func TestOneProbeAtATime(t *testing.T) {
	s := breaker.NewSet(plain())
	var wg sync.WaitGroup
	var out, most, clock atomic.Int64
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 5000 {
				now := t0.Add(time.Duration(clock.Add(1)) * 3 * time.Millisecond)
				c := s.Circuit("w")
				p, ok := c.Acquire(now)
				if !ok {
					continue
				}
				if p.Probe() {
					most.Store(max(most.Load(), out.Add(1)))
					out.Add(-1) // before the slot is given back
				}
				p.Done(now, []breaker.Outcome{breaker.Success, breaker.Connect, breaker.Connect, breaker.Neutral}[rng.IntN(4)])
				c.Allows(now)
				c.State(now)
			}
		})
	}
	wg.Go(func() {
		for range 100 {
			s.Retain(func(string) bool { return true })
		}
	})
	wg.Wait()
	if most.Load() > 1 {
		t.Errorf("%d probes at the same time", most.Load())
	}
	end := t0.Add(time.Hour)
	c := s.Circuit("w")
	p, ok := c.Acquire(end)
	if !ok {
		t.Fatal("an hour later nothing is let through: a probe slot leaked")
	}
	p.Done(end, breaker.Success)
	if got := c.State(end); got != breaker.Closed {
		t.Errorf("state %v, want closed", got)
	}
}
