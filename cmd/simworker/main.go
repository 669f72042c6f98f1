// Command simworker is a simulated inference engine: a real-protocol stand-in
// for a vLLM or SGLang worker that needs no GPU.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"pointsman/internal/simengine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "simworker:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done, then drains. It prints one line of JSON that
// describes the worker to stdout as soon as its ports are bound.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	opts.engine.Log = slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: opts.level}))
	// The engine outlives the signal: it drains first.
	e, err := simengine.Start(context.WithoutCancel(ctx), opts.engine)
	if err != nil {
		return err
	}
	endRelay, err := startRelay(context.WithoutCancel(ctx), opts, e)
	if err != nil {
		return errors.Join(err, e.Close()) //nolint:contextcheck // ending does not depend on ctx
	}
	defer endRelay() // after the drain: the last blocks are told of, too
	if err := announce(stdout, e); err != nil {
		return errors.Join(err, e.Close()) //nolint:contextcheck // ending does not depend on ctx
	}
	<-ctx.Done()
	opts.engine.Log.LogAttrs(context.WithoutCancel(ctx), slog.LevelInfo, "draining", slog.String("worker_id", e.ID()))
	return e.Drain(context.WithoutCancel(ctx))
}

// startRelay starts the relay of KV events, if there is to be one, and returns
// what ends it.
func startRelay(ctx context.Context, opts options, e *simengine.Engine) (end func(), err error) {
	if opts.relay.Server == "" {
		return func() {}, nil
	}
	cfg := opts.relay
	cfg.WorkerID, cfg.Events, cfg.Log = e.ID(), e.KVEvents(), opts.engine.Log
	r, err := simengine.StartRelay(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return r.Close, nil
}
