package plugins_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/plugins"
	httptransport "pointsman/plugins/transport/http"
	natstransport "pointsman/plugins/transport/nats"
	"pointsman/prompt"
)

// pairs is a forwarder over simulated engines, which check what they are sent.
type pairs struct {
	t       *testing.T
	engines []*simengine.Engine
	feed    *fleet.Feed
	door    *httptest.Server
	server  *forward.Server
	picker  *picker.Picker
	reg     *prometheus.Registry
	circuit *breaker.Set
	wasted  bool // serial prefill legs may be without a decode leg: the decode engine was down
}

func newPairs(t *testing.T, mode forward.Mode, transports map[string]forward.Transport, edits ...func(*forward.Config, *forward.Deps)) *pairs {
	t.Helper()
	store := new(fleet.Store)
	p := &pairs{t: t, feed: fleet.NewFeed(store)}
	cfg := picker.DefaultConfig()
	cfg.Seed = 1
	p.circuit = breaker.NewSet(breaker.DefaultConfig())
	pick, err := picker.New(cfg, store, kvindex.New(kvindex.DefaultConfig()), p.circuit)
	if err != nil {
		t.Fatal(err)
	}
	p.picker = pick
	tr, err := httptransport.New(httptransport.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	all := map[string]forward.Transport{"http": tr}
	maps.Copy(all, transports)
	fc := forward.DefaultConfig()
	fc.Mode = mode
	preparer := prompt.NewPreparer(prompt.Config{}, nil)
	deps := forward.Deps{
		Picker: pick, Store: store, Preparer: func() *prompt.Preparer { return preparer },
		Transports: all, Connectors: plugins.Connectors, Log: slog.New(slog.DiscardHandler),
	}
	for _, edit := range edits {
		edit(&fc, &deps)
	}
	p.server, err = forward.New(fc, deps)
	if err != nil {
		t.Fatal(err)
	}
	p.reg = prometheus.NewRegistry()
	if err := p.server.Register(p.reg); err != nil {
		t.Fatal(err)
	}
	p.door = httptest.NewServer(p.server.Handler())
	t.Cleanup(p.door.Close)
	return p
}

// add starts an engine and puts it into the fleet.
func (p *pairs) add(role fleet.Role, protocol string, edit func(*simengine.Config)) *simengine.Engine {
	p.t.Helper()
	e := p.start(role, protocol, edit)
	p.feed.Put(e.Worker())
	return e
}

// start starts an engine.
func (p *pairs) start(role fleet.Role, protocol string, edit func(*simengine.Config)) *simengine.Engine {
	p.t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.Time.Scale, cfg.KV.Port = 1000, -1
	cfg.Role, cfg.PD.Partner = role, 3*time.Second
	if cfg.PD.Protocol = protocol; protocol == "sglang-bootstrap" {
		cfg.Engine = fleet.SGLang
	}
	if protocol == "atom-mooncake" {
		cfg.Engine = fleet.ATOM
	}
	if edit != nil {
		edit(&cfg)
	}
	e, err := simengine.Start(context.WithoutCancel(p.t.Context()), cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = e.Close() })
	p.engines = append(p.engines, e)
	return e
}

func (p *pairs) ask(path, body string, headers ...string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.door.URL+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// paired checks by the receipts that every completed leg has met its partner in a
// room of their own, and returns how many pairs there were.
func (p *pairs) paired() int {
	p.t.Helper()
	rooms := map[string][]simengine.Receipt{}
	for _, r := range p.ended(p.engines...) {
		if r.Leg != "mixed" && r.Outcome == simengine.OutcomeComplete {
			rooms[r.Room] = append(rooms[r.Room], r)
		}
	}
	for room, legs := range rooms {
		if len(legs) == 1 && legs[0].Leg == "prefill" && legs[0].Partner == "" && p.wasted {
			delete(rooms, room)
			continue
		}
		slices.SortFunc(legs, func(a, b simengine.Receipt) int { return strings.Compare(b.Leg, a.Leg) })
		switch {
		case room == "" || len(legs) != 2 || legs[0].Leg != "prefill" || legs[1].Leg != "decode":
			p.t.Errorf("room %q has %d legs: %+v", room, len(legs), legs)
		case legs[1].Partner != legs[0].WorkerID || legs[0].Partner != "" && legs[0].Partner != legs[1].WorkerID:
			p.t.Errorf("room %s: partners %q and %q", room, legs[0].Partner, legs[1].Partner)
		case legs[1].CachedTokens != legs[1].PromptTokens-1:
			p.t.Errorf("room %s: the decode engine found %d of %d tokens", room, legs[1].CachedTokens, legs[1].PromptTokens)
		}
	}
	return len(rooms)
}

// neverMixed checks what holds whatever fails: a room has one leg of each kind at
// most, no decode engine has answered without its prefill leg, and nothing runs
// on. It returns how many rooms there were.
func (p *pairs) neverMixed() int {
	p.t.Helper()
	rooms := map[string]map[string]simengine.Receipt{}
	for _, r := range p.ended(p.engines...) {
		if strings.Contains(r.Error, "used before") {
			p.t.Errorf("%s leg: %s", r.Leg, r.Error)
		}
		if r.Room == "" {
			continue
		}
		if rooms[r.Room] == nil {
			rooms[r.Room] = map[string]simengine.Receipt{}
		}
		if _, twice := rooms[r.Room][r.Leg]; twice {
			p.t.Errorf("room %s has two %s legs", r.Room, r.Leg)
		}
		rooms[r.Room][r.Leg] = r
	}
	for room, legs := range rooms {
		if d, ok := legs["decode"]; ok && d.Outcome == simengine.OutcomeComplete && legs["prefill"].WorkerID != d.Partner {
			p.t.Errorf("room %s: the decode engine answered with the KV cache of %q, computed by %q", room, d.Partner, legs["prefill"].WorkerID)
		}
	}
	return len(rooms)
}

// ended waits until no leg runs at the engines, and returns all their receipts.
func (p *pairs) ended(engines ...*simengine.Engine) (all []simengine.Receipt) {
	p.t.Helper()
	testkit.Until(p.t, "the end of all legs", func() bool {
		all = nil
		for _, e := range engines {
			all = append(all, e.Receipts()...)
		}
		return !slices.ContainsFunc(all, func(r simengine.Receipt) bool { return r.Outcome == simengine.OutcomeRunning })
	})
	return all
}

const words = "Every leg finds its partner, and the cache of this prompt travels from the one to the other."

var requests = []struct{ path, body string }{
	{"/v1/chat/completions", `{"model":"sim-model","max_tokens":8,"messages":[{"role":"user","content":"` + words + `"}]}`},
	{"/v1/chat/completions", `{"model":"sim-model","max_tokens":8,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + words + `"}]}`},
	{"/v1/completions", `{"model":"sim-model","prompt":"` + words + `","max_tokens":8}`},
	{"/v1/completions", `{"model":"sim-model","prompt":"` + words + `","stream":true}`},
}

// The engines refuse a leg with a wrong field, without a partner or in a used
// room: an answer of 200 says that both bodies were right.
func TestEveryProtocolServesChatAndCompletions(t *testing.T) {
	for protocol := range plugins.Connectors {
		for _, ranks := range []int{0, 4} {
			t.Run(fmt.Sprint(protocol, ", ranks ", ranks), func(t *testing.T) {
				p := newPairs(t, forward.Auto, nil)
				sized := func(c *simengine.Config) { c.PD.Ranks = ranks }
				for range 2 {
					p.add(fleet.Prefill, protocol, sized)
					p.add(fleet.Decode, protocol, sized)
				}
				const rounds = 3
				for range rounds {
					for _, r := range requests {
						status, body := p.ask(r.path, r.body)
						if status != 200 || strings.Contains(r.body, `"stream":true`) != strings.HasSuffix(body, "data: [DONE]\n\n") || strings.Contains(body, `"error"`) {
							t.Fatalf("%s %s: %d %s", r.path, r.body, status, body)
						}
					}
				}
				if n := p.paired(); n != rounds*len(requests) {
					t.Errorf("%d pairs for %d requests", n, rounds*len(requests))
				}
			})
		}
	}
}

// TestN15LegsGoOverWhateverTransportTheirWorkerHas: Infera's serial pairs always
// dial HTTP.
func TestN15LegsGoOverWhateverTransportTheirWorkerHas(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	cfg := natstransport.DefaultConfig()
	cfg.Broker.Server = broker.URL
	tr, err := natstransport.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	overNATS := func(c *simengine.Config) { c.NATS.Server = broker.URL }
	for protocol := range plugins.Connectors {
		for name, edits := range map[string][2]func(*simengine.Config){
			"both over NATS": {overNATS, overNATS}, "prefill over NATS": {overNATS, nil}, "decode over NATS": {nil, overNATS},
		} {
			t.Run(protocol+", "+name, func(t *testing.T) {
				p := newPairs(t, forward.Auto, map[string]forward.Transport{"nats": tr})
				for _, e := range []*simengine.Engine{p.add(fleet.Prefill, protocol, edits[0]), p.add(fleet.Decode, protocol, edits[1])} {
					if ready := e.Subscribed(); ready != nil {
						<-ready
					}
				}
				for _, r := range requests {
					if status, body := p.ask(r.path, r.body); status != 200 || strings.Contains(body, `"error"`) {
						t.Fatalf("%s %s: %d %s", r.path, r.body, status, body)
					}
				}
				if n := p.paired(); n != len(requests) {
					t.Errorf("%d pairs for %d requests", n, len(requests))
				}
			})
		}
	}
}

// TestP10EnginesThatFailCostNoRequest: with one healthy pair left, no client sees
// the other's faults, and no engine is left waiting.
func TestP10EnginesThatFailCostNoRequest(t *testing.T) {
	for _, protocol := range []string{"sglang-bootstrap", "vllm-mooncake", "vllm-mori-write", "vllm-nixl", "vllm-mori-read", "atom-mooncake"} {
		for _, side := range []fleet.Role{fleet.Prefill, fleet.Decode} {
			for _, mode := range []string{"status:500", "status:503", "refuse"} {
				t.Run(fmt.Sprint(protocol, " ", side, " ", mode), func(t *testing.T) {
					p := newPairs(t, forward.Auto, nil)
					p.wasted = side == fleet.Decode
					bad := func(c *simengine.Config) { c.Fault = simengine.Fault{Mode: mode} }
					p.add(fleet.Prefill, protocol, nil)
					p.add(fleet.Decode, protocol, nil)
					p.add(side, protocol, bad)
					// A decode worker's own failure is told: what it was sent may have run.
					told, failed := side == fleet.Decode && mode != "refuse", 0
					for i := range 6 {
						status, body := p.ask(requests[i%4].path, requests[i%4].body)
						if status != http.StatusOK && (!told || status < 500) {
							t.Fatalf("request %d: %d %s", i, status, body)
						}
						if status != 200 {
							failed++
						}
					}
					if failed > 3 {
						t.Errorf("%d requests failed: the worker was not left out", failed)
					}
					if n := p.paired(); n != 6-failed {
						t.Errorf("%d pairs for 6 requests, of which %d failed", n, failed)
					}
				})
			}
		}
	}
}

// TestP12P13DirectMode: what Infera dispatches without the other leg is refused or
// paired here.
func TestP12P13DirectMode(t *testing.T) {
	p := newPairs(t, forward.Direct, nil)
	prefill, decode := p.add(fleet.Prefill, "vllm-mooncake", nil), p.add(fleet.Decode, "vllm-mooncake", nil)
	r := requests[0]
	if status, body := p.ask(r.path, r.body, "X-Worker-Instance-Id", decode.ID(), "X-Prefill-Instance-Id", prefill.ID()); status != 200 {
		t.Errorf("both headers: %d %s", status, body)
	}
	if status, body := p.ask(r.path, r.body); status != 200 {
		t.Errorf("no header: %d %s", status, body)
	}
	if status, body := p.ask(r.path, r.body, "X-Worker-Instance-Id", decode.ID()); status != 503 {
		t.Errorf("a decode worker alone: %d %s", status, body)
	}
	if n := p.paired(); n != 2 {
		t.Errorf("%d pairs, want 2", n)
	}
}

// Mixed workers serve the model when half of its pairs is gone.
func TestMixedWorkersStandIn(t *testing.T) {
	p := newPairs(t, forward.Auto, nil)
	prefill := p.add(fleet.Prefill, "vllm-nixl", nil)
	p.add(fleet.Decode, "vllm-nixl", nil)
	mixed := p.add(fleet.Mixed, "", nil)
	r := requests[1]
	if status, _ := p.ask(r.path, r.body); status != 200 || len(mixed.Receipts()) != 0 {
		t.Errorf("with both halves: %d, %d at the mixed worker", status, len(mixed.Receipts()))
	}
	p.feed.Delete(prefill.ID())
	if status, _ := p.ask(r.path, r.body); status != 200 || len(mixed.Receipts()) != 1 {
		t.Errorf("with one half: %d, %d at the mixed worker", status, len(mixed.Receipts()))
	}
	if n := p.paired(); n != 1 {
		t.Errorf("%d pairs, want 1", n)
	}
}

// TestP10AStormLeavesNothingBehind: engines that fail at random, clients that leave
// at random. No leg waits for its partner's timeout, every reservation comes back,
// and what was completed was paired.
func TestP10AStormLeavesNothingBehind(t *testing.T) {
	for _, protocol := range []string{"sglang-bootstrap", "vllm-mori-write", "vllm-nixl"} {
		t.Run(protocol, func(t *testing.T) {
			p := newPairs(t, forward.Auto, nil)
			faults := []simengine.Fault{{}, {Mode: "status:500", Probability: 0.3}, {Mode: "cut_after:3", Probability: 0.3}}
			for _, f := range faults {
				edit := func(c *simengine.Config) { c.Fault, c.PD.Partner = f, time.Second }
				p.add(fleet.Prefill, protocol, edit)
				p.add(fleet.Decode, protocol, edit)
			}
			var wg sync.WaitGroup
			var ok, bad atomic.Int64
			for i := range 120 {
				wg.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if i%3 == 0 {
						time.AfterFunc(time.Duration(i)*time.Millisecond/4, cancel)
					}
					r := requests[i%len(requests)]
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.door.URL+r.path, strings.NewReader(r.body))
					if err != nil {
						t.Error(err)
						return
					}
					resp, err := http.DefaultClient.Do(req)
					if err != nil {
						bad.Add(1)
						return
					}
					defer resp.Body.Close()
					if _, err := io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode == http.StatusOK {
						ok.Add(1)
					} else {
						bad.Add(1)
					}
				})
			}
			wg.Wait()
			if p.neverMixed() == 0 || ok.Load() < 30 {
				t.Errorf("%d requests went well, %d did not", ok.Load(), bad.Load())
			}
			testkit.Until(t, "all reservations back", func() bool { return len(p.picker.Held(time.Now().Add(time.Hour), 0)) == 0 })
		})
	}
}
