package breaker_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
)

// play lets requests end one after the other: a status, refused, cut (after its
// first token), ok (whole, with a first token) or gone (the client).
func play(t *testing.T, c *breaker.Circuit, script string) {
	t.Helper()
	for word := range strings.FieldsSeq(script) {
		p := c.Force(sec(0))
		switch word {
		case "refused":
			p.Done(sec(0), breaker.Connect)
		case "cut":
			p.FirstToken(sec(0))
			p.Done(sec(0), breaker.Stream)
		case "ok", "200":
			p.FirstToken(sec(0))
			p.Done(sec(0), breaker.Success)
		case "gone":
			p.FirstToken(sec(0))
			p.Done(sec(0), breaker.Neutral)
		case "silent": // no first token in time
			p.Done(sec(0), breaker.Origin)
		case "400", "404":
			p.Done(sec(0), breaker.OutcomeOf(400))
		case "429":
			p.Done(sec(0), breaker.OutcomeOf(429))
		case "500", "503":
			p.Done(sec(0), breaker.OutcomeOf(500))
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
}

// Each class of fault has its own streak and threshold (failover §2A:
// --breaker-failure-threshold, --origin-err-threshold, --stream-err-threshold).
func TestStreaks(t *testing.T) {
	off := func(o breaker.Outcome) func(*breaker.Config) {
		return func(c *breaker.Config) {
			switch o {
			case breaker.Connect:
				c.Threshold = 0
			case breaker.Origin:
				c.OriginThreshold = 0
			case breaker.Stream:
				c.StreamThreshold = 0
			}
		}
	}
	tests := []struct {
		name, script string
		tune         func(*breaker.Config)
		want         breaker.State
	}{
		{"--breaker-failure-threshold, three refusals trip", "refused refused refused", nil, breaker.Open},
		{"--breaker-failure-threshold, two do not", "refused refused", nil, breaker.Closed},
		{"--breaker-failure-threshold, an answer in between is a connection", "refused refused 500 refused refused", nil, breaker.Closed},
		{"--breaker-failure-threshold, a first token in between too", "refused refused gone refused refused", nil, breaker.Closed},
		{"--breaker-failure-threshold, 429 says nothing", "refused 429 refused 429 refused", nil, breaker.Open},
		{"--breaker-failure-threshold, off", "refused refused refused refused", off(breaker.Connect), breaker.Closed},
		{"--origin-err-threshold, a worker that accepts and answers 500 three times running", "500 500 500", nil, breaker.Open},
		{"--origin-err-threshold, 4xx neither advances nor resets", "500 400 500 400 500", nil, breaker.Open},
		{"--origin-err-threshold, a success resets", "500 500 200 500 500", nil, breaker.Closed},
		{"--origin-err-threshold, a first token alone resets", "500 500 gone 500 500", nil, breaker.Closed},
		{"--origin-err-threshold, no first token in time counts", "500 silent silent", nil, breaker.Open},
		{"--origin-err-threshold, a refused connection does not reset", "500 500 refused 500", nil, breaker.Open},
		{"--origin-err-threshold, off", "500 500 500 500", off(breaker.Origin), breaker.Closed},
		{"--origin-err-threshold, off leaves the others on", "500 refused 500 refused refused", off(breaker.Origin), breaker.Open},
		{"--stream-err-threshold, three cut answers trip", "cut cut cut", nil, breaker.Open},
		{"--stream-err-threshold, their first tokens do not reset", "cut gone cut gone cut", nil, breaker.Open},
		{"--stream-err-threshold, a whole answer does", "cut cut ok cut cut", nil, breaker.Closed},
		{"--stream-err-threshold, off", "cut cut cut cut", off(breaker.Stream), breaker.Closed},
		{"4xx for ever", strings.Repeat("400 ", 50), nil, breaker.Closed},
		{"100 clients that leave", strings.Repeat("gone ", 100), nil, breaker.Closed},
		{"classes do not add up", "refused refused 500 500 cut cut", nil, breaker.Closed},
		{"a threshold of 100", strings.Repeat("500 ", 99), func(c *breaker.Config) { c.OriginThreshold = 100 }, breaker.Closed},
		{"a threshold of 100, reached", strings.Repeat("500 ", 100), func(c *breaker.Config) { c.OriginThreshold = 100 }, breaker.Open},
		{"cb_enable false", "refused refused refused 500 500 500 cut cut cut", func(c *breaker.Config) { c.Enable = false }, breaker.Closed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := plain()
			if tt.tune != nil {
				tt.tune(&cfg)
			}
			c := breaker.NewSet(cfg).Circuit("w")
			play(t, c, tt.script)
			if got := c.State(sec(0)); got != tt.want {
				t.Errorf("after %q: %v, want %v", tt.script, got, tt.want)
			}
		})
	}
}

func TestOnlyAFirstTokenClosesAHalfOpenCircuit(t *testing.T) {
	for _, script := range []string{"500 500 500", "refused refused refused", "cut cut cut"} {
		c := breaker.NewSet(plain()).Circuit("w")
		play(t, c, script)
		p, ok := c.Acquire(sec(5))
		if !ok {
			t.Fatalf("%s: no probe", script)
		}
		p.Answered() // connected, and the head of an answer came
		if got := c.State(sec(5)); got != breaker.HalfOpen {
			t.Errorf("%s: after the head: %v", script, got)
		}
		p.FirstToken(sec(6))
		if got := c.State(sec(6)); got != breaker.Closed || p.Probe() {
			t.Errorf("%s: after the first token: %v, still a probe: %v", script, got, p.Probe())
		}
		if at := c.Recovered(); !at.Equal(sec(6)) {
			t.Errorf("%s: recovered at %v", script, at)
		}
		p.Done(sec(7), breaker.Stream) // the rest of its answer counts anew
		play(t, c, "cut")
		if got := c.State(sec(7)); got != breaker.Closed {
			t.Errorf("%s: after two cut answers: %v", script, got)
		}
		play(t, c, "cut")
		if c.Closed() {
			t.Errorf("%s: closed after three cut answers", script)
		}
	}
}

// Ten slow requests, a trip by fast ones, then 200s: the state is still 2, and the
// results are counted (failover §2A, epoch rule).
func TestStaleResultsAreCounted(t *testing.T) {
	s := breaker.NewSet(plain())
	reg := prometheus.NewPedanticRegistry()
	if err := s.Register(reg); err != nil {
		t.Fatal(err)
	}
	c := s.Circuit("w")
	var slow [10]breaker.Permit
	for i := range slow {
		slow[i], _ = c.Acquire(sec(0))
	}
	play(t, c, "500 500 500")
	for i := range slow {
		slow[i].FirstToken(sec(1))
		slow[i].Done(sec(1), breaker.Success)
	}
	if got := c.State(sec(1)); got != breaker.Open {
		t.Errorf("state %v, want open", got)
	}
	want := `
# HELP infera_router_worker_breaker_stale_results_total Results ignored because the circuit had changed its state since the request was sent.
# TYPE infera_router_worker_breaker_stale_results_total counter
infera_router_worker_breaker_stale_results_total 10
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "infera_router_worker_breaker_stale_results_total"); err != nil {
		t.Error(err)
	}
}

// 50 concurrent requests while half-open: exactly one permit.
func TestFiftyAtOnceGetOneProbe(t *testing.T) {
	c := breaker.NewSet(plain()).Circuit("w")
	play(t, c, "500 500 500")
	var wg sync.WaitGroup
	var lent atomic.Int32
	start := make(chan struct{})
	for range 50 {
		wg.Go(func() {
			<-start
			if p, ok := c.Acquire(sec(5)); ok {
				if !p.Probe() {
					t.Error("a permit that is no probe")
				}
				lent.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	if lent.Load() != 1 {
		t.Errorf("%d permits, want 1", lent.Load())
	}
}

// Every exclusion has an expiry (failover §6, Dynamo): a 429 leaves a worker out
// for one second, and its health alone.
func TestBusyExpires(t *testing.T) {
	c := breaker.NewSet(plain()).Circuit("w")
	for range 128 {
		play(t, c, "429")
	}
	if !c.Busy(sec(0.999)) || c.Busy(sec(1)) {
		t.Errorf("busy before %v, after %v; want one second of it", c.Busy(sec(0.999)), c.Busy(sec(1)))
	}
	if got := c.State(sec(0)); got != breaker.Closed {
		t.Errorf("state %v", got)
	}
	cfg := plain()
	cfg.BusyTTL = 0
	c = breaker.NewSet(cfg).Circuit("w")
	if play(t, c, "429"); c.Busy(sec(0)) {
		t.Error("switched off, and busy")
	}
}

func TestSetConfigCountsForWhatEndsLater(t *testing.T) {
	s := breaker.NewSet(plain())
	c := s.Circuit("w")
	play(t, c, "500 500")
	cfg := plain()
	cfg.OriginThreshold = 1
	if err := s.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	play(t, c, "500")
	if got := c.State(sec(0)); got != breaker.Open {
		t.Errorf("threshold lowered to 1: %v", got)
	}
	bad := cfg
	bad.Cooldown = -1
	if err := s.SetConfig(bad); err == nil {
		t.Error("a bad tuning is taken")
	}
	early := c.Force(sec(0))
	cfg.Enable = false
	if err := s.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.State(sec(0)) != breaker.Closed || !c.Allows(sec(0)) {
		t.Error("switched off, and still open")
	}
	cfg.Enable = true
	if err := s.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	early.Done(sec(1), breaker.Origin) // of before
	if got := c.State(sec(1)); got != breaker.Closed {
		t.Errorf("switched on again: %v", got)
	}
}

// breaker-enable=false: the state metric is absent.
func TestBreakerEnableOffExportsNoStates(t *testing.T) {
	cfg := plain()
	cfg.Enable = false
	s := breaker.NewSet(cfg)
	reg := prometheus.NewPedanticRegistry()
	if err := s.Register(reg); err != nil {
		t.Fatal(err)
	}
	play(t, s.Circuit("w"), "500 500 500")
	for _, name := range []string{"infera_router_worker_breaker_state", "infera_router_worker_breaker_streak", "infera_router_pair_breaker_state"} {
		if n, err := testutil.GatherAndCount(reg, name); n != 0 || err != nil {
			t.Errorf("%s: %d series, %v", name, n, err)
		}
	}
}

// The open windows are 5, 10, 20, 40, 60, 60 s, give or take the jitter.
func TestBreakerCooldownDoublesToBreakerMaxCooldownWithJitterBothWays(t *testing.T) {
	cfg := breaker.DefaultConfig()
	var shorter, longer int
	for seed := range uint64(20) {
		cfg.Seed = seed
		c := breaker.NewSet(cfg).Circuit("w")
		play(t, c, "500 500 500")
		now := sec(0)
		for _, want := range []float64{5, 10, 20, 40, 60, 60} {
			window := time.Duration(want * float64(time.Second))
			at := now.Add(window * 9 / 10)
			for !c.Allows(at) {
				at = at.Add(10 * time.Millisecond)
			}
			if got := at.Sub(now); got > window*11/10+10*time.Millisecond {
				t.Fatalf("seed %d: window %v, want %v give or take a tenth", seed, got, window)
			} else if got < window {
				shorter++
			} else {
				longer++
			}
			p, _ := c.Acquire(at)
			p.Done(at, breaker.Origin)
			now = at
		}
	}
	if shorter < 30 || longer < 30 {
		t.Errorf("%d windows shorter and %d longer than without jitter: want both", shorter, longer)
	}
}
