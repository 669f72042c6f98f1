package forward

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman/fleet"
)

const modelsPath = "/v1/models"

// serveHTTP answers what the fleet can answer, and forwards everything else.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	client := s.clientOf(w, r)
	if s.draining.Load() {
		// Clients look for another forwarder with their next request. An idle
		// connection stays open for the delay: who has not heard yet may be sending.
		w.Header().Set("Connection", "close")
	}
	// In HTTP/1 a space ends the target, so one that HTTP/2 brings could be the start
	// of another line for whoever comes next (failover S6).
	if r.ProtoMajor > 1 && strings.IndexByte(r.RequestURI, ' ') >= 0 {
		http.Error(w, "400 Bad Request: a space in the path", http.StatusBadRequest)
		return
	}
	if h := s.route(r.URL.Path); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		if h := s.local(r.URL.Path); h != nil {
			h(w, r)
			return
		}
	}
	s.forward(w, r, client)
}

// clientOf returns the connection by which an HTTP/1 request came, and gives it the
// time that a write may take; nil for a stream of HTTP/2, which has its own, and for a
// connection of somebody else's server.
func (s *Server) clientOf(w http.ResponseWriter, r *http.Request) *guardedConn {
	if r.ProtoMajor != 1 {
		return nil
	}
	client := connOf(r.Context())
	if client == nil {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // of the former request on this connection
		return nil
	}
	client.limit = s.cfg.Load().WriteTimeout
	return client
}

// route returns which of Deps.Routes answers path; nil for none.
func (s *Server) route(path string) http.Handler {
	if h := s.deps.Routes[path]; h != nil {
		return h
	}
	for _, prefix := range s.prefixes {
		if strings.HasPrefix(path, prefix) {
			return s.deps.Routes[prefix]
		}
	}
	return nil
}

// prefixesOf returns the paths of routes that stand for all below them too, the
// longer before the shorter of two.
func prefixesOf(routes map[string]http.Handler) []string {
	var out []string
	for path := range routes {
		if strings.HasSuffix(path, "/") {
			out = append(out, path)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(b, a) })
	return out
}

// local returns what answers a GET of path without a worker; nil for nothing.
func (s *Server) local(path string) http.HandlerFunc {
	switch path {
	case "/health":
		return s.health
	case "/ready":
		return s.ready
	case modelsPath:
		return s.models
	case "/v1/workers":
		return s.workers
	}
	if strings.HasPrefix(path, modelsPath+"/") {
		return s.model
	}
	return nil
}

// health says that the process lives, whatever the fleet's state.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Status        string `json:"status"`
		ActiveWorkers int    `json:"active_workers"`
	}{"ok", active(s.deps.Store.Snapshot())})
}

func active(snap *fleet.Snapshot) int {
	n := 0
	for _, w := range snap.Workers {
		if w.Status == fleet.Active {
			n++
		}
	}
	return n
}

// ready says whether requests should be sent here, and if not, why.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	reasons := s.notReady()
	if len(reasons) == 0 {
		writeJSON(w, http.StatusOK, struct {
			Status string `json:"status"`
		}{"ready"})
		return
	}
	writeJSON(w, http.StatusServiceUnavailable, struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons"`
	}{"not_ready", reasons})
}

func (s *Server) notReady() []string {
	var reasons []string
	if s.draining.Load() {
		reasons = append(reasons, "draining")
	}
	switch {
	case !s.deps.Store.Synced():
		reasons = append(reasons, "the fleet is not known yet")
	case !s.usable():
		reasons = append(reasons, "no active worker with a configured transport")
	}
	if s.deps.Ready != nil {
		if err := s.deps.Ready(); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	return reasons
}

// usable reports whether some worker can be sent a request.
func (s *Server) usable() bool {
	for _, w := range s.deps.Store.Snapshot().Workers {
		name := w.Transport
		if name == "" {
			name = "http"
		}
		if w.Status == fleet.Active && s.deps.Transports[name] != nil {
			return true
		}
	}
	return false
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func object(name string) modelObject {
	return modelObject{ID: name, Object: "model", Created: time.Now().Unix(), OwnedBy: "infera"}
}

// models lists the models that have an active worker (infera.md 7.1).
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, name := range s.deps.Store.Snapshot().Models() {
		list.Data = append(list.Data, object(name))
	}
	writeJSON(w, http.StatusOK, list)
}

// model describes one model; its name may contain slashes.
func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, modelsPath+"/")
	if slices.Contains(s.deps.Store.Snapshot().Models(), name) {
		writeJSON(w, http.StatusOK, object(name))
		return
	}
	apiError{
		status: http.StatusNotFound, kind: badRequest, code: "model_not_found", param: "model",
		message: "the model " + strconv.Quote(clip(name)) + " does not exist in this fleet",
	}.write(w, openAI, requestID(r.Header, time.Now()), "")
}

// workerRecord has the fields of Infera's /v1/workers (infera.md 7.1; the
// transport only in its Rust router).
type workerRecord struct {
	ID        string          `json:"worker_id"`
	URL       string          `json:"url"`
	Model     string          `json:"model_name"`
	Engine    fleet.Engine    `json:"engine"`
	Status    string          `json:"status"`
	Role      string          `json:"disagg_mode"`
	Meta      json.RawMessage `json:"disagg_meta"`
	KVEvents  *string         `json:"kv_events_endpoint"`
	BlockSize *int            `json:"kv_block_size"`
	DPRank    *int            `json:"dp_rank"`
	DPSize    *int            `json:"dp_size"`
	Transport string          `json:"request_transport"`
}

func record(w *fleet.Worker) (workerRecord, error) {
	rec := workerRecord{
		ID: w.ID, URL: w.URL, Model: w.Model, Engine: w.Engine,
		Status: w.Status.String(), Role: w.Role.String(), Transport: w.Transport,
	}
	if w.KVEvents != "" {
		rec.KVEvents = &w.KVEvents
	}
	if w.BlockSize > 0 {
		rec.BlockSize = &w.BlockSize
	}
	if w.DPRank >= 0 {
		rec.DPRank = &w.DPRank
	}
	if w.DPSize > 0 {
		rec.DPSize = &w.DPSize
	}
	if w.Protocol == "" {
		return rec, nil
	}
	params := w.Params
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	meta, err := json.Marshal(struct {
		Protocol string          `json:"protocol"`
		Params   json.RawMessage `json:"params"`
	}{w.Protocol, params})
	rec.Meta = meta
	return rec, err
}

func (s *Server) workers(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Workers []workerRecord `json:"workers"`
	}{Workers: []workerRecord{}}
	var errs []error
	for _, worker := range s.deps.Store.Snapshot().Workers {
		rec, err := record(worker)
		errs = append(errs, err)
		list.Workers = append(list.Workers, rec)
	}
	if errors.Join(errs...) != nil { // parameters that discovery should have refused
		http.Error(w, `{"error":{"message":"a worker record cannot be encoded","type":"server_error","param":null,"code":"internal_error"}}`, http.StatusInternalServerError)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left needs no answer
}
