package plugins_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testkit"
)

// Public reports of other routers, each with its own input (failover.md §6). The
// engines' receipts decide.

const conversation = `{"model":"sim-model","max_tokens":4,"messages":[{"role":"user","content":"` + words + words + words + `"}]}`

// warm returns a worker that holds the conversation's prefix, and the other one.
func warm(p *pairs) (holder, other *simengine.Engine) {
	p.t.Helper()
	a, b := p.add(fleet.Mixed, "", nil), p.add(fleet.Mixed, "", nil)
	for range 3 {
		if status, body := p.ask(requests[0].path, conversation); status != 200 {
			p.t.Fatalf("%d %s", status, body)
		}
	}
	switch {
	case len(a.Receipts()) == 3:
		holder, other = a, b
	case len(b.Receipts()) == 3:
		holder, other = b, a
	default:
		p.t.Fatalf("%d and %d requests: the prefix is not followed", len(a.Receipts()), len(b.Receipts()))
	}
	a.ClearReceipts()
	b.ClearReceipts()
	return holder, other
}

func fault(t *testing.T, e *simengine.Engine, mode string) {
	t.Helper()
	if err := e.SetFault(simengine.Fault{Mode: mode}); err != nil {
		t.Fatal(err)
	}
}

// total adds up the series of a metric with the label value; "" for all.
func (p *pairs) total(name, value string) (n float64) {
	p.t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := value == ""
			for _, l := range m.GetLabel() {
				match = match || l.GetValue() == value
			}
			if match {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func TestInfera82AFailingWorkerIsNotPickedForEverForItsCache(t *testing.T) {
	p := newPairs(t, forward.Auto, nil)
	a, b := warm(p)
	fault(t, a, "status:500")
	for range 20 {
		if status, body := p.ask(requests[0].path, conversation); status != 200 {
			t.Errorf("%d %s", status, body)
		}
	}
	if n, m := len(a.Receipts()), len(b.Receipts()); n < 1 || n > 3 || m != 20 {
		t.Errorf("the failing worker got %d requests of 20, the other one %d; want at most 3 and 20", n, m)
	}
}

func TestNeMoRL3613TheSecondAttemptOfADeadAffineWorkerIsElsewhere(t *testing.T) {
	p := newPairs(t, forward.Auto, nil)
	a, b := warm(p)
	a.Kill()
	for range 5 {
		if status, body := p.ask(requests[0].path, conversation); status != 200 {
			t.Errorf("%d %s", status, body)
		}
	}
	if n := len(b.Receipts()); n != 5 {
		t.Errorf("the living worker got %d requests of 5", n)
	}
}

func TestProductionStack749OneDeadBackendDoesNotHoldUpTheOthers(t *testing.T) {
	const limit = time.Second
	p := newPairs(t, forward.Direct, nil, func(c *forward.Config, _ *forward.Deps) { c.TTFTTimeout, c.MaxRetries = limit, 0 })
	a, b := p.add(fleet.Mixed, "", nil), p.add(fleet.Mixed, "", nil)
	fault(t, a, "hang_head")
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			begun := time.Now()
			status, body := p.ask(requests[1].path, requests[1].body, "X-Worker-Instance-Id", a.ID())
			if took := time.Since(begun); status != 504 || !strings.Contains(body, "first_token_timeout") || took > limit+5*time.Second {
				t.Errorf("at the dead worker: %d after %v, %s", status, took, body)
			}
		})
	}
	testkit.Until(t, "half of the requests at the dead worker", func() bool { return len(a.Receipts()) >= 50 })
	var slowest time.Duration
	for range 50 {
		begun := time.Now()
		if status, body := p.ask(requests[1].path, requests[1].body, "X-Worker-Instance-Id", b.ID()); status != 200 {
			t.Errorf("at the living worker: %d %s", status, body)
		}
		slowest = max(slowest, time.Since(begun))
	}
	wg.Wait()
	if slowest > limit/2 {
		t.Errorf("the slowest request at the living worker took %v", slowest)
	}
}

func TestSGLang25811BadRequestsOpenNoCircuit(t *testing.T) {
	p := newPairs(t, forward.Auto, nil)
	engines := []*simengine.Engine{p.add(fleet.Mixed, "", nil), p.add(fleet.Mixed, "", nil)}
	for range 50 {
		if status, body := p.ask(requests[0].path, `{"model":"sim-model","max_tokens":4000000,"messages":[{"role":"user","content":"hi"}]}`); status != 400 {
			t.Fatalf("%d %s", status, body)
		}
	}
	if n, m := len(engines[0].Receipts()), len(engines[1].Receipts()); n+m != 50 || n == 0 || m == 0 {
		t.Errorf("%d and %d bad requests: one was repeated, or one worker had none", n, m)
	}
	if status, body := p.ask(requests[0].path, requests[0].body); status != 200 {
		t.Errorf("a good request: %d %s", status, body)
	}
	for _, e := range engines {
		if !p.circuit.Circuit(e.ID()).Closed() {
			t.Error("a circuit is open")
		}
	}
}

func TestDynamo12138AnOverloadIsForgottenAfterASecond(t *testing.T) {
	p := newPairs(t, forward.Auto, nil)
	e := p.add(fleet.Mixed, "", nil)
	fault(t, e, "status:429")
	var wg sync.WaitGroup
	for range 128 {
		wg.Go(func() {
			if status, body := p.ask(requests[0].path, requests[0].body); status != 429 {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	wg.Wait()
	fault(t, e, "ok")
	testkit.Within(t, 1100*time.Millisecond, "a good answer a second later", func() bool {
		status, _ := p.ask(requests[0].path, requests[0].body)
		return status == http.StatusOK
	})
}

// cancelAt sends a request and leaves once ready says so.
func (p *pairs) cancelAt(body string, ready func() bool) (left time.Time) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.door.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = resp.Body.Read(make([]byte, 1<<20))
			<-ctx.Done()
			_ = resp.Body.Close()
		}
	}()
	testkit.Until(p.t, "the request where it is to be left", ready)
	left = time.Now()
	cancel()
	<-ended
	return left
}

// toldWithin waits until every receipt of e tells of an abort, and checks that it
// came within the limit.
func toldWithin(t *testing.T, e *simengine.Engine, left time.Time, limit time.Duration, byName bool) {
	t.Helper()
	var all []simengine.Receipt
	testkit.Until(t, "every leg aborted", func() bool {
		all = e.Receipts()
		return len(all) > 0 && !slices.ContainsFunc(all, func(r simengine.Receipt) bool {
			return r.Outcome != simengine.OutcomeAborted || byName && r.AbortRequestAt == nil
		})
	}, func() string { return fmt.Sprintf("%+v", all) })
	for _, r := range all {
		if late := r.AbortedAt.Sub(left); late > limit {
			t.Errorf("the %s leg was given up after %v", r.Leg, late)
		}
		if byName && r.AbortRequestAt.Sub(left) > limit {
			t.Errorf("the %s leg was named after %v", r.Leg, r.AbortRequestAt.Sub(left))
		}
	}
}

// Production-stack 634, Dynamo 14775 and failover.md §4.4: whoever leaves, wherever
// the request is, the engine stops within a second, and what was reserved is back.
func TestAClientThatLeavesReachesEveryEngineWithinASecond(t *testing.T) {
	long := func(stream string) string {
		return `{"model":"sim-model","stream":` + stream + `,"max_tokens":6000,"ignore_eos":true,"messages":[{"role":"user","content":"` + words + `"}]}`
	}
	slow := func(c *simengine.Config) { c.Time.Scale, c.PD.Partner = 1, time.Minute }
	running := func(e *simengine.Engine, tokens int) func() bool {
		return func() bool {
			r := e.Receipts()
			return len(r) == 1 && r[0].TokensSent >= tokens && r[0].BytesIn > 0
		}
	}
	back := func(t *testing.T, p *pairs) {
		t.Helper()
		testkit.Until(t, "all reservations back", func() bool { return len(p.picker.Held(time.Now().Add(hour), 0)) == 0 })
	}
	for name, tc := range map[string]struct {
		stream string
		tokens int
	}{"production-stack 634, an object": {"false", 0}, "a stream before its first token": {"true", 0}, "a stream": {"true", 3}} {
		t.Run("vLLM over HTTP, "+name, func(t *testing.T) {
			p := newPairs(t, forward.Auto, nil)
			e := p.add(fleet.Mixed, "", slow)
			if tc.stream == "true" && tc.tokens == 0 {
				fault(t, e, "hang_head")
			}
			toldWithin(t, e, p.cancelAt(long(tc.stream), running(e, tc.tokens)), time.Second, false)
			back(t, p)
		})
	}
	for name, where := range map[string]struct {
		prefill, decode string
		tokens          int
	}{"Dynamo 14775, while prefill runs": {"hang_head", "ok", 0}, "before the first token": {"hang_head", "hang_head", 0}} {
		t.Run("an SGLang pair, "+name, func(t *testing.T) {
			p := newPairs(t, forward.Auto, nil)
			prefill, decode := p.add(fleet.Prefill, "sglang-bootstrap", slow), p.add(fleet.Decode, "sglang-bootstrap", slow)
			fault(t, prefill, where.prefill)
			fault(t, decode, where.decode)
			left := p.cancelAt(long("true"), func() bool { return running(prefill, 0)() && running(decode, where.tokens)() })
			toldWithin(t, prefill, left, time.Second, true)
			toldWithin(t, decode, left, time.Second, true)
			back(t, p)
		})
	}
	t.Run("an SGLang pair, while tokens flow", func(t *testing.T) {
		p := newPairs(t, forward.Auto, nil)
		p.add(fleet.Prefill, "sglang-bootstrap", slow)
		decode := p.add(fleet.Decode, "sglang-bootstrap", slow)
		toldWithin(t, decode, p.cancelAt(long("true"), running(decode, 3)), time.Second, true)
		back(t, p)
	})
	t.Run("a vLLM pair, while prefill runs", func(t *testing.T) {
		p := newPairs(t, forward.Auto, nil)
		prefill, decode := p.add(fleet.Prefill, "vllm-nixl", slow), p.add(fleet.Decode, "vllm-nixl", slow)
		fault(t, prefill, "hang_head")
		toldWithin(t, prefill, p.cancelAt(long("true"), running(prefill, 0)), time.Second, false)
		if n := len(decode.Receipts()); n != 0 {
			t.Errorf("%d decode legs", n)
		}
		back(t, p)
	})
}

// aibrix 2289 and SGLang 9726: the decode leg that waits for a prefill leg which was
// refused must neither hold the client nor its own slot.
func TestAibrix2289APrefillRefusalReachesTheClientAndFreesTheDecodeWorker(t *testing.T) {
	p := newPairs(t, forward.Auto, nil)
	patient := func(c *simengine.Config) { c.PD.Partner = time.Minute }
	prefill, decode := p.add(fleet.Prefill, "sglang-bootstrap", patient), p.add(fleet.Decode, "sglang-bootstrap", patient)
	fault(t, prefill, "status:400")
	for range 5 {
		begun := time.Now()
		status, body := p.ask(requests[1].path, requests[1].body)
		if took := time.Since(begun); status != 400 || took > time.Second {
			t.Errorf("%d after %v: %s", status, took, body)
		}
	}
	ended := time.Now()
	for _, r := range p.ended(decode) {
		if r.AbortedAt == nil || r.AbortedAt.Sub(ended) > time.Second {
			t.Errorf("decode leg %+v", r)
		}
	}
	if !p.circuit.Circuit(decode.ID()).Closed() || !p.circuit.Circuit(prefill.ID()).Closed() {
		t.Error("a refusal opened a circuit")
	}
}

// llm-d-router 1206 and --pd-prefill-failure: what a failed prefill leg comes to is
// said, counted, and never silent.
func TestPDPrefillFailure(t *testing.T) {
	for _, mode := range []string{"status:502", "reset"} {
		for policy, want := range map[forward.PrefillFailure]struct {
			ok                     bool
			redispatched, computed float64
		}{forward.PrefillRetry: {true, 1, 0}, forward.PrefillLocal: {true, 0, 1}, forward.PrefillError: {false, 0, 0}} {
			t.Run(string(policy)+", "+mode, func(t *testing.T) {
				p := newPairs(t, forward.Direct, nil, func(c *forward.Config, _ *forward.Deps) { c.PrefillFailure, c.ConnectRetrySameEP = policy, 0 })
				bad, good := p.add(fleet.Prefill, "vllm-nixl", nil), p.add(fleet.Prefill, "vllm-nixl", nil)
				decode := p.add(fleet.Decode, "vllm-nixl", nil)
				fault(t, bad, mode)
				status, body := p.ask(requests[1].path, requests[1].body, "X-Worker-Instance-Id", decode.ID(), "X-Prefill-Instance-Id", bad.ID())
				if (status == 200) != want.ok || want.ok != strings.HasSuffix(body, "data: [DONE]\n\n") {
					t.Errorf("%d %s", status, body)
				}
				if n, m := p.total("infera_router_prefill_redispatch_total", ""), p.total("infera_router_prefill_local_total", ""); n != want.redispatched || m != want.computed {
					t.Errorf("%v repeated, %v computed by the decode worker; want %v and %v", n, m, want.redispatched, want.computed)
				}
				if n := len(good.Receipts()); n != int(want.redispatched) {
					t.Errorf("%d legs at the other prefill worker", n)
				}
				if n := p.total("pointsman_forward_prefill_failures_total", ""); n != 1 {
					t.Errorf("%v failed prefill legs counted", n)
				}
				done := 0
				for _, r := range decode.Receipts() {
					if r.Outcome == simengine.OutcomeComplete {
						done++
						if want.computed == 1 && r.CachedTokens != 0 {
							t.Errorf("the decode worker has taken a cache over: %+v", r)
						}
					}
				}
				if want.ok != (done == 1) {
					t.Errorf("%d answers by the decode worker", done)
				}
			})
		}
	}
}
