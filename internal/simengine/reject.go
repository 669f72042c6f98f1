package simengine

import (
	"encoding/json"
	"net/http"
)

// reject answers with an error of the request's own making.
func reject(w http.ResponseWriter, rc *entry, err *apiError) {
	rc.update(func(r *Receipt) { r.Status, r.Error = err.status, err.message })
	writeError(w, err)
	rc.end(OutcomeRejected)
}

// writeError writes err in OpenAI's shape.
func writeError(w http.ResponseWriter, err *apiError) {
	var param any
	if err.param != "" {
		param = err.param
	}
	writeJSON(w, err.status, map[string]any{"error": map[string]any{
		"message": err.message, "type": err.kind, "param": param, "code": err.status,
	}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may be gone
}
