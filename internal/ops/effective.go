package ops

import (
	"net/http"

	"pointsman/config"
)

// effective reads back the settings: of the pool asked for with ?pool=, in the
// same words on each program that serves it, and without that also those of the
// process.
func effective(live *config.Live) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		pool := r.URL.Query().Get("pool")
		page, ok := live.Read(pool)
		if !ok {
			writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{
				"message": "this program serves the pool " + live.Current().Pool + ", as --pool-name says",
				"type":    "invalid_request_error",
			}})
			return
		}
		if pool != "" {
			writeJSON(w, http.StatusOK, page)
			return
		}
		cfg := live.Current()
		writeJSON(w, http.StatusOK, struct {
			Program  string             `json:"program"`
			Settings []config.Effective `json:"settings"`
			config.Readback
		}{cfg.Program.String(), cfg.Effective(), page})
	}
}
