// Command pointsman is what people type: it shows the product at work, explains
// its decisions, and finds what is wrong with a deployment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// command is one subcommand. What it finds out goes to out, what it is doing to
// log.
type command struct {
	name, short string
	run         func(ctx context.Context, args []string, out, log io.Writer) error
}

// commands returns the subcommands in the order in which help lists them.
func commands() []command {
	return []command{
		{"demo", "run the whole product on this machine, kill an engine, and judge what clients saw", demo},
		{"explain", "print the latest picks of an EPP or a forwarder, and why each fell as it did", explain},
		{"fleet", "print the workers that a forwarder or an EPP has found", fleetCommand},
		{"tokens", "print what the router makes of a request body, and whether a worker agrees", tokensCommand},
		{"doctor", "check a running deployment and say what to do about what is wrong", doctor},
		{"chaos", "break a whole fleet on this machine by a seeded schedule, and check what came of it", chaosCommand},
		{"soak", "break that fleet for minutes, and look for what it does not let go of", soakCommand},
		{"replay", "send a trace through the picker against simulated engines, and compare policies", replay},
		{"bench", "measure the index, the picker and the ext-proc door", benchCommand},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "pointsman:", err)
		os.Exit(1)
	}
}

// dispatch runs the subcommand that args name.
func dispatch(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		return usage(out)
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out, log)
		}
	}
	return fmt.Errorf("no command %q: see pointsman --help", args[0])
}

// usage prints the list of subcommands.
func usage(out io.Writer) error {
	var b strings.Builder
	b.WriteString("pointsman sends each LLM request to the worker that serves it best.\n\nusage: pointsman <command> [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-8s %s\n", c.name, c.short)
	}
	b.WriteString("\npointsman <command> --help lists the flags of a command.\n")
	_, err := io.WriteString(out, b.String())
	return err
}
