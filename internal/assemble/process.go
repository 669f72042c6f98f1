package assemble

import (
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"pointsman/config"
)

// logger returns the program's logger as cfg asks for it.
func logger(cfg *config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // config took no other words
	opts := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// gcPercent trades some 30 MB of memory for a tenth to a quarter of the CPU of
// a small request.
const gcPercent = 400

// memoryShare of a container's memory is what the collector lets the heap grow
// to before it works harder; the rest is for stacks and what is mapped.
const memoryShare = 0.9

// tuneGC sets the collector's pace, and its memory limit from that of the
// container, unless the operator did by GOGC and GOMEMLIMIT.
func tuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		if limit := containerMemory(os.DirFS("/sys/fs/cgroup")); limit > 0 {
			debug.SetMemoryLimit(int64(float64(limit) * memoryShare))
		}
	}
}

// containerMemory returns the memory limit of this process's control group in
// bytes, version 2 or 1 as mounted in a container; 0 when there is none.
func containerMemory(cgroup fs.FS) int64 {
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := fs.ReadFile(cgroup, name)
		if err != nil {
			continue
		}
		// "max", and version 1's page-rounded highest number, are no limit.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < 1<<60 {
			return n
		}
	}
	return 0
}
