package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"pointsman/admission"
	"pointsman/internal/lab"
	"pointsman/picker"
)

const replayText = `replay sends a trace of requests through the picker, the index, the gate and the breaker of
this build, against simulated engines in virtual time, and shows what each policy would do.
Equal flags give equal numbers. See docs/replay.md.`

// replayOptions is what the command line of replay says.
type replayOptions struct {
	tracePaths []string
	generate   string
	read       lab.ReadConfig
	requests   int
	burst      lab.Burst

	setup        lab.Setup
	cachePercent float64
	policies     []lab.Policy
	loads        []float64
	floor        lab.Policy

	sloSeconds, sloShare float64
	capacity             bool

	json, html string
	goals      bool
	fit        string
	parallel   int
}

// replayWords are flags whose text has yet to be understood.
type replayWords struct {
	policies, floor, preset, slow, fail, burst, mode string
	loads                                            []float64
	cacheBlocks                                      int
	rate                                             float64
}

// parseReplay understands the command line.
func parseReplay(args []string, out io.Writer) (*replayOptions, error) {
	o := &replayOptions{read: lab.DefaultReadConfig(), setup: lab.DefaultSetup()}
	w := &replayWords{}
	fs := newFlags("replay", replayText, out)
	traceFlags(fs, o, w)
	fleetFlags(fs, o, w)
	latencyFlags(fs, o)
	engine := engineFlags(fs, o, w)
	outputFlags(fs, o)
	if err := parseFlags(fs, args); err != nil {
		return nil, err
	}
	if err := engine(fs); err != nil {
		return nil, err
	}
	if err := w.apply(o); err != nil {
		return nil, err
	}
	check := o.setup
	return o, check.Validate()
}

func traceFlags(fs *pflag.FlagSet, o *replayOptions, w *replayWords) {
	fs.StringSliceVar(&o.tracePaths, "trace", nil, "file of requests; with --goals several, with commas between")
	fs.StringVar(&o.read.Format, "format", lab.FormatAuto, "of the trace: "+strings.Join(lab.Formats(), ", "))
	fs.StringVar(&o.generate, "generate", "", "draw the trace instead: "+strings.Join(lab.Kinds(), ", ")+" (default "+lab.Conversations+" without --trace)")
	fs.IntVar(&o.requests, "requests", 0, "read no more than so many requests, or draw so many (0: all of a file, 4000 drawn)")
	fs.IntVar(&o.read.Block, "block-tokens", o.read.Block, "tokens of a block: what one hash id of a Mooncake trace stands for")
	fs.DurationVar(&o.read.Jitter, "jitter", o.read.Jitter, "let each request come up to so much later, at random (-1ns: by how coarse the trace's clock is)")
	fs.Float64Var(&o.read.Warm, "warm", o.read.Warm, "share of the first requests, which fill the caches and are not measured")
	fs.Uint64Var(&o.setup.Seed, "seed", 1, "of all that is random")
	fs.StringVar(&w.burst, "burst", "", "add a crowd: REQUESTS@START/OVER,SHARED+OWN tokens, as 400@30m/2s,8192+512; START is in the trace's own time")
}

func fleetFlags(fs *pflag.FlagSet, o *replayOptions, w *replayWords) {
	s := &o.setup
	fs.StringVar(&w.policies, "policies", strings.Join([]string{lab.Ours, lab.InferaW20, lab.InferaW1}, ","), "policies to compare, with commas between: "+strings.Join(lab.PolicyNames(), ", ")+", kv-aware=WEIGHT")
	fs.Float64SliceVar(&w.loads, "loads", []float64{50, 70, 85, 95}, "loads to replay at, in percent of what the fleet serves when flooded")
	fs.Float64Var(&w.rate, "rate", 0, "requests per second instead of --loads")
	fs.StringVar(&w.floor, "floor", "", "policy whose throughput when flooded is 100 % load (default "+lab.DynamoFor+")")
	fs.IntVar(&s.Workers, "workers", s.Workers, "engines")
	fs.Float64Var(&o.cachePercent, "cache-pct", 30, "blocks of all caches together, in percent of the different blocks of the trace")
	fs.IntVar(&w.cacheBlocks, "cache-blocks", 0, "blocks of each engine's cache, instead of --cache-pct")
	fs.StringVar(&w.slow, "slow", "", "engines that are slower: WORKERxFACTOR or WORKERxFACTOR@FROM, with commas between, as 7x10,3x2@10m")
	fs.StringVar(&w.fail, "fail", "", "engines that die: WORKER@FROM+FOR, with commas between, as 2@5m+30s")
	fs.Float64Var(&s.Loss, "event-loss", 0, "share of the KV events that never come, 0 to 1")
	fs.DurationVar(&s.EventLag, "event-lag", s.EventLag, "how late KV events reach the routers")
	fs.DurationVar(&s.Notice, "notice-lag", s.Notice, "how late first tokens and ends reach the routers")
	fs.IntVar(&s.Routers, "routers", 1, "pickers that share the fleet, each with its part of the requests")
	fs.DurationVar(&s.ReportInterval, "report-interval", 0, "how often each worker's forwarder reports its load to the routers (0: never)")
	fs.IntVar(&s.Picker.WorkerCap, "worker-cap", 0, "requests in flight on one worker (0: no limit)")
	fs.StringVar(&w.mode, "fc-mode", "off", "of the gate: off, observe or enforce")
	fs.IntVar(&s.Admission.MaxOutstanding, "fc-max-outstanding", 0, "requests that run at once (0: no limit)")
	fs.IntVar(&s.Admission.QueueDepth, "fc-max-queue-depth", 0, "requests that may wait at the gate")
	fs.DurationVar(&s.Admission.QueueWait, "fc-max-queue-wait", s.Admission.QueueWait, "for how long they may")
}

// latencyFlags declares the tuning of policy least-latency: the flags that the programs
// have, with their ranges.
func latencyFlags(fs *pflag.FlagSet, o *replayOptions) {
	l := &o.setup.Picker.Latency
	*l = picker.DefaultLatency()
	for _, f := range l.Fields() {
		fs.Float64Var(f.Value, "latency-"+f.Name, *f.Value, fmt.Sprintf("least-latency: %s (%g to %g)", f.Usage, f.Min, f.Max))
	}
}

// engineFlags declares the engine's constants; the function it returns takes those
// that were given, over the preset's.
func engineFlags(fs *pflag.FlagSet, o *replayOptions, w *replayWords) func(*pflag.FlagSet) error {
	var given lab.Engine
	d := o.setup.Engine
	fs.StringVar(&w.preset, "engine", lab.DefaultPreset, "constants of the engines: "+strings.Join(lab.Presets(), ", "))
	fs.Float64Var(&given.Rate, "engine-rate", d.Rate, "prompt tokens per millisecond at position 0")
	fs.DurationVar(&given.Step, "engine-step", d.Step, "fixed cost of a step")
	fs.DurationVar(&given.PerDecoder, "engine-per-decoder", d.PerDecoder, "cost of a decoding sequence in a step")
	fs.DurationVar(&given.PerContext, "engine-per-context", d.PerContext, "cost of a token of their contexts in a step")
	fs.Float64Var(&given.Doubling, "engine-doubling", d.Doubling, "position at which a prompt token costs twice as much (0: never)")
	fs.IntVar(&given.ChunkTokens, "engine-chunk", d.ChunkTokens, "tokens of a step, prompts' and decoded ones")
	fs.IntVar(&given.MaxSeqs, "engine-seqs", d.MaxSeqs, "sequences that run at once")
	return func(fs *pflag.FlagSet) error {
		e, err := lab.Preset(w.preset)
		if err != nil {
			return err
		}
		for name, take := range map[string]func(){
			"engine-rate": func() { e.Rate = given.Rate }, "engine-step": func() { e.Step = given.Step },
			"engine-per-decoder": func() { e.PerDecoder = given.PerDecoder }, "engine-per-context": func() { e.PerContext = given.PerContext },
			"engine-doubling": func() { e.Doubling = given.Doubling }, "engine-chunk": func() { e.ChunkTokens = given.ChunkTokens },
			"engine-seqs": func() { e.MaxSeqs = given.MaxSeqs },
		} {
			if fs.Changed(name) {
				take()
			}
		}
		o.setup.Engine = e
		return nil
	}
}

func outputFlags(fs *pflag.FlagSet, o *replayOptions) {
	fs.BoolVar(&o.capacity, "capacity", false, "find each policy's SLO capacity, too: some ten more runs for each")
	fs.Float64Var(&o.sloSeconds, "slo-ttft-s", 3, "SLO: time to first token, in seconds")
	fs.Float64Var(&o.sloShare, "slo-share", 0.9, "SLO: share of the requests that keep it")
	fs.StringVar(&o.json, "json", "", "write everything as JSON to this file; - for standard output, instead of the table")
	fs.StringVar(&o.html, "html", "", "write a report with plots to this file")
	fs.BoolVar(&o.goals, "goals", false, "run the comparison of docs/replay.md's goals instead; JSON as the last line, the missed ones before it")
	fs.StringVar(&o.fit, "fit", "", "print the engine constants that a worker's /metrics (http://…) or a forwarder's log (file) show, and do nothing else")
	fs.IntVar(&o.parallel, "parallel", 0, "runs at once (0: one for each processor)")
}

// apply understands the words.
func (w *replayWords) apply(o *replayOptions) error {
	for word := range strings.SplitSeq(w.policies, ",") {
		p, err := lab.ParsePolicy(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		o.policies = append(o.policies, p)
	}
	if w.floor == "" {
		w.floor = lab.DynamoFor
	}
	var err error
	if o.floor, err = lab.ParsePolicy(w.floor); err != nil {
		return err
	}
	mode, err := admission.ParseMode(w.mode)
	if err != nil {
		return fmt.Errorf("--fc-mode %w", err)
	}
	o.setup.Admission.Mode = mode
	o.loads, o.setup.Rate = w.loads, w.rate
	if w.rate > 0 {
		o.loads = nil
	}
	for _, load := range w.loads {
		if !(load > 0 && load <= 1000) {
			return fmt.Errorf("--loads %g: give more than 0 percent, up to 1000", load)
		}
	}
	if w.cacheBlocks < 0 || !(o.cachePercent > 0 && o.cachePercent <= 10_000) {
		return errors.New("cache: give --cache-blocks of at least 1, or --cache-pct of more than 0, up to 10000")
	}
	if o.setup.CacheBlocks = w.cacheBlocks; w.cacheBlocks > 0 {
		o.cachePercent = 0
	} else {
		o.setup.CacheBlocks = 1 // until the trace is known
	}
	return errors.Join(w.applySlow(o), w.applyFail(o), w.applyBurst(o))
}

func (w *replayWords) applySlow(o *replayOptions) error {
	for word := range strings.SplitSeq(w.slow, ",") {
		if word == "" {
			continue
		}
		what, from, timed := strings.Cut(word, "@")
		worker, factor, ok := strings.Cut(what, "x")
		n, err := strconv.Atoi(worker)
		f, err2 := strconv.ParseFloat(factor, 64)
		var start time.Duration
		var err3 error
		if timed {
			start, err3 = time.ParseDuration(from)
		}
		if !ok || errors.Join(err, err2, err3) != nil {
			return fmt.Errorf("--slow %q: want WORKERxFACTOR or WORKERxFACTOR@FROM, as 7x10@10m", word)
		}
		o.setup.Slow = append(o.setup.Slow, lab.Slowness{Worker: n, Factor: f, From: start})
	}
	return nil
}

func (w *replayWords) applyFail(o *replayOptions) error {
	for word := range strings.SplitSeq(w.fail, ",") {
		if word == "" {
			continue
		}
		worker, when, _ := strings.Cut(word, "@")
		from, length, _ := strings.Cut(when, "+")
		n, err := strconv.Atoi(worker)
		start, err2 := time.ParseDuration(from)
		during, err3 := time.ParseDuration(length)
		if errors.Join(err, err2, err3) != nil {
			return fmt.Errorf("--fail %q: want WORKER@FROM+FOR, as 2@5m+30s", word)
		}
		o.setup.Failures = append(o.setup.Failures, lab.Failure{Worker: n, From: start, For: during})
	}
	return nil
}

func (w *replayWords) applyBurst(o *replayOptions) error {
	if w.burst == "" {
		return nil
	}
	b := &o.burst
	who, tokens, _ := strings.Cut(w.burst, ",")
	count, when, _ := strings.Cut(who, "@")
	from, over, _ := strings.Cut(when, "/")
	shared, own, _ := strings.Cut(tokens, "+")
	var errs [5]error
	b.Requests, errs[0] = strconv.Atoi(count)
	b.At, errs[1] = time.ParseDuration(from)
	b.Over, errs[2] = time.ParseDuration(over)
	b.Shared, errs[3] = strconv.Atoi(shared)
	b.Own, errs[4] = strconv.Atoi(own)
	b.Output = 100
	if errors.Join(errs[:]...) != nil {
		return fmt.Errorf("--burst %q: want REQUESTS@START/OVER,SHARED+OWN, as 400@30m/2s,8192+512", w.burst)
	}
	return nil
}

// traces reads or draws what is to be replayed.
func (o *replayOptions) traces() ([]*lab.Trace, error) {
	var traces []*lab.Trace
	o.read.Requests, o.read.Seed = o.requests, o.setup.Seed
	for _, path := range o.tracePaths {
		t, err := lab.ReadTraceFile(path, o.read)
		if err != nil {
			return nil, err
		}
		traces = append(traces, t)
	}
	if o.generate != "" || len(traces) == 0 {
		cfg := lab.DefaultGenerateConfig()
		cfg.Seed, cfg.Block, cfg.Warm = o.setup.Seed, o.read.Block, o.read.Warm
		if o.generate != "" {
			cfg.Kind = o.generate
		}
		if o.requests > 0 {
			cfg.Requests = o.requests
		}
		t, err := lab.Generate(cfg)
		if err != nil {
			return nil, err
		}
		traces = append(traces, t)
	}
	if o.burst.Requests > 0 {
		for i, t := range traces {
			var err error
			if traces[i], err = lab.WithBurst(t, o.burst, 0); err != nil {
				return nil, err
			}
		}
	}
	return traces, nil
}
