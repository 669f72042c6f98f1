package ops

import (
	"net/http"
	"net/http/pprof"
)

// Profiler returns Go's profiler below /debug/pprof/, to callers on this machine or
// with the token. It belongs on a port of its own: profiles show what the program
// works on, and cost it (failover.md §5, S12).
func Profiler(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return guard(token, mux)
}
