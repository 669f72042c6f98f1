package ops

import (
	"net/http"
	"sync"

	"pointsman/admission"
)

// DrainPath is where a drain is begun (PUT) and read back (GET).
const DrainPath = "/admin/drain"

// drain answers DrainPath. A drain does what SIGTERM does, the end of the program
// included, and the read-back tells what still runs.
func drain(gate *admission.Gate, begin func()) http.Handler {
	mux := http.NewServeMux()
	tell := func(w http.ResponseWriter, asked bool) {
		s := gate.Snapshot()
		writeJSON(w, http.StatusOK, map[string]any{
			"requested": asked, "draining": s.Draining, "in_flight": s.Inflight, "queued": s.Queued,
		})
	}
	var mu sync.Mutex
	requested := false
	mux.HandleFunc("GET "+DrainPath, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tell(w, requested)
	})
	mux.HandleFunc("PUT "+DrainPath, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !requested {
			requested = true
			begin()
		}
		tell(w, true)
	})
	return mux
}
