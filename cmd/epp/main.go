// Command epp is the endpoint picker: an Envoy ext-proc server that names the
// worker each request goes to.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"pointsman/config"
	"pointsman/internal/assemble"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := program(ctx, os.Args[1:]); err != nil && !errors.Is(err, config.ErrHelp) {
		fmt.Fprintln(os.Stderr, "epp:", err)
		os.Exit(1)
	}
}

// program returns when ctx is done and all streams have ended.
func program(ctx context.Context, args []string) error {
	cfg, err := config.Parse(config.EPP, args, os.LookupEnv, os.Stdout)
	if err != nil {
		return err
	}
	assemble.TuneGC()
	core, err := assemble.New(cfg, assemble.Logger(cfg, os.Stderr))
	if err != nil {
		return err
	}
	return serve(ctx, core)
}
