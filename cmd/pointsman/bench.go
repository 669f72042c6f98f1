package main

import (
	"context"
	"fmt"
	"io"

	"pointsman/internal/bench"
)

// benchmark is one measurement.
type benchmark struct {
	name, short string
	run         func(ctx context.Context, args []string, out, log io.Writer) error
}

func benchmarks() []benchmark {
	return []benchmark{
		{"index", "the prefix index on a trace", bench.Index},
		{"extproc", "the EPP under an Envoy-like client, beside a reference server", bench.ExtProc},
		{"idle", "an EPP with 200 idle workers, and what a response token costs it", bench.Idle},
		{"pick", "one pick at 8, 200 and 1,000 workers", bench.Pick},
		{"tokens", "the tokenizers beside PyPI tokenizers; needs python3 and npm", bench.Tokens},
		{"forward", "the forwarder beside a direct connection and a reference proxy", bench.Forward},
		{"scale", "1, 2, 4 and 8 replicas of the picker on one fleet, with load reports over a real broker", bench.Scale},
		{"nats", "requests over NATS beside HTTP, to one instant worker", bench.NATS},
	}
}

// benchCommand runs the measurement that args name.
func benchCommand(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 {
		for _, b := range benchmarks() {
			if b.name == args[0] {
				return b.run(ctx, args[1:], out, log)
			}
		}
	}
	_, err := fmt.Fprint(out, "bench measures a part of the product and prints one JSON object as its last line.\n\nusage: pointsman bench <what> [flags]\n\n")
	for _, b := range benchmarks() {
		if err == nil {
			_, err = fmt.Fprintf(out, "  %-8s %s\n", b.name, b.short)
		}
	}
	if err == nil && len(args) > 0 && args[0] != "-h" && args[0] != "--help" && args[0] != "help" {
		err = fmt.Errorf("no measurement %q", args[0])
	}
	return err
}
