// Package bench holds the project's measurements: what `pointsman bench …` and
// the Makefile's bench-* targets run. Each prints progress to its log writer and
// exactly one JSON object as its last line to out; one that could not measure
// returns an error instead of a number.
package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the user and system time this process has used.
func CPUTime() (time.Duration, error) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), nil
}

// ProcessCPUTime returns the user and system time of the process pid, by its own clock:
// /proc tells it in steps of 10 ms.
func ProcessCPUTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED, with the process in the bits above it (clock_getcpuclockid(3))
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &at); err != nil { //nolint:gosec // a process's number has 22 bits
		return 0, fmt.Errorf("cpu time of process %d: %w", pid, err)
	}
	return time.Duration(at.Nano()), nil
}

// RSS returns the resident memory of the process pid in bytes; 0 means this one.
func RSS(pid int) (int64, error) {
	name := "self"
	if pid != 0 {
		name = strconv.Itoa(pid)
	}
	raw, err := os.ReadFile("/proc/" + name + "/statm")
	if err != nil {
		return 0, fmt.Errorf("resident memory: %w", err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0, fmt.Errorf("resident memory: unreadable statm line %q", raw)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resident memory: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// Quantile returns the q-quantile (0..1) of values, which it sorts; NaN of none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

// Median returns the middle of values, which it sorts.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Round returns v rounded to the given number of decimals, for printing.
func Round(v float64, decimals int) float64 {
	p := math.Pow10(decimals)
	return math.Round(v*p) / p
}

// PrintJSON writes v as one line of JSON.
func PrintJSON(out io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", line)
	return err
}
