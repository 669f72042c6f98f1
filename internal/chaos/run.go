package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"pointsman/internal/history"
	"pointsman/internal/retry"
)

// Config is one run. Start from [DefaultConfig].
type Config struct {
	Bin   string // directory of the programs
	Envoy string // the Envoy binary
	Dir   string // logs are kept here; "" removes them after a run without violations

	Seed   uint64
	Break  time.Duration // for how long things are broken. Default 60 s
	Settle time.Duration // from healing until requests must succeed. Default 10 s
	Judge  time.Duration // for how long they must. Default 5 s
	Rate   float64       // requests per second. Default 12
	Quiet  time.Duration // until the gauges must be zero. Default 1 s
	Limits history.Limits

	Log io.Writer // progress
}

// DefaultConfig returns the run of `make chaos`.
func DefaultConfig() Config {
	return Config{
		Seed: 1, Break: 60 * time.Second, Settle: 10 * time.Second, Judge: 5 * time.Second, Rate: 12,
		Quiet: time.Second, Limits: history.DefaultLimits(), Log: io.Discard,
	}
}

// Report is what a run says.
type Report struct {
	Seed             uint64         `json:"seed"`
	Requests         int            `json:"requests"`
	Succeeded        int            `json:"succeeded"`
	Faults           map[string]int `json:"faults"`
	Violations       map[string]int `json:"violations"` // by invariant
	SuccessAfterHeal float64        `json:"success_after_heal"`
}

// startTime bounds the start of a fleet.
const startTime = 2 * time.Minute

// Run breaks a fleet by the schedule of a seed and returns what it made of it.
// The error is about the run itself; violations are in the report, and in the
// log with their details.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	dir, remove, err := logDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	report, err := run(ctx, cfg, dir)
	if err != nil {
		return nil, fmt.Errorf("chaos, seed %d, logs in %s: %w", cfg.Seed, dir, err)
	}
	if len(report.Violations) > 0 || !remove {
		fmt.Fprintf(cfg.Log, "logs in %s\n", dir)
		return report, nil
	}
	return report, os.RemoveAll(dir)
}

func logDir(dir string) (string, bool, error) {
	if dir != "" {
		return dir, false, os.MkdirAll(dir, 0o750)
	}
	dir, err := os.MkdirTemp("", "pointsman-chaos-")
	return dir, true, err
}

func run(ctx context.Context, cfg Config, dir string) (report *Report, err error) {
	starting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	f, err := startFleet(starting, cfg.Bin, cfg.Envoy, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h, kinds, err := f.record(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return judge(h, kinds, cfg), nil
}

// record runs the load and the schedule and gathers the history.
func (f *fleet) record(ctx context.Context, cfg Config) (*history.History, map[string]int, error) {
	plan := Draw(cfg.Seed, cfg.Break, f.roles(), len(f.EPPs))
	fmt.Fprintf(cfg.Log, "seed %d:\n%s", cfg.Seed, plan)
	kinds := map[string]int{}
	for _, s := range plan {
		kinds[string(s.Kind)]++
	}
	h := &history.History{Workers: f.workers()}
	before, err := f.counted(ctx)
	if err != nil {
		return nil, nil, err
	}
	load := newLoad(f.URL, fmt.Sprintf("c%d", cfg.Seed), []string{mixedModel, pairModel}, cfg.Seed)
	b := &breakage{f: f, load: load, out: cfg.Log}

	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { load.run(loading, cfg.Rate) })
	parts.Go(func() { h.Samples, h.Picks = f.sample(loading) })
	b.run(ctx, plan, time.Now())
	h.Healed = time.Now()
	h.Settled = h.Healed.Add(cfg.Settle)
	retry.Sleep(ctx, cfg.Settle+cfg.Judge)
	h.End = time.Now()
	stopLoad()
	parts.Wait()
	h.Requests = load.done()
	h.Faults = b.faults
	if err = errors.Join(append(b.errs, ctx.Err())...); err != nil {
		return nil, nil, err
	}
	if h.Gauges, err = f.quiet(ctx, cfg.Quiet); err != nil {
		return nil, nil, err
	}
	after, err := f.counted(ctx)
	if err != nil {
		return nil, nil, err
	}
	h.Counted = after - before
	retry.Sleep(ctx, cfg.Limits.Abort) // what must have ended by then has
	h.Receipts, err = f.allReceipts(ctx)
	return h, kinds, err
}

// detail is how many violations of one invariant are told in full.
const detail = 8

// judge checks h and tells what is wrong.
func judge(h *history.History, kinds map[string]int, cfg Config) *Report {
	found := history.Check(h, cfg.Limits)
	r := &Report{Seed: cfg.Seed, Requests: len(h.Requests), Faults: kinds, Violations: map[string]int{}}
	for i := range h.Requests {
		if h.Requests[i].OK() {
			r.Succeeded++
		}
	}
	if ok, all := history.AfterHeal(h); all > 0 {
		r.SuccessAfterHeal = float64(ok) / float64(all)
	}
	for name, list := range found {
		r.Violations[name] = len(list)
		for _, one := range list[:min(detail, len(list))] {
			fmt.Fprintf(cfg.Log, "%s: %s\n", name, one)
		}
	}
	return r
}
