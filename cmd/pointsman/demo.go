package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
	"pointsman/picker"
)

// demoConfig is what the demo can be told.
type demoConfig struct {
	bin, envoy, trace, logs string
	fleet                   fleetKind
	policy                  string
	seed                    uint64
	requests, workers       int
	over                    time.Duration
	stay, override          bool
}

const demoText = `demo runs Envoy, the EPP, forwarders, simulated engines and etcd on this machine,
and sends generated conversations through Envoy twice: first with the EPP in
round-robin, then kv-aware, with fresh caches each time. In the middle of the
second run it kills an engine that is answering. With --policy least-latency it
is measured under load against kv-aware at its default weight, with a kill in
both runs.

Its last line is a JSON object. It exits 0 only if every request was answered,
or was a stream of the killed engine that ended in exactly one error event; if
the engines' caches were hit at least 0.8 times as often as a single unbounded
cache would have been (0.7 under load); and if the median time to first token was
below round-robin's, or under load the 90th percentile below kv-aware's.`

// Shares and times of the demo.
const (
	demoBlock     = 16   // tokens per KV block of the demo's engines
	demoWeight    = 20   // --kv-overlap-weight: at 1 load outweighs the cache
	seedWeight    = 1    // the default of it, as in Infera
	killAfter     = 0.45 // share of the requests sent before the kill
	minHitShare   = 0.8  // of the ceiling
	minLoadedHits = 0.7  // the same under load: who waits for the cache waits in a queue
	startPatience = 60 * time.Second

	loadedRequests = 800 // of each run under load: its 90th percentile is of 80 requests
	loadedOver     = 40 * time.Second
)

func demo(ctx context.Context, args []string, out, log io.Writer) error {
	cfg, err := parseDemo(args, out)
	if err != nil {
		return err
	}
	plan, err := cfg.plan()
	if err != nil {
		return err
	}
	d := &demonstration{cfg: cfg, plan: plan, view: newView(log)}
	d.view.say("%d requests in %d conversations, %d engines, seed %d", plan.Len(), len(plan.Conversations), cfg.workers, cfg.seed)

	first, second := cfg.phases()
	baseline, err := d.phase(ctx, first)
	if err != nil {
		return err
	}
	shown, err := d.phase(ctx, second)
	if err != nil {
		return err
	}
	report, faults := judge(baseline, shown)
	line, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return errors.Join(faults...)
}

func parseDemo(args []string, out io.Writer) (demoConfig, error) {
	load := traffic.DefaultGenerateConfig()
	cfg := demoConfig{
		bin: ownDirectory(), seed: load.Seed, requests: load.Requests, over: load.Over, workers: 6,
		stay: os.Getenv("STAY") != "" && os.Getenv("STAY") != "0", trace: os.Getenv("TRACE"),
		fleet:  cmp.Or(fleetKind(os.Getenv("FLEET")), httpFleet),
		policy: cmp.Or(os.Getenv("POLICY"), picker.KVAware),
	}
	fs := newFlags("demo", demoText, out)
	fs.Uint64Var(&cfg.seed, "seed", cfg.seed, "of the conversations; the same seed sends the same bytes")
	fs.StringVar(&cfg.trace, "trace", cfg.trace, "replay this Mooncake JSONL trace instead of generated conversations [TRACE]")
	fs.BoolVar(&cfg.stay, "stay", cfg.stay, "stay up after the run, until interrupted [STAY]")
	fs.IntVar(&cfg.requests, "requests", cfg.requests, "requests in each of the two runs")
	fs.DurationVar(&cfg.over, "over", cfg.over, "time over which conversations start")
	fs.StringVar((*string)(&cfg.fleet), "fleet", string(cfg.fleet), "http, nats or pd [FLEET]")
	fs.StringVar(&cfg.policy, "policy", cfg.policy, "kv-aware or least-latency [POLICY]")
	fs.IntVar(&cfg.workers, "workers", cfg.workers, "simulated engines, vLLM's and SGLang's event encoding in turn; half of them prefill in pd")
	fs.BoolVar(&cfg.override, "override-host", false, "use the override_host bootstrap instead of ORIGINAL_DST")
	fs.StringVar(&cfg.bin, "bin", cfg.bin, "directory of epp, forwarder and simworker")
	fs.StringVar(&cfg.envoy, "envoy", "", "Envoy binary; empty looks into .tools beside the directory of the programs")
	fs.StringVar(&cfg.logs, "logs", "", "keep the processes' logs in this directory")
	if err := parseFlags(fs, args); err != nil {
		return cfg, err
	}
	if cfg.loaded() {
		for flag, set := range map[string]func(){
			"requests": func() { cfg.requests = loadedRequests },
			"over":     func() { cfg.over = loadedOver },
		} {
			if !fs.Changed(flag) {
				set()
			}
		}
	}
	if err := cfg.fleet.validate(cfg.workers); err != nil {
		return cfg, err
	}
	if cfg.policy != picker.KVAware && cfg.policy != picker.LeastLatency {
		return cfg, fmt.Errorf("--policy %q: give %s or %s", cfg.policy, picker.KVAware, picker.LeastLatency)
	}
	if cfg.envoy == "" {
		var err error
		if cfg.envoy, err = stack.FindEnvoy(filepath.Dir(filepath.Clean(cfg.bin))); err != nil {
			return cfg, fmt.Errorf("demo: %w", err)
		}
	}
	return cfg, nil
}

// loaded says that engines are so slow that queues matter.
func (c *demoConfig) loaded() bool { return c.policy == picker.LeastLatency }

// phases returns the run to compare with and the run that is shown.
func (c *demoConfig) phases() (baseline, shown phase) {
	if c.loaded() {
		return phase{name: picker.KVAware, policy: picker.KVAware, weight: seedWeight, kill: true, loaded: true},
			phase{name: c.policy, policy: c.policy, kill: true, loaded: true, stay: c.stay}
	}
	return phase{name: picker.RoundRobin, policy: picker.RoundRobin},
		phase{name: c.policy, policy: c.policy, weight: demoWeight, kill: true, stay: c.stay}
}

// ownDirectory is where this program is: the others are beside it.
func ownDirectory() string {
	self, err := os.Executable()
	if err != nil {
		return "bin"
	}
	return filepath.Dir(self)
}

// plan generates the requests, or reads them from the trace.
func (c *demoConfig) plan() (*traffic.Plan, error) {
	if c.trace == "" {
		load := traffic.DefaultGenerateConfig()
		load.Seed, load.Requests, load.Over = c.seed, c.requests, c.over
		return traffic.Generate(load)
	}
	file, err := os.Open(c.trace) //nolint:gosec // the file that the user names
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer file.Close()
	load := traffic.DefaultTraceConfig()
	load.Seed, load.Requests, load.Over = c.seed, c.requests, c.over
	return traffic.ReadTrace(file, load)
}
