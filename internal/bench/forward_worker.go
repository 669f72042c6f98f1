package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	sseEvents   = 100
	childWorker = "worker"
	// forwardWhat is the header by which a request asks the worker for something
	// else: holdOpen and an ID sends one event, or with holdSilent not even a head,
	// and then nothing until the client has left.
	forwardWhat = "X-Bench"
	holdOpen    = "open "
	holdSilent  = "silent "
	leftPath    = "/left"
)

// forwardWorker answers at once, and notes who left it waiting.
type forwardWorker struct {
	mu      sync.Mutex
	waiting int
	left    map[string]int64 // when the client of the ID left, Unix time in ns
}

func newForwardWorker() *forwardWorker { return &forwardWorker{left: make(map[string]int64)} }

// forwardLeft is what the worker tells of those that wait and those that left.
type forwardLeft struct {
	Waiting int              `json:"waiting"`
	Left    map[string]int64 `json:"left"`
}

// ServeHTTP implements http.Handler.
func (f *forwardWorker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == leftPath {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = json.NewEncoder(w).Encode(forwardLeft{Waiting: f.waiting, Left: f.left}) // the client may be gone
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if what := r.Header.Get(forwardWhat); what != "" {
		f.hold(w, r, what)
		return
	}
	if !strings.Contains(string(body), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(natsAnswer)))
		_, _ = io.WriteString(w, natsAnswer) // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for range sseEvents {
		if _, err := io.WriteString(w, natsEvent); err != nil {
			return
		}
		if err := out.Flush(); err != nil { // an engine sends each token as it is made
			return
		}
	}
	_, _ = io.WriteString(w, natsDone)
}

// hold waits until the client leaves.
func (f *forwardWorker) hold(w http.ResponseWriter, r *http.Request, what string) {
	if strings.HasPrefix(what, holdOpen) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, natsEvent)
		_ = http.NewResponseController(w).Flush()
	}
	f.count(1)
	<-r.Context().Done()
	at := time.Now().UnixNano()
	f.mu.Lock()
	f.left[what] = at
	f.mu.Unlock()
	f.count(-1)
}

func (f *forwardWorker) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting += n
}

// referenceProxy is the least that a proxy on the standard library can be: an
// httputil.ReverseProxy that has read the body first. (Handed the streamed body,
// it cuts some of the streams.)
func referenceProxy(worker string) http.Handler {
	target := &url.URL{Scheme: "http", Host: worker}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 1024, DisableCompression: true},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		proxy.ServeHTTP(w, r)
	})
}
