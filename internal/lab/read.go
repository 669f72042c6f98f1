package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Formats of traces.
const (
	FormatAuto      = "auto"       // by the first line
	FormatMooncake  = "mooncake"   // JSON lines: timestamp (ms), input_length, output_length, hash_ids
	FormatAzure     = "azure"      // CSV: TIMESTAMP,ContextTokens,GeneratedTokens
	FormatAccessLog = "access-log" // the forwarder's log at level debug, text or JSON
)

// Formats returns the formats that [ReadConfig] takes.
func Formats() []string {
	return []string{FormatAuto, FormatMooncake, FormatAzure, FormatAccessLog}
}

// ReadConfig says how a trace is read.
type ReadConfig struct {
	Format   string        // one of [Formats]; "" for auto
	Requests int           // only the first so many are read; 0 for all, up to [MaxRequests]
	Block    int           // tokens that one hash id of a Mooncake trace stands for, and of a block of others. Default 512
	Jitter   time.Duration // each request comes up to so much later, at random; negative for as much as the trace's clock is coarse
	Warm     float64       // share of the first requests, which are not measured. Default 0.1
	Seed     uint64        // of the jitter
}

// DefaultReadConfig returns how the traces of findings/policy.md were read.
func DefaultReadConfig() ReadConfig {
	return ReadConfig{Format: FormatAuto, Block: 512, Jitter: -1, Warm: 0.1, Seed: 1}
}

// Validate reports every fault of c.
func (c ReadConfig) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Format == "" || slices.Contains(Formats(), c.Format), "format %q: want one of %s", c.Format, strings.Join(Formats(), ", "))
	check(c.Requests >= 0 && c.Requests <= MaxRequests, "%d requests: give 0 (all) to %d", c.Requests, MaxRequests)
	check(c.Block >= 1 && c.Block <= 65536, "blocks of %d tokens: give 1 to 65536", c.Block)
	check(c.Warm >= 0 && c.Warm < 1, "warm-up share %g: give 0 to less than 1", c.Warm)
	return errors.Join(errs...)
}

// maxLine bounds a line of a trace.
const maxLine = 16 << 20

// row is one line of a trace.
type row struct {
	at     time.Duration
	prompt int
	output int
	ids    []uint64 // contents of the prompt's blocks; nil when the trace tells nothing of them
}

// parser reads one line; errSkip for one that is no request.
type parser func(line []byte) (row, error)

// format is how a kind of trace is read.
type format struct {
	parse    parser
	unsorted bool // requests are listed by when they ended
}

var errSkip = errors.New("no request")

// ReadTrace reads a trace, a line at a time, and no further than cfg says. Errors
// name the line.
func ReadTrace(name string, in io.Reader, cfg ReadConfig) (*Trace, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(in, 1<<16)
	f, err := cfg.format(lines)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	rows, err := readRows(name, lines, f, cfg.Requests)
	if err != nil {
		return nil, err
	}
	if f.unsorted {
		slices.SortStableFunc(rows, func(x, y row) int { return cmp.Compare(x.at, y.at) })
	}
	return cfg.build(name, rows)
}

// ReadTraceFile reads the trace of a file.
func ReadTraceFile(path string, cfg ReadConfig) (*Trace, error) {
	f, err := os.Open(path) //nolint:gosec // whoever runs this names it
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	return ReadTrace(filepath.Base(path), f, cfg)
}

// format returns c's format, or the one that the first line has.
func (c ReadConfig) format(lines *bufio.Reader) (format, error) {
	name := c.Format
	if name == "" || name == FormatAuto {
		head, err := lines.Peek(4096)
		if len(head) == 0 {
			return format{}, errors.New("nothing in it")
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return format{}, err //nolint:wrapcheck // the reader's own
		}
		if name = guess(head); name == "" {
			return format{}, fmt.Errorf("line 1: it is no trace that I know: give --format, one of %s", strings.Join(Formats()[1:], ", "))
		}
	}
	switch name {
	case FormatMooncake:
		return format{parse: mooncakeParser(c.Block)}, nil
	case FormatAzure:
		return format{parse: azureParser()}, nil
	}
	return format{parse: accessParser(), unsorted: true}, nil
}

func guess(head []byte) string {
	first, _, _ := bytes.Cut(head, []byte("\n"))
	switch {
	case bytes.Contains(first, []byte(`"input_length"`)), bytes.Contains(first, []byte(`"hash_ids"`)):
		return FormatMooncake
	case bytes.Contains(first, []byte("ContextTokens")):
		return FormatAzure
	case bytes.Contains(first, []byte("msg=")), bytes.Contains(first, []byte(`"msg"`)):
		return FormatAccessLog
	}
	return ""
}

// readRows reads all rows, or the first limit.
func readRows(name string, lines *bufio.Reader, f format, limit int) ([]row, error) {
	var rows []row
	blocks := 0
	for n := 1; limit == 0 || len(rows) < limit; n++ {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		fail := func(err error) error { return fmt.Errorf("%s, line %d: %w", name, n, err) }
		if err != nil {
			return nil, fail(err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r, err := f.parse(line)
		if errors.Is(err, errSkip) {
			continue
		}
		if err == nil {
			err = r.check()
		}
		if err != nil {
			return nil, fail(err)
		}
		if !f.unsorted && len(rows) > 0 && r.at < rows[len(rows)-1].at {
			return nil, fail(fmt.Errorf("its time is %v before the line above: sort the trace by time", rows[len(rows)-1].at-r.at))
		}
		if blocks += len(r.ids); len(rows) >= MaxRequests || blocks > maxBlocks {
			return nil, fail(errTooMuch)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// check refuses what no request can be.
func (r row) check() error {
	switch {
	case r.prompt < 1:
		return fmt.Errorf("a prompt of %d tokens: want at least 1", r.prompt)
	case r.output < 1:
		return fmt.Errorf("an answer of %d tokens: want at least 1", r.output)
	case r.prompt > maxTokens || r.output > maxTokens:
		return fmt.Errorf("%d and %d tokens: want at most %d each", r.prompt, r.output, maxTokens)
	}
	return nil
}

// readLine returns the next line without its end; it is valid until the next call.
func readLine(lines *bufio.Reader) ([]byte, error) {
	line, err := lines.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := append([]byte(nil), line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > maxLine {
				return nil, fmt.Errorf("longer than %d bytes", maxLine)
			}
			line, err = lines.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return bytes.TrimRight(line, "\r\n"), err //nolint:wrapcheck // the reader's own
}

// build makes the trace of the rows, each at its time or a little later.
func (c ReadConfig) build(name string, rows []row) (*Trace, error) {
	b := newBuilder(name, c.Block)
	jitter := c.Jitter
	if jitter < 0 {
		jitter = coarse(rows)
	}
	if jitter > 0 {
		r := rand.New(rand.NewPCG(c.Seed, 77)) //nolint:gosec // a simulation's chance
		for i := range rows {
			rows[i].at += time.Duration(r.Int64N(int64(jitter)))
		}
		slices.SortStableFunc(rows, func(x, y row) int { return cmp.Compare(x.at, y.at) })
	}
	unique := uint64(1) << 40 // contents that no other prompt has
	for i := range rows {
		r := &rows[i]
		ids := r.ids
		if ids == nil {
			ids = make([]uint64, r.prompt/c.Block)
			for k := range ids {
				ids[k] = unique
				unique++
			}
		}
		if err := b.add(Request{At: r.at - rows[0].at, Prompt: r.prompt, Output: r.output}, ids); err != nil {
			return nil, fmt.Errorf("%s: request %d: %w", name, i+1, err)
		}
	}
	return b.done(c.Warm)
}

// coarse returns the grain of the trace's clock, which is the least time between two
// requests of different times, when that is a second or more, as that of the Mooncake
// traces is: requests do not really come together then.
func coarse(rows []row) time.Duration {
	grain := time.Duration(0)
	for i := 1; i < len(rows); i++ {
		if d := rows[i].at - rows[i-1].at; d > 0 && (grain == 0 || d < grain) {
			grain = d
		}
	}
	if grain < time.Second || len(rows) < minGrain {
		return 0
	}
	return grain
}

// minGrain is the fewest requests that show how coarse a clock is.
const minGrain = 100
