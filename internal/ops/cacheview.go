package ops

import (
	"net/http"
	"strconv"

	"pointsman/fleet"
)

// CacheViewPath begins the path of a worker's cache view; the worker's ID
// follows.
const CacheViewPath = "/v1/admin/cache-view/"

// cacheView answers Infera's GET /v1/admin/cache-view/{worker_id}?dp_rank=N, in
// its shapes (infera/server/app.py): how many blocks the router believes to be on
// a worker. Without a rank it counts all ranks of the worker.
//
// It tells no more than /v1/workers and /metrics do, so it has no guard either.
func cacheView(store *fleet.Store, blocks func(key string) (int, bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		view := struct {
			Worker string `json:"worker_id"`
			Rank   *int   `json:"dp_rank"`
			Blocks int    `json:"block_count"`
		}{Worker: r.PathValue("worker")}
		if text := r.URL.Query().Get("dp_rank"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				detail(w, http.StatusUnprocessableEntity, "dp_rank is not a whole number from 0 up")
				return
			}
			view.Rank = &n
		}
		if _, known := blocks(view.Worker); !known { // before the worker is looked for, as in Infera
			detail(w, http.StatusServiceUnavailable, "KV-aware mode disabled")
			return
		}
		worker := store.Snapshot().Worker(view.Worker)
		if worker == nil {
			detail(w, http.StatusNotFound, "no worker "+strconv.Quote(view.Worker)+"; /v1/workers lists them")
			return
		}
		found := false
		for _, target := range worker.Targets(nil) {
			if view.Rank != nil && *view.Rank != rankOf(target) {
				continue
			}
			n, _ := blocks(target.Key)
			view.Blocks += n
			found = true
		}
		if !found {
			detail(w, http.StatusNotFound, "worker "+strconv.Quote(view.Worker)+" has no such rank")
			return
		}
		writeJSON(w, http.StatusOK, view)
	}
}

// rankOf returns the rank that a target is, that its worker is registered as, or
// else 0.
func rankOf(t fleet.Target) int { return max(t.Rank, t.Worker.DPRank, 0) }

// detail writes an error in the shape of Infera's admin pages.
func detail(w http.ResponseWriter, status int, text string) {
	writeJSON(w, status, map[string]string{"detail": text})
}
