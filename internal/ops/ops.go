// Package ops serves what an operator asks a running program: metrics, health,
// readiness, the settings in force and the last picks with their reasons.
//
// /config and /debug answer this machine only, unless a bearer token is set:
// they show the fleet's addresses.
package ops

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pointsman/admission"
	"pointsman/config"
	"pointsman/fleet"
	"pointsman/picker"
)

// Deps are what the endpoints read.
type Deps struct {
	Live     *config.Live
	Registry prometheus.Gatherer
	Store    *fleet.Store
	Picker   *picker.Picker
	Ready    func() error // nil when the program may take requests

	// CacheBlocks returns how many blocks a target is known to hold, by its key;
	// false when picks heed no events.
	CacheBlocks func(key string) (int, bool)

	// Gate and Drain serve DrainPath; nil, no such path. Drain begins what SIGTERM
	// does.
	Gate  *admission.Gate
	Drain func()

	// Peers answers other replicas at PeersPath; nil, no such path.
	Peers http.Handler

	// Requests answers GET /requests/ID with the record of a request; nil where
	// there are none.
	Requests http.HandlerFunc
}

// PeersPath is where a replica is asked what prompts are where.
const PeersPath = "/internal/prompts"

// maxDryRun bounds the body of POST /debug/pick.
const maxDryRun = 1 << 20

// Handler returns the endpoints: GET /metrics, /health, /ready,
// /config/effective, /debug/picks, /v1/admin/cache-view/ID, POST /debug/pick for a dry run, and PUT /admin/drain.
func Handler(d Deps) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.Registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok", "active_workers": active(d.Store)})
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := d.Ready(); err != nil {
			writeJSON(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "reason": err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"status": "ready"})
	})
	mux.HandleFunc("GET "+CacheViewPath+"{worker...}", cacheView(d.Store, d.CacheBlocks))
	mux.Handle("/config/", guard(d.Live.Current().AdminToken, admin(d)))
	if d.Requests != nil {
		mux.Handle("GET /requests/{id...}", guard(d.Live.Current().AdminToken, d.Requests))
	}
	if d.Peers != nil {
		mux.Handle("GET "+PeersPath, guard(d.Live.Current().AdminToken, d.Peers))
	}
	mux.Handle("/debug/", guard(d.Live.Current().AdminToken, admin(d)))
	if d.Gate != nil && d.Drain != nil {
		mux.Handle(DrainPath, guard(d.Live.Current().AdminToken, drain(d.Gate, d.Drain)))
	}
	return mux
}

func admin(d Deps) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /config/effective", effective(d.Live))
	mux.HandleFunc("GET /debug/picks", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"picks": d.Picker.Records()})
	})
	mux.HandleFunc("POST /debug/pick", func(w http.ResponseWriter, r *http.Request) {
		var req picker.Request
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxDryRun))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&req); err != nil && !errors.Is(err, io.EOF) {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{
				"message": "body is not a pick request: " + err.Error() + `; try {"Model":"m","Tokens":100}`,
				"type":    "invalid_request_error",
			}})
			return
		}
		writeJSON(w, http.StatusOK, d.Picker.Dry(time.Now(), &req))
	})
	return mux
}

// guard admits callers on this machine, or with the token when one is set.
func guard(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case token != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) == 1:
		case token == "" && local(r.RemoteAddr):
		case token != "":
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeJSON(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{
				"message": "send the token of --admin-token as a bearer token",
				"type":    "authentication_error",
			}})
			return
		default:
			writeJSON(w, http.StatusForbidden, map[string]any{"error": map[string]any{
				"message": "ask from the same machine (kubectl port-forward), or set --admin-token and send it as a bearer token",
				"type":    "permission_error",
			}})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func local(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func active(store *fleet.Store) int {
	n := 0
	for _, w := range store.Snapshot().Workers {
		if w.Status == fleet.Active {
			n++
		}
	}
	return n
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone: nobody to tell
}
