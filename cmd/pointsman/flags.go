package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// newFlags returns a flag set whose help begins with text, on w.
func newFlags(name, text string, w io.Writer) *pflag.FlagSet {
	fs := pflag.NewFlagSet("pointsman "+name, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(w)
	fs.Usage = func() {
		_, _ = fmt.Fprintf(w, "%s\n\nusage: pointsman %s [flags]\n\n%s", text, name, fs.FlagUsages())
	}
	return fs
}

// parseFlags reads args, which may hold nothing but flags.
func parseFlags(fs *pflag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err //nolint:wrapcheck // pflag names the flag, and ErrHelp is compared
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: see pointsman --help", fs.Arg(0))
	}
	return nil
}

// isTerminal reports whether w is a terminal, where lines can be redrawn.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// secondsOf returns s seconds.
func secondsOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
