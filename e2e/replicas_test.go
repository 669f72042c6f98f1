package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// TestOffTheTokenPathAKilledEPPCutsNothing runs two EPPs that see no response bodies
// and kills one under load: no answer that has begun is cut, new requests go to the
// other one, and what it learns of the ends it learns from the forwarders.
func TestOffTheTokenPathAKilledEPPCutsNothing(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(3, paced()...), Policy: "kv-aware", OverlapWeight: 20, EPPs: 2, Unseen: true,
	})
	l := startLoad(t, s, 160, 10*time.Second)
	l.until(func() bool { return l.sent >= 70 })
	killed := time.Now()
	s.EPPs[0].Kill()
	results := l.finish()
	begun, after := 0, 0
	for i := range results {
		r := &results[i]
		if r.Outcome() == traffic.OK {
			if r.Sent.Before(killed) && r.End.After(killed) {
				begun++
			}
			if r.Sent.After(killed) {
				after++
			}
			continue
		}
		if r.Status == http.StatusOK {
			t.Errorf("cut: %s", describe(r))
		}
		if r.Sent.After(killed.Add(4 * time.Second)) { // Envoy asks for health every second
			t.Errorf("after the fail-over: %s", describe(r))
		}
	}
	t.Logf("%d streams were open at the kill, %d requests succeeded after it", begun, after)
	if begun == 0 || after < 20 {
		t.Error("too little was under way for the test to say anything")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := s.Metrics(ctx, s.EPPs[1].Admin)
		if err != nil {
			t.Fatal(err)
		}
		returned := m.Sum("pointsman_epp_reservations_returned_total", map[string]string{"by": "report"})
		open := m.Sum("pointsman_epp_reservations_unseen", nil)
		if open == 0 && returned > 20 && m.Sum("pointsman_epp_usage_cached_tokens_total", nil) > 0 {
			if lost := m.Sum("pointsman_epp_reservations_returned_total", map[string]string{"by": "expired"}); lost != 0 {
				t.Errorf("%g reservations were given back unreported", lost)
			}
			if ok := m.Sum("pointsman_epp_reported_ends_total", map[string]string{"outcome": "ok"}); ok < returned-1 {
				t.Errorf("%g of %g ends were good", ok, returned)
			}
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%g reservations came back by report, %g are open, %g cached tokens", returned, open, m.Sum("pointsman_epp_usage_cached_tokens_total", nil))
		case <-tick.C:
		}
	}
}
