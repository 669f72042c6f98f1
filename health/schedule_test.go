package health_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/fleet"
	"pointsman/health"
)

// network is dialled in place of a real one. It keeps when each address was
// dialled, and answers as say tells: nil connects, an error refuses, errHang
// takes the whole timeout.
type network struct {
	say func(addr string, n int) error // n counts the dials of addr, from 0

	mu    sync.Mutex
	dials map[string][]time.Time
}

var (
	errHang    = errors.New("hang")
	errRefused = errors.New("connection refused")
)

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	if n.dials == nil {
		n.dials = map[string][]time.Time{}
	}
	nth := len(n.dials[addr])
	n.dials[addr] = append(n.dials[addr], time.Now())
	n.mu.Unlock()
	var err error
	if n.say != nil {
		err = n.say(addr, nth)
	}
	if errors.Is(err, errHang) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	_ = there.Close()
	return here, nil
}

func workers(n int) []*fleet.Worker {
	var all []*fleet.Worker
	for i := range n {
		all = append(all, &fleet.Worker{ID: fmt.Sprintf("w%d", i), Host: fmt.Sprintf("10.0.0.%d", i), Port: 8000, DPRank: -1})
	}
	return all
}

// run starts a prober of type tcp in a bubble and returns it with its registry;
// it ends with the test.
func run(t *testing.T, n *network, store *fleet.Store, edit func(*health.Config)) (*health.Prober, *prometheus.Registry) {
	t.Helper()
	cfg := health.DefaultConfig()
	cfg.Enabled, cfg.Type = true, health.TCP
	if edit != nil {
		edit(&cfg)
	}
	p, err := health.New(cfg, health.Deps{Store: store, Log: slog.New(slog.DiscardHandler), Dial: n.dial})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	if err := p.Register(reg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return p, reg
}

// TestHealthProbeIntervalAllowsOneProbePerWorker watches 50 workers for a hundred
// intervals: not more probes than that, and never a herd.
func TestHealthProbeIntervalAllowsOneProbePerWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(fleet.Store)
		fleet.NewFeed(store).Replace(workers(50))
		n := &network{}
		run(t, n, store, nil)
		const intervals = 100
		time.Sleep(intervals * 5 * time.Second)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.dials) != 50 {
			t.Fatalf("%d workers were probed, want 50", len(n.dials))
		}
		var all []time.Time
		for addr, at := range n.dials {
			if len(at) < intervals*95/100 || len(at) > intervals*105/100 {
				t.Errorf("%s was probed %d times in %d intervals", addr, len(at), intervals)
			}
			for i := 1; i < len(at); i++ {
				if gap := at[i].Sub(at[i-1]); gap < 4500*time.Millisecond || gap > 5500*time.Millisecond {
					t.Errorf("%s was probed after %s, want 5 s give or take a tenth", addr, gap)
				}
			}
			all = append(all, at...)
		}
		// 50 probes in 5 s are 5 in half a second; 20 would be a herd.
		slices.SortFunc(all, time.Time.Compare)
		for i := 20; i < len(all); i++ {
			if all[i].Sub(all[i-20]) < 500*time.Millisecond {
				t.Fatalf("20 probes within %s, at %s of the run", all[i].Sub(all[i-20]), all[i].Sub(all[0]))
			}
		}
	})
}

// TestHealthProbeTimeoutEndsAHungAccept holds the bound (retries+1) x (interval+timeout)
// for settings at its edges.
func TestHealthProbeTimeoutEndsAHungAccept(t *testing.T) {
	for _, tt := range []struct {
		interval, timeout time.Duration
		retries           int
	}{
		{5 * time.Second, 2 * time.Second, 1},
		{time.Second, 100 * time.Millisecond, 1},
		{time.Second, 100 * time.Millisecond, 10},
		{500 * time.Millisecond, 500 * time.Millisecond, 0},
		{5 * time.Second, 100 * time.Millisecond, 0},
	} {
		for seed := range uint64(20) {
			synctest.Test(t, func(t *testing.T) {
				store := new(fleet.Store)
				fleet.NewFeed(store).Replace(workers(1))
				var hangs time.Time // from the fourth dial on
				n := &network{say: func(_ string, nth int) error {
					if nth < 3 {
						return nil
					}
					return errHang
				}}
				p, _ := run(t, n, store, func(c *health.Config) {
					c.Interval, c.Timeout, c.Retries, c.Seed = tt.interval, tt.timeout, tt.retries, seed
				})
				for p.Healthy("w0") {
					n.mu.Lock()
					if at := n.dials["10.0.0.0:8000"]; hangs.IsZero() && len(at) == 3 {
						hangs = at[2] // it hangs from right behind its last good probe on
					}
					n.mu.Unlock()
					time.Sleep(time.Millisecond)
					synctest.Wait()
				}
				bound := time.Duration(tt.retries+1) * (tt.interval + tt.timeout)
				if took := time.Since(hangs); took > bound+2*time.Millisecond {
					t.Errorf("interval %s, timeout %s, retries %d: down after %s, want at most %s", tt.interval, tt.timeout, tt.retries, took, bound)
				}
			})
		}
	}
}

func transitions(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	page, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range page {
		if f.GetName() == "infera_router_health_transitions_total" {
			out = append(out, fmt.Sprint(f.GetMetric()[0].GetCounter().GetValue()))
		}
	}
	return strings.Join(out, " ")
}

// TestOneLostProbeOfTwentyIsNoTransition, and two in a row are one each way.
func TestOneLostProbeOfTwentyIsNoTransition(t *testing.T) {
	for _, tt := range []struct {
		name string
		lost func(n int) bool
		want string
	}{
		{"every twentieth", func(n int) bool { return n%20 == 7 }, "0"},
		{"every second", func(n int) bool { return n%2 == 1 }, "0"},
		{"two in a row, once", func(n int) bool { return n == 7 || n == 8 }, "2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := new(fleet.Store)
			fleet.NewFeed(store).Replace(workers(1))
			_, reg := run(t, &network{say: func(_ string, n int) error {
				if tt.lost(n) {
					return errRefused
				}
				return nil
			}}, store, nil)
			time.Sleep(100 * 5 * time.Second)
			if got := transitions(t, reg); got != tt.want {
				t.Errorf("%s: %s transitions, want %s", tt.name, got, tt.want)
			}
		})
	}
}

// TestHealthProbeRetriesAndRiseAreTheThresholds counts the probes until each turn.
func TestHealthProbeRetriesAndRiseAreTheThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(fleet.Store)
		fleet.NewFeed(store).Replace(workers(1))
		n := &network{say: func(_ string, n int) error {
			if n >= 2 && n < 8 {
				return errRefused
			}
			return nil
		}}
		p, _ := run(t, n, store, func(c *health.Config) { c.Retries, c.Rise = 2, 3 })
		var turns []int
		was := true
		for len(turns) < 2 {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if is := p.Healthy("w0"); is != was {
				n.mu.Lock()
				turns = append(turns, len(n.dials["10.0.0.0:8000"]))
				n.mu.Unlock()
				was = is
			}
		}
		if turns[0] != 2+3 || turns[1] != 8+3 {
			t.Errorf("turned after %v probes, want after the third failure (5) and the third success (11)", turns)
		}
	})
}

// TestDepartedWorkersAreForgotten, with their series; one that comes back at
// another address starts anew.
func TestDepartedWorkersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(fleet.Store)
		feed := fleet.NewFeed(store)
		feed.Replace(workers(2))
		n := &network{say: func(addr string, _ int) error {
			if addr == "10.0.0.0:8000" {
				return errRefused
			}
			return nil
		}}
		p, reg := run(t, n, store, nil)
		time.Sleep(time.Minute)
		if p.Healthy("w0") || !p.Healthy("w1") || !p.Healthy("unknown") {
			t.Errorf("w0 %v, w1 %v, unknown %v: want only w0 down", p.Healthy("w0"), p.Healthy("w1"), p.Healthy("unknown"))
		}
		if s := p.Snapshot(); s.Probed != 2 || !slices.Equal(s.Down, []string{"w0"}) {
			t.Errorf("snapshot %+v", s)
		}
		const want = `
# HELP infera_router_worker_health Whether the worker answers its health probes: 1 yes or not known yet, 0 no.
# TYPE infera_router_worker_health gauge
infera_router_worker_health{role="mixed",worker_id="w0"} 0
infera_router_worker_health{role="mixed",worker_id="w1"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "infera_router_worker_health"); err != nil {
			t.Error(err)
		}
		feed.Delete("w1")
		feed.Put(&fleet.Worker{ID: "w0", Host: "10.0.0.9", Port: 8000, DPRank: -1})
		synctest.Wait()
		if !p.Healthy("w0") {
			t.Error("w0 has a new address and is down for what the old one did")
		}
		n.mu.Lock()
		before := len(n.dials["10.0.0.1:8000"])
		n.mu.Unlock()
		time.Sleep(time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if after := len(n.dials["10.0.0.1:8000"]); after != before {
			t.Errorf("w1 has left and was probed %d times more", after-before)
		}
		if c, err := testutil.GatherAndCount(reg, "infera_router_worker_health"); c != 1 || err != nil {
			t.Errorf("%d series, want that of w0: %v", c, err)
		}
	})
}

// TestHealthProbeIsTurnedOnAndOffByAReload at once, and leaves nobody down when off.
func TestHealthProbeIsTurnedOnAndOffByAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(fleet.Store)
		fleet.NewFeed(store).Replace(workers(3))
		n := &network{say: func(string, int) error { return errRefused }}
		p, _ := run(t, n, store, func(c *health.Config) { c.Enabled = false })
		time.Sleep(time.Minute)
		if len(n.dials) != 0 {
			t.Error("probed though off")
		}
		cfg := health.DefaultConfig()
		cfg.Enabled, cfg.Type = true, health.TCP
		if err := p.SetConfig(cfg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if p.Healthy("w1") {
			t.Error("up though nothing answers")
		}
		cfg.Type = health.None
		if err := p.SetConfig(cfg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !p.Healthy("w1") {
			t.Error("down though nobody asks any more")
		}
		cfg.Timeout = time.Hour
		if p.SetConfig(cfg) == nil {
			t.Error("a timeout above the interval was taken")
		}
	})
}
