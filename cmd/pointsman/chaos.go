package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"pointsman/internal/bench"
	"pointsman/internal/chaos"
	"pointsman/internal/stack"
)

const chaosText = `chaos runs three prefill, three decode and two mixed engines with their
forwarders, Envoy, two EPPs, NATS and etcd on this machine, breaks parts of them
by a schedule drawn from the seed, and checks what clients, engines and metrics
say against the invariants I1 to I12 of fail-over (docs/failover.md).

Its last line is a JSON object. It exits 0 only if no invariant was broken.`

// chaosFlags adds what chaos and soak have in common.
func chaosFlags(fs *pflag.FlagSet, cfg *chaos.Config) {
	fs.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of the schedule and of the requests")
	fs.Float64Var(&cfg.Rate, "rate", cfg.Rate, "requests per second")
	fs.StringVar(&cfg.Bin, "bin", ownDirectory(), "directory of epp, forwarder and simworker")
	fs.StringVar(&cfg.Envoy, "envoy", "", "Envoy binary; empty looks into .tools beside the directory of the programs")
	fs.StringVar(&cfg.Dir, "logs", "", "keep the processes' logs in this directory")
}

// findEnvoy fills in where Envoy is.
func findEnvoy(cfg *chaos.Config) (err error) {
	if cfg.Envoy == "" {
		cfg.Envoy, err = stack.FindEnvoy(filepath.Dir(filepath.Clean(cfg.Bin)))
	}
	return err
}

func chaosCommand(ctx context.Context, args []string, out, log io.Writer) error {
	cfg := chaos.DefaultConfig()
	cfg.Log = log
	seconds := cfg.Break.Seconds()
	fs := newFlags("chaos", chaosText, out)
	chaosFlags(fs, &cfg)
	fs.Float64Var(&seconds, "seconds", seconds, "for how long things are broken")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	if err := findEnvoy(&cfg); err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	cfg.Break = secondsOf(seconds)
	report, err := chaos.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if err := bench.PrintJSON(out, report); err != nil {
		return err
	}
	if len(report.Violations) > 0 {
		return errors.New("chaos: invariants were broken")
	}
	return nil
}

const soakText = `soak does what chaos does, round after round on one fleet, and after each round
looks at what the EPPs and the forwarders still hold: gauges of requests in
flight, queued and reserved must be zero within a second of quiet, goroutines,
descriptors and the heap where they were after the first round.

Its last line is a JSON object. It exits 0 only if nothing leaked and no invariant
was broken.`

func soakCommand(ctx context.Context, args []string, out, log io.Writer) error {
	cfg := chaos.DefaultConfig()
	cfg.Log = log
	minutes := 10.0
	fs := newFlags("soak", soakText, out)
	chaosFlags(fs, &cfg)
	fs.Float64Var(&minutes, "minutes", minutes, "for how long")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	if err := findEnvoy(&cfg); err != nil {
		return fmt.Errorf("soak: %w", err)
	}
	cfg.Break = secondsOf(60 * minutes)
	report, err := chaos.Soak(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(bench.PrintJSON(out, report), report.Failed())
}
