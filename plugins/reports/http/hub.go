// Package http carries load reports without a broker: each forwarder has an endpoint
// that streams its reports, one JSON object per line, and each picker subscribes to
// the forwarder at every worker's destination endpoint.
//
// # Concurrency
//
// [Hub.Publish] and [Hub.ServeHTTP] may be called from any goroutine. Publish never
// waits: a subscriber that does not keep up is cut off, and comes back for a full
// report. [Subscriber.Run] owns one goroutine per endpoint.
package http

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"pointsman/reports"
	"pointsman/wire"
)

// Path is where a forwarder streams its reports, to GET with the query picker=ID, and
// worker=ID of the worker that it is beside.
const Path = "/internal/load-reports"

// Bounds of the endpoint.
const (
	maxSubscribers = 256
	maxQuery       = 1024
	backlog        = 64 // reports that a subscriber may be behind
	writeTimeout   = 10 * time.Second
)

// Hub streams a forwarder's reports. Make it with [NewHub].
type Hub struct {
	joined func(worker string) // somebody new listens, for the sake of a worker
	idle   func() bool         // nothing is in flight; asked while draining

	mu       sync.Mutex
	subs     map[*subscription]struct{}
	draining bool
}

type subscription struct {
	picker string
	lines  chan []byte
}

// NewHub returns a hub without subscribers. joined is called when one comes, so that
// a full report follows soon; idle tells whether the forwarder has nothing in flight.
func NewHub(joined func(worker string), idle func() bool) *Hub {
	return &Hub{joined: joined, idle: idle, subs: map[*subscription]struct{}{}}
}

// ServeHTTP streams reports until the client leaves. A request that has come through
// a gateway is not a picker's: it gets 404, like any path that does not exist.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("picker")
	if r.Method != http.MethodGet || !reports.ValidID(id) || len(r.URL.RawQuery) > maxQuery || forwarded(r.Header) {
		http.NotFound(w, r)
		return
	}
	sub := h.subscribe(id)
	if sub == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many listen, or the forwarder is ending", http.StatusServiceUnavailable)
		return
	}
	defer h.remove(sub)
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return
	}
	h.joined(r.URL.Query().Get("worker"))
	for {
		select {
		case <-r.Context().Done():
			return
		case line, open := <-sub.lines:
			if !open {
				return
			}
			_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported by some writers of tests
			if _, err := w.Write(line); err != nil || rc.Flush() != nil {
				return
			}
		}
	}
}

// forwarded reports whether a proxy has added what proxies add.
func forwarded(h http.Header) bool {
	for k := range h {
		switch k = strings.ToLower(k); {
		case k == "forwarded", strings.HasPrefix(k, "x-forwarded-"), strings.HasPrefix(k, "x-envoy-"),
			strings.HasPrefix(k, "x-gateway-"), k == "x-worker-instance-id", k == reports.Header:
			return true
		}
	}
	return false
}

func (h *Hub) subscribe(picker string) *subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining || len(h.subs) >= maxSubscribers {
		return nil
	}
	sub := &subscription{picker: picker, lines: make(chan []byte, backlog)}
	h.subs[sub] = struct{}{}
	return sub
}

func (h *Hub) remove(sub *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, sub)
}

// Publish hands a report to all who listen.
func (h *Hub) Publish(r *reports.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) > 0 {
		line, err := wire.AppendReport(nil, r, wire.MaxReport) // subscribers keep it until they have written it
		if err == nil {
			h.send(append(line, '\n'))
		}
	}
	h.endIfIdle()
}

func (h *Hub) send(line []byte) {
	for sub := range h.subs {
		select {
		case sub.lines <- line:
		default:
			h.end(sub)
		}
	}
}

func (h *Hub) end(sub *subscription) {
	delete(h.subs, sub)
	close(sub.lines)
}

// Drain ends the streams with the last request in flight, whose end they still tell,
// and takes no new ones.
func (h *Hub) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	h.endIfIdle()
}

func (h *Hub) endIfIdle() {
	if !h.draining || !h.idle() {
		return
	}
	for sub := range h.subs {
		h.end(sub)
	}
}

// Pickers returns who listens.
func (h *Hub) Pickers() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for sub := range h.subs {
		out = append(out, sub.picker)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
