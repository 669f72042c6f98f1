package plugins_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testkit"
)

// canaries counts the canaries that ended so.
func (p *pairs) canaries(result string) int {
	p.t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "infera_router_pair_canary_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == result {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	p.t.Fatalf("no series of canaries that are %s", result)
	return 0
}

// legsOn returns how many legs an engine has had of users, of canaries, and how many
// of the latter came to their end.
func legsOn(e *simengine.Engine) (users, canaries, whole int) {
	for _, rc := range e.Receipts() {
		switch {
		case rc.Path != "/v1/chat/completions":
		case strings.HasPrefix(rc.InferaRequestID+rc.RequestID+rc.AttemptID, "user-"):
			users++
		default:
			if canaries++; rc.Outcome == "complete" && rc.Status == http.StatusOK {
				whole++
			}
		}
	}
	return users, canaries, whole
}

// TestPairCanaryKeepsRequestsFromAWorkerThatCameBackBroken restarts a decode worker,
// under load, as one to which no cache gets (failover §2A, pair readiness canary):
// no client's request fails, or is sent there, until it is healed and a canary has
// seen that. Without canaries clients' requests are what finds it out.
func TestPairCanaryKeepsRequestsFromAWorkerThatCameBackBroken(t *testing.T) {
	t.Parallel()
	for _, option := range breaker.Canaries() {
		for _, protocol := range []string{"sglang-bootstrap", "vllm-nixl"} {
			t.Run(option+" "+protocol, func(t *testing.T) {
				t.Parallel()
				brokenReturn(t, option, protocol)
			})
		}
	}
}

func brokenReturn(t *testing.T, option, protocol string) {
	t.Helper()
	p := newPairs(t, forward.Auto, nil)
	cfg := breaker.DefaultConfig()
	cfg.PairCanary, cfg.PairCooldown, cfg.Cooldown = option, 300*time.Millisecond, 300*time.Millisecond
	if err := p.circuit.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	control := func(c *simengine.Config) { c.ControlPort = 0 }
	p.add(fleet.Prefill, protocol, nil)
	p.add(fleet.Prefill, protocol, nil)
	d1 := p.add(fleet.Decode, protocol, control)
	p.add(fleet.Decode, protocol, nil)
	p.picker.Refresh(time.Now())

	ctx, stop := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	parts.Go(func() { _ = p.server.Canaries(ctx) })
	var mu sync.Mutex
	sent, failed := 0, []string{}
	for client := range 4 {
		parts.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				body := fmt.Sprintf(`{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"client %d, question %d"}]}`, client, n)
				status, text := p.ask("/v1/chat/completions", strings.Replace(body, `"sim"`, fmt.Sprintf("%q", d1.Worker().Model), 1),
					"X-Request-Id", fmt.Sprintf("user-%d-%d", client, n)) //nolint:contextcheck // bounded by the test
				mu.Lock()
				if sent++; status != http.StatusOK {
					failed = append(failed, fmt.Sprint(status, " ", text))
				}
				mu.Unlock()
			}
		})
	}
	testkit.Until(t, "a request on d1", func() bool { users, _, _ := legsOn(d1); return users > 0 })

	p.feed.Delete(d1.ID())
	p.picker.Refresh(time.Now())
	back := p.start(fleet.Decode, protocol, control)
	cut(t, back, true)
	p.feed.Put(back.Worker())

	if option == breaker.CanaryOff {
		testkit.Until(t, "a request on the broken worker", func() bool { users, _, _ := legsOn(back); return users > 0 })
		if _, canaries, _ := legsOn(back); canaries > 0 || p.canaries("ok")+p.canaries("failed")+p.canaries("refused") > 0 {
			t.Errorf("%d canaries that nobody wanted", canaries)
		}
		return
	}
	testkit.Until(t, "a canary of each pair", func() bool { return p.canaries("failed") >= 2 })
	if users, canaries, whole := legsOn(back); users > 0 || canaries < 2 || whole > 0 {
		t.Errorf("the broken worker had %d legs of users, and %d canaries of which %d are whole", users, canaries, whole)
	}
	cut(t, back, false)
	testkit.Until(t, "a canary that is answered", func() bool { return p.canaries("ok") > 0 })
	testkit.Until(t, "a request on the healed worker", func() bool { users, _, _ := legsOn(back); return users > 0 })
	stop()
	parts.Wait()
	if len(failed) > 0 || sent == 0 {
		t.Errorf("%d of %d requests failed: %.500q", len(failed), sent, failed)
	}
	if n := p.counted(); n != sent {
		t.Errorf("%d requests counted, %d sent: canaries are none", n, sent)
	}
}

// cut makes everything that goes to a decode engine break, or arrive again.
func cut(t *testing.T, e *simengine.Engine, broken bool) {
	t.Helper()
	body := fmt.Sprintf(`{"host":"127.0.0.1","broken":%v}`, broken)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.ControlURL()+"/control/pair", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("cut: %d, %v", resp.StatusCode, err)
	}
}

// counted returns how many requests the forwarder has counted.
func (p *pairs) counted() (n int) {
	p.t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "infera_request_duration_seconds" {
			for _, m := range f.GetMetric() {
				n += int(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}
