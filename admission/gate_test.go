package admission_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pointsman/admission"
)

// place is a test's worker: it takes as many requests as it has slots.
type place struct {
	mu          sync.Mutex
	slots, used int // slots 0: no cap
	picks       int
}

func (p *place) pick(time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.picks++
	if p.slots > 0 && p.used >= p.slots {
		return admission.ErrFull
	}
	p.used++
	return nil
}

func (p *place) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.picks
}

func enforcing(ceiling, depth int) admission.Config {
	c := admission.DefaultConfig()
	c.Mode, c.MaxOutstanding, c.QueueDepth = admission.Enforce, ceiling, depth
	return c
}

func request(p *place) *admission.Request { return &admission.Request{Units: 1, Pick: p.pick} }

func value(t *testing.T, g *admission.Gate, name, label string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := g.Register(reg); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "infera_router_admission_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				return number(m)
			}
		}
	}
	t.Fatalf("no metric %s of %q", name, label)
	return 0
}

func number(m *dto.Metric) float64 {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetHistogram() != nil:
		return float64(m.GetHistogram().GetSampleCount())
	}
	return m.GetCounter().GetValue()
}

func refused(t *testing.T, err error, status int, code string) *admission.Refusal {
	t.Helper()
	var r *admission.Refusal
	if !errors.As(err, &r) || r.Status != status || r.Code != code {
		t.Fatalf("error %v (%+v), want %d %s", err, r, status, code)
	}
	if r.Seconds() < 1 {
		t.Errorf("Retry-After %d, want at least 1", r.Seconds())
	}
	return r
}

// contract 2C, fc_max_queue_depth: cap 4, depth 2, 8 arrivals: 4 run, 2 park, 2
// are refused with Retry-After.
func TestFcMaxQueueDepthRunsFourParksTwoRefusesTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(4, 2)), new(place)
		var passes []admission.Pass
		for range 4 {
			pass, err := g.Enter(t.Context(), request(p))
			if err != nil {
				t.Fatal(err)
			}
			passes = append(passes, pass)
		}
		got := make(chan admission.Pass, 2)
		for range 2 {
			go func() {
				pass, err := g.Enter(t.Context(), request(p))
				if err != nil {
					t.Error(err)
				}
				got <- pass
			}()
		}
		synctest.Wait()
		for range 2 {
			_, err := g.Enter(t.Context(), request(p))
			refused(t, err, http.StatusTooManyRequests, admission.CodeCapacity)
		}
		if s := g.Snapshot(); s.Inflight != 4 || s.Queued != 2 || p.picks != 4 {
			t.Errorf("in flight %d, queued %d, picks %d, want 4, 2, 4", s.Inflight, s.Queued, p.picks)
		}
		for _, pass := range passes {
			pass.Release()
			pass.Release() // changes nothing
		}
		(<-got).Release()
		(<-got).Release()
		if s := g.Snapshot(); s.Inflight != 0 || s.Queued != 0 {
			t.Errorf("in flight %d, queued %d when all is over", s.Inflight, s.Queued)
		}
		for reason, want := range map[string]float64{"admitted": 6, "queued": 2, "queue_full": 2} {
			if n := value(t, g, "decisions_total", reason); n != want {
				t.Errorf("decisions %s = %v, want %v", reason, n, want)
			}
		}
		for _, kind := range []string{"underflow", "unknown_permit", "leak"} {
			if n := value(t, g, "anomalies_total", kind); n != 0 {
				t.Errorf("anomalies %s = %v", kind, n)
			}
		}
	})
}

func TestFcMaxQueueWaitMsEndsAWaitWith504AfterTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(1, 5)), new(place)
		pass, _ := g.Enter(t.Context(), request(p))
		began := time.Now()
		_, err := g.Enter(t.Context(), request(p))
		r := refused(t, err, http.StatusGatewayTimeout, admission.CodeQueueTime)
		if d := time.Since(began); d != 5*time.Second || r.Queued != d {
			t.Errorf("waited %v, told %v, want 5s", d, r.Queued)
		}
		if s := g.Snapshot(); s.Queued != 0 || p.picks != 1 {
			t.Errorf("queued %d, picks %d, want 0 and 1", s.Queued, p.picks)
		}
		pass.Release()
	})
}

func TestACancelledWaiterLeavesAtOnceAndPassesItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(1, 5)), new(place)
		first, _ := g.Enter(t.Context(), request(p))
		ctx, cancel := context.WithCancel(t.Context())
		second, third := make(chan error, 1), make(chan error, 1)
		go func() { _, err := g.Enter(ctx, request(p)); second <- err }()
		synctest.Wait()
		go func() {
			pass, err := g.Enter(t.Context(), request(p))
			pass.Release()
			third <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want canceled", err)
		}
		if s := g.Snapshot(); s.Queued != 1 {
			t.Errorf("queued %d, want 1", s.Queued)
		}
		first.Release()
		if err := <-third; err != nil {
			t.Error(err)
		}
	})
}
