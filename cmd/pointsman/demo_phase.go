package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// demonstration is the state that the demo's two runs share.
type demonstration struct {
	cfg  demoConfig
	plan *traffic.Plan
	view *view
}

// phase is one run of the plan.
type phase struct {
	name, policy string
	weight       float64
	kill, stay   bool
	loaded       bool // the engines are slow
}

// outcome is what a run showed.
type outcome struct {
	phase   phase
	results []traffic.Result
	summary traffic.Summary
	ceiling float64
	victim  string    // ID of the killed worker
	killed  time.Time // zero when nobody was
	blind   []string  // living engines whose cache events the EPP did not follow
	carried *float64  // requests that the broker carried; nil without one
	pairing *pairing  // of a fleet of pairs; else nil
}

// phase starts a fleet with empty caches, runs the plan against it, and stops it.
func (d *demonstration) phase(ctx context.Context, p phase) (result outcome, err error) {
	s, err := d.start(ctx, p)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if d.plan.PromptTokens() == 0 {
		if err = d.plan.Tokenize(ctx, tokenizer(s.Workers[0].URL)); err != nil {
			return outcome{}, err
		}
	}
	if result, err = d.drive(ctx, p, s); err != nil {
		return outcome{}, err
	}
	result.phase = p
	if err = d.inspect(ctx, s, &result); err != nil {
		return outcome{}, err
	}
	d.view.summary(p.name, &result)
	if p.stay {
		d.stay(ctx, s)
	}
	return result, nil
}

// inspect asks the programs, behind the clients' backs, how a run went.
func (d *demonstration) inspect(ctx context.Context, s *stack.Stack, o *outcome) error {
	var err error
	if o.blind, err = unfollowed(ctx, s, o.victim); err != nil {
		return err
	}
	if d.cfg.fleet == natsFleet {
		if o.carried, err = overBroker(ctx, s); err != nil {
			return err
		}
	}
	if d.cfg.fleet != pdFleet {
		return nil
	}
	legs, err := legsOf(ctx, s, o.victim)
	if err != nil {
		return err
	}
	p := pair(legs, o.results, o.victim)
	o.pairing, o.summary.HitRatio = &p, p.hit
	return nil
}

// overBroker returns how many requests the forwarders sent through the broker.
func overBroker(ctx context.Context, s *stack.Stack) (*float64, error) {
	n := 0.0
	for _, w := range s.Workers {
		m, err := s.Metrics(ctx, w.ForwarderAdmin)
		if err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
		n += m.Sum("pointsman_nats_requests_total", map[string]string{"outcome": "answered"})
	}
	return &n, nil
}

// drive sends the plan, shows what happens, and kills an engine where the phase
// wants it.
func (d *demonstration) drive(ctx context.Context, p phase, s *stack.Stack) (outcome, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	t := newTracker(d.plan.Len(), s.Workers)
	t.elsewhere = d.cfg.fleet == pdFleet
	watched := make(chan struct{})
	go func() { defer close(watched); d.view.watch(running, p.name, t, s) }()
	var result outcome
	struck := make(chan error, 1)
	if p.kill {
		go func() { struck <- d.strike(running, t, s, &result) }()
	} else {
		struck <- nil
	}

	driver := traffic.Driver{URL: s.URL, Model: stack.DefaultModel, Observer: t.observer()}
	results := driver.Run(running, d.plan)
	stop()
	<-watched
	if err := <-struck; err != nil {
		return outcome{}, err
	}
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
	}
	result.results = results
	result.summary = traffic.Summarize(results)
	result.ceiling = traffic.CeilingOf(results, demoBlock)
	return result, nil
}

// start brings up the fleet of a phase.
func (d *demonstration) start(ctx context.Context, p phase) (*stack.Stack, error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not up within %v", startPatience))
	defer cancel()
	cfg := stack.Config{
		Bin: d.cfg.bin, Envoy: d.cfg.envoy,
		Policy: p.policy, OverlapWeight: p.weight,
	}
	d.cfg.fleet.dress(&cfg, d.cfg.workers, p.loaded)
	if d.cfg.override {
		cfg.Bootstrap = stack.OverrideHost
	}
	if d.cfg.logs != "" {
		cfg.Dir = filepath.Join(d.cfg.logs, p.name)
	}
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	d.view.say("%s: up in %.1f s, Envoy at %s", p.name, time.Since(begin).Seconds(), s.URL)
	return s, nil
}

// strike kills the engine that is answering most streams, once enough of the
// plan has been sent. Its forwarder stays.
func (d *demonstration) strike(ctx context.Context, t *tracker, s *stack.Stack, result *outcome) error {
	victim := t.waitForVictim(ctx, int(killAfter*float64(d.plan.Len())))
	if victim == "" {
		return nil // the run ended before: judged by its outcome
	}
	for _, w := range s.Workers {
		if w.ID == victim {
			result.victim, result.killed = victim, time.Now()
			w.Engine.Kill()
			t.lost(victim)
			return nil
		}
	}
	return fmt.Errorf("no engine is called %q, as the answers' header %s says", victim, traffic.WorkerHeader)
}

// exactMode is pointsman_kvindex_mode of a worker whose cache events arrive.
const exactMode = 2

// unfollowed returns the engines but the victim whose caches the EPP knows from
// its own predictions only.
func unfollowed(ctx context.Context, s *stack.Stack, victim string) ([]string, error) {
	m, err := s.Metrics(ctx, s.EPPs[0].Admin)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	var blind []string
	for _, w := range s.Workers {
		if w.ID != victim && m.Sum("pointsman_kvindex_mode", map[string]string{"worker_id": w.ID}) != exactMode {
			blind = append(blind, w.ID)
		}
	}
	return blind, nil
}

// stay leaves the fleet up until ctx is done.
func (d *demonstration) stay(ctx context.Context, s *stack.Stack) {
	d.view.say("still up; Ctrl-C ends it. Try:\n"+
		"  curl -N %s/v1/chat/completions -H 'content-type: application/json' -d '{\"model\":\"%s\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'\n"+
		"  pointsman explain --url %s\n"+
		"  pointsman fleet --url %s\n"+
		"  logs: %s", s.URL, stack.DefaultModel, s.EPPs[0].Admin, s.Workers[0].ForwarderURL, s.Dir)
	<-ctx.Done()
}

// tokenizer asks an engine for the token ids of a chat, as vLLM's /tokenize does.
func tokenizer(engine string) func(context.Context, []traffic.Message) ([]uint32, error) {
	return func(ctx context.Context, messages []traffic.Message) ([]uint32, error) {
		body, err := json.Marshal(map[string]any{"model": stack.DefaultModel, "messages": messages})
		if err != nil {
			return nil, fmt.Errorf("tokenize: %w", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, engine+"/tokenize", bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("tokenize: %w", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, fmt.Errorf("tokenize: %w", err)
		}
		defer resp.Body.Close()
		var answer struct {
			Tokens []uint32 `json:"tokens"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Tokens) == 0 {
			return nil, fmt.Errorf("tokenize: %s, %d tokens: %w", resp.Status, len(answer.Tokens), err)
		}
		return answer.Tokens, nil
	}
}
