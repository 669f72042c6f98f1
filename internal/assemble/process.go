package assemble

import (
	"io"
	"log/slog"
	"os"
	"runtime/debug"

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

// tuneGC sets the collector's pace unless the operator did. With GOMEMLIMIT
// set, which a container should, memory stays bounded all the same.
func tuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
