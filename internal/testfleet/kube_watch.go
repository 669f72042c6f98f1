package testfleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubeEvent is one line of a watch.
type kubeEvent struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// watch streams what changes behind a version. Without one, or with 0, it begins
// with what is there.
func (q *kubeRequest) watch() {
	from, err := strconv.ParseUint(q.query.Get("resourceVersion"), 10, 64)
	if err != nil && q.query.Get("resourceVersion") != "" {
		q.fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid resource version")
		return
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(http.StatusOK)
	q.flush()
	q.mu.Lock()
	closing, every := q.closing, q.bookmarks
	var first []kubeEvent
	if from == 0 {
		from = q.store.version
		for _, o := range q.store.list(q.resource, q.match) {
			first = append(first, kubeEvent{"ADDED", o.encoded})
		}
	}
	q.mu.Unlock()
	if q.send(first) {
		q.stream(from, closing, every)
	}
}

// stream sends until the client goes, its time is up, or closing is closed. The
// version that a bookmark names is one that all changes up to it were sent.
func (q *kubeRequest) stream(at uint64, closing <-chan struct{}, every time.Duration) {
	seconds, _ := strconv.Atoi(q.query.Get("timeoutSeconds"))
	if seconds <= 0 {
		seconds = 1800
	}
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	marks := make(<-chan time.Time)
	bookmarks := every > 0 && q.query.Get("allowWatchBookmarks") == "true"
	if bookmarks {
		t := time.NewTicker(every)
		defer t.Stop()
		marks = t.C
	}
	for {
		events, next, changed := q.news(at)
		if !q.send(events) || next == 0 {
			return
		}
		at = next
		select {
		case <-q.r.Context().Done():
			return
		case <-closing:
			return
		case <-over.C:
			if bookmarks {
				q.mark(at)
			}
			return
		case <-marks:
			if !q.mark(at) {
				return
			}
		case <-changed:
		}
	}
}

// news returns what changed behind a version, up to which version, and a channel
// that is closed at the next change. The version is 0 when the watch is expired.
func (q *kubeRequest) news(at uint64) (events []kubeEvent, upTo uint64, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes, ok := q.store.since(at)
	if !ok {
		return []kubeEvent{{"ERROR", status(http.StatusGone, metav1.StatusReasonExpired,
			fmt.Sprintf("too old resource version: %d (%d)", at, q.store.oldest))}}, 0, nil
	}
	for _, c := range changes {
		if e, ok := q.event(c); ok {
			events = append(events, e)
		}
	}
	return events, max(at, q.store.version), q.store.changed
}

// event says what a change is to this watch.
func (q *kubeRequest) event(c kubeChange) (kubeEvent, bool) {
	if c.resource != q.resource {
		return kubeEvent{}, false
	}
	before := c.was != nil && q.match(c.was)
	after := c.now != nil && q.match(c.now)
	switch {
	case after && before:
		return kubeEvent{"MODIFIED", c.now.encoded}, true
	case after:
		return kubeEvent{"ADDED", c.now.encoded}, true
	case before && c.gone != nil:
		return kubeEvent{"DELETED", c.gone.encoded}, true
	case before:
		return kubeEvent{"DELETED", q.left(c)}, true
	}
	return kubeEvent{}, false
}

// left is an object that ceased to match: its last matching self, with the
// version at which it ceased.
func (q *kubeRequest) left(c kubeChange) json.RawMessage {
	fields := mergePatch(c.was.fields, map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(c.version, 10)},
	})
	out, _ := json.Marshal(fields) // it came out of JSON
	return out
}

// mark sends a bookmark; it returns false when the client is gone.
func (q *kubeRequest) mark(at uint64) bool {
	sent := q.send([]kubeEvent{{"BOOKMARK", map[string]any{
		"kind": q.resource.Kind, "apiVersion": q.resource.apiVersion(),
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(at, 10), "creationTimestamp": nil},
	}}})
	q.mu.Lock()
	defer q.mu.Unlock()
	q.marked = at
	return sent
}

// send writes events, one a line; it returns false when the client is gone. A
// mute server sends nothing.
func (q *kubeRequest) send(events []kubeEvent) bool {
	q.mu.Lock()
	mute := q.mute
	q.mu.Unlock()
	if mute || len(events) == 0 {
		return true
	}
	enc := json.NewEncoder(q.w)
	for _, e := range events {
		if enc.Encode(e) != nil {
			return false
		}
	}
	return q.flush()
}

func (q *kubeRequest) flush() bool { return http.NewResponseController(q.w).Flush() == nil }
