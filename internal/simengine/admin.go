package simengine

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// routes is the engine's HTTP surface.
func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/chat/completions", e.authorized(e.infer(chatAPI())))
	mux.Handle("POST /v1/completions", e.authorized(e.infer(completionAPI())))
	mux.Handle("POST /v1/messages", e.authorized(e.infer(messagesAPI())))
	mux.Handle("POST /v1/responses", e.authorized(e.infer(responsesAPI())))
	if e.abortable() {
		mux.HandleFunc("POST /abort_request", e.serveAbort)
	}
	mux.Handle("POST /v1/embeddings", e.authorized(e.infer(embeddingsAPI())))
	mux.Handle("GET /v1/models", e.authorized(http.HandlerFunc(e.serveModels)))
	mux.HandleFunc("POST /tokenize", e.serveTokenize)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{}))
	control := e.controlRoutes()
	mux.Handle("/receipts", control)
	mux.Handle("/control/", control)
	mux.HandleFunc("/", e.notServed)
	return mux
}

// controlRoutes is what tests use; the control port serves it too, with no
// fault in the way.
func (e *Engine) controlRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /receipts", e.serveReceipts)
	mux.HandleFunc("DELETE /receipts", func(w http.ResponseWriter, _ *http.Request) {
		e.ClearReceipts()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /control/fault", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, e.faults.report())
	})
	mux.HandleFunc("POST /control/fault", e.serveFault)
	mux.HandleFunc("POST /control/nats", e.serveDeaf)
	mux.HandleFunc("POST /control/pair", e.servePair)
	mux.HandleFunc("POST /control/clear-cache", func(w http.ResponseWriter, _ *http.Request) {
		e.ClearCache()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /control/info", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, e.Info())
	})
	return mux
}

// authorized demands the API key, if there is one (vLLM guards /v1 only).
func (e *Engine) authorized(next http.Handler) http.Handler {
	if e.cfg.APIKey == "" {
		return next
	}
	want := []byte("Bearer " + e.cfg.APIKey)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := []byte(r.Header.Get("Authorization"))
		if key := r.Header.Get("X-Api-Key"); key != "" { // Anthropic's clients
			got = []byte("Bearer " + key)
		}
		if subtle.ConstantTimeCompare(got, want) != 1 {
			rc := e.receipts.add(e.newReceipt(r))
			_, _ = readBody(r, rc)
			rc.update(func(c *Receipt) { c.Status, c.Error = http.StatusUnauthorized, "Unauthorized" })
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			rc.end(OutcomeRejected)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type modelCard struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Root    string `json:"root"`
	Parent  string `json:"parent,omitempty"`
	MaxLen  int    `json:"max_model_len"`
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	cards := []modelCard{{
		ID: e.cfg.Model, Object: "model", Created: e.born.Unix(), OwnedBy: string(e.cfg.Engine), Root: e.cfg.Model, MaxLen: e.cfg.MaxModelLen,
	}}
	for _, name := range e.cfg.LoRA {
		card := cards[0]
		card.ID, card.Root, card.Parent = name, name, e.cfg.Model
		cards = append(cards, card)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
}

// serveTokenize answers vLLM's /tokenize: {"prompt"} or {"messages", "tools",
// "add_generation_prompt", "continue_final_message"}, with add_special_tokens.
func (e *Engine) serveTokenize(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		writeError(w, bodyError(err))
		return
	}
	tokens, aerr := e.tokenize(raw)
	if aerr != nil {
		writeError(w, aerr)
		return
	}
	// Long lists: written by hand, a tenth of what reflection costs.
	b := make([]byte, 0, 64+7*len(tokens))
	b = append(b, `{"count":`...)
	b = strconv.AppendInt(b, int64(len(tokens)), 10)
	b = append(b, `,"max_model_len":`...)
	b = strconv.AppendInt(b, int64(e.cfg.MaxModelLen), 10)
	b = append(b, `,"tokens":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	b = append(b, `],"token_strs":null}`...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // the client may be gone
}

func (e *Engine) tokenize(raw []byte) ([]uint32, *apiError) {
	b, err := parseBody(raw)
	if err != nil {
		return nil, err
	}
	if _, err = e.modelOf(b); err != nil {
		return nil, err
	}
	if _, ok := b["messages"]; ok {
		return e.chatTokens(b)
	}
	var prompt *string
	special := true
	if err = b.get("prompt", &prompt); err != nil {
		return nil, err
	}
	if err = b.get("add_special_tokens", &special); err != nil {
		return nil, err
	}
	if prompt == nil {
		return nil, badRequest("prompt", "give a prompt or messages")
	}
	return e.textTokens(*prompt, special)
}

// serveReceipts writes receipts as JSON lines, or as an array with
// ?format=array; ?request_id= selects.
func (e *Engine) serveReceipts(w http.ResponseWriter, r *http.Request) {
	list := e.receipts.list(r.URL.Query().Get("request_id"))
	if r.URL.Query().Get("format") == "array" {
		writeJSON(w, http.StatusOK, list)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	for i := range list {
		if enc.Encode(&list[i]) != nil {
			return // the client is gone
		}
	}
}

// serveFault sets the fault in force from a [Fault] in JSON.
func (e *Engine) serveFault(w http.ResponseWriter, r *http.Request) {
	var spec Fault
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&spec); err != nil {
		writeError(w, badRequest("", "the fault: %v", err))
		return
	}
	switch err := e.SetFault(spec); {
	case errors.Is(err, ErrFault):
		writeError(w, badRequest("mode", "%v", err))
	case err != nil:
		writeError(w, &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()})
	default:
		writeJSON(w, http.StatusOK, e.faults.report())
	}
}

// serveDeaf takes the worker off its broker, or puts it back.
func (e *Engine) serveDeaf(w http.ResponseWriter, r *http.Request) {
	var spec struct {
		Deaf bool `json:"deaf"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&spec); err != nil {
		writeError(w, badRequest("", "give {\"deaf\": true} or false: %v", err))
		return
	}
	if err := e.SetDeaf(spec.Deaf); err != nil {
		writeError(w, &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, spec)
}

// Info describes a running engine.
type Info struct {
	WorkerID     string    `json:"worker_id"`
	URL          string    `json:"url"`
	ControlURL   string    `json:"control_url,omitempty"`
	KVEvents     string    `json:"kv_events_endpoint,omitempty"`
	KVReplay     string    `json:"kv_replay_endpoint,omitempty"`
	Model        string    `json:"model"`
	Engine       string    `json:"engine"`
	Role         string    `json:"role"`
	BlockSize    int       `json:"block_size"`
	Born         time.Time `json:"born"`
	Running      int       `json:"running"`
	Waiting      int       `json:"waiting"`
	BlocksUsed   int       `json:"blocks_used"`   // held by running sequences
	BlocksCached int       `json:"blocks_cached"` // that a prompt could hit
	EventsSent   uint64    `json:"event_batches"` // numbered so far
	EventsLost   uint64    `json:"event_batches_lost"`
}
