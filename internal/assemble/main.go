package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"pointsman/config"
)

// Main is the main of both programs: settings, parts, then serve until a signal
// and the drain it starts are over. It exits the process on a fault. A second
// signal ends it at once: who asks twice does not want to wait for the drain.
func Main(prog config.Program, serve func(ctx context.Context, core *Core) error) {
	signaled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, drain := context.WithCancel(context.Background())
	context.AfterFunc(signaled, func() {
		stop()
		drain()
	})
	err := program(ctx, prog, os.Args[1:], serve)
	stop()
	if err != nil && !errors.Is(err, config.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", prog, err)
		os.Exit(1)
	}
}

func program(ctx context.Context, prog config.Program, args []string, serve func(ctx context.Context, core *Core) error) error {
	cfg, err := config.Parse(prog, args, os.LookupEnv, os.Stdout)
	if err != nil {
		return err
	}
	tuneGC()
	log := logger(cfg, os.Stderr)
	for _, text := range cfg.Misspelt(os.Environ()) {
		log.LogAttrs(ctx, slog.LevelWarn, "unknown variable", slog.String("detail", text))
	}
	core, err := New(cfg, log) //nolint:contextcheck // it makes parts and starts none
	if err != nil {
		return err
	}
	return serve(ctx, core)
}
