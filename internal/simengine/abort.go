package simengine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"pointsman/fleet"
)

// errAborted ends a request because of POST /abort_request.
var errAborted = errors.New("aborted by name")

// named are the running requests of an SGLang engine by the names that their bodies
// give them.
type named struct {
	mu  sync.Mutex
	all map[*namedRequest]struct{}
}

type namedRequest struct {
	rid   string
	abort context.CancelCauseFunc
}

// watch makes r end with an abort of its name. The function that it returns is to be
// called at the end.
func (n *named) watch(r *http.Request, rid string) (*http.Request, func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	q := &namedRequest{rid: rid, abort: cancel}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = map[*namedRequest]struct{}{}
	}
	n.all[q] = struct{}{}
	return r.WithContext(ctx), func() {
		n.mu.Lock()
		delete(n.all, q)
		n.mu.Unlock()
		cancel(nil)
	}
}

// abort ends every request whose name begins with rid, as SGLang does.
func (n *named) abort(rid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for q := range n.all {
		if strings.HasPrefix(q.rid, rid) {
			q.abort(errAborted)
		}
	}
}

// ridOf returns the name that a body gives its request; "" for none.
func ridOf(raw []byte) string {
	var v struct {
		Rid string `json:"rid"`
	}
	_ = json.Unmarshal(raw, &v) // what is no object has no name
	return v.Rid
}

// serveAbort is SGLang's POST /abort_request. Requests that have ended note it too:
// a client's disconnect may have been faster.
func (e *Engine) serveAbort(w http.ResponseWriter, r *http.Request) {
	var v struct {
		Rid string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&v); err != nil {
		writeError(w, badRequest("rid", "the body: %v", err))
		return
	}
	if v.Rid == "" && !v.All {
		writeError(w, badRequest("rid", "give a rid, or abort_all"))
		return
	}
	e.receipts.aborted(v.Rid, time.Now())
	e.named.abort(v.Rid)
	w.WriteHeader(http.StatusOK)
}

// aborted notes the abort in every receipt whose name begins with rid.
func (l *receiptLog) aborted(rid string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.Rid != "" && strings.HasPrefix(r.Rid, rid) && r.AbortRequestAt == nil {
			r.AbortRequestAt = &now
		}
	}
}

// abortable reports whether requests can be named.
func (e *Engine) abortable() bool { return e.cfg.Engine == fleet.SGLang }
