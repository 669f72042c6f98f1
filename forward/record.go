package forward

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// recordKeep is how many finished requests can be asked for.
const recordKeep = 4096

// RequestsPath begins the path of a request's record; its ID follows.
const RequestsPath = "/requests/"

// requestRecord is what remains of a request: how far each try got and when, on the
// monotonic clock since the request came. No text of it is kept.
type requestRecord struct {
	ID      string        `json:"request_id"`
	Started time.Time     `json:"started"`
	Path    string        `json:"path"`
	Model   string        `json:"model"`
	Router  string        `json:"router"`
	Status  int           `json:"status"`
	Outcome string        `json:"outcome"`
	Why     string        `json:"why,omitempty"` // code of the error
	Finish  string        `json:"finish,omitempty"`
	In      int           `json:"bytes_in"`
	Out     int64         `json:"bytes_out"`
	Tokens  int           `json:"tokens"` // events with content; 0 for an answer that is no stream
	First   int64         `json:"first_byte_ns,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Tries   []tryRecord   `json:"attempts"`
}

// tryRecord is one try. A stage that was not reached is left out.
type tryRecord struct {
	ID         string        `json:"attempt_id"`
	Worker     string        `json:"worker_id"`
	Dial       int64         `json:"dial_ns,omitempty"`
	Write      int64         `json:"write_ns,omitempty"`
	Dispatched int64         `json:"dispatched_ns,omitempty"`
	Head       int64         `json:"head_ns,omitempty"`
	FirstByte  int64         `json:"first_byte_ns,omitempty"`
	Over       time.Duration `json:"over_ns,omitempty"`
	Why        string        `json:"why"`
}

// records are the last requests, oldest first from next on. It is safe for
// concurrent use.
type records struct {
	mu   sync.Mutex
	ring []requestRecord
	next int
}

// oldest returns the place of the next record, with what it has held. mu is held.
func (rs *records) oldest() *requestRecord {
	if len(rs.ring) < recordKeep {
		rs.ring = append(rs.ring, requestRecord{})
		return &rs.ring[len(rs.ring)-1]
	}
	r := &rs.ring[rs.next]
	rs.next = (rs.next + 1) % recordKeep
	return r
}

// find returns the records of the requests with that ID, the latest first: a
// client may use one again.
func (rs *records) find(id string) []requestRecord {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var out []requestRecord
	for i := range rs.ring {
		k := (rs.next - 1 - i + 2*len(rs.ring)) % len(rs.ring)
		if r := rs.ring[k]; r.ID == id {
			r.Tries = slices.Clone(r.Tries) // the place may be used again
			out = append(out, r)
		}
	}
	return out
}

// ServeRequest answers GET /requests/ID with what is known of the finished
// requests of that ID, latest first, of the last 4096 of all. It is for the
// operator: it names workers.
func (s *Server) ServeRequest(w http.ResponseWriter, r *http.Request) {
	found := s.records.find(strings.TrimPrefix(r.URL.Path, RequestsPath))
	status := http.StatusOK
	if len(found) == 0 {
		status, found = http.StatusNotFound, []requestRecord{}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"requests": found}) // the operator has gone then
}

// remember keeps the finished request, in the memory of one that is forgotten.
func (x *exchange) remember(err error, outcome string, took time.Duration) {
	rs := &x.s.records
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.oldest()
	*r = requestRecord{
		ID: x.id, Started: x.start, Path: same(r.Path, clip(x.r.URL.Path)), Model: same(r.Model, clip(x.scan.Model)),
		Router: x.router().String(), Status: x.status, Outcome: outcome, Finish: x.finished, In: x.bytesIn, Out: x.written,
		Tokens: x.tokens, Took: took, Tries: r.Tries[:0],
	}
	if err != nil {
		r.Why = describe(err).code
	}
	if !x.firstAt.IsZero() {
		r.First = int64(x.firstAt.Sub(x.start))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, t := range x.tries {
		at := func(s Stage) int64 {
			d, _ := t.progress.since(s)
			return max(int64(d), 0)
		}
		r.Tries = append(r.Tries, tryRecord{
			ID: t.id, Worker: t.worker, Why: t.why.String(), Over: t.over,
			Dial: at(StageDial), Write: at(StageWrite), Dispatched: at(StageDispatched), Head: at(StageHead), FirstByte: at(StageBody),
		})
	}
}

// same returns text, as the former string if it is the same: most requests are for
// one path and one model. A copy is made of another, for it may be a small part of
// something large.
func same(former, text string) string {
	if former == text {
		return former
	}
	return strings.Clone(text)
}

// noteFinish keeps the finish reason that a piece of an answer tells, and reports
// whether it does.
func (x *exchange) noteFinish(piece []byte) bool {
	const key = `"finish_reason":`
	_, after, ok := bytes.Cut(piece, []byte(key))
	if !ok {
		return false
	}
	rest := bytes.TrimLeft(after, " ")
	if len(rest) < 2 || rest[0] != '"' {
		return false
	}
	if end := bytes.IndexByte(rest[1:], '"'); end > 0 && end < 64 {
		x.finished = finishReason(rest[1 : 1+end])
		return true
	}
	return false
}

// finishReason returns b as a string: one that exists for the usual ones.
func finishReason(b []byte) string {
	for _, usual := range [...]string{"stop", "length", "tool_calls"} {
		if string(b) == usual {
			return usual
		}
	}
	return string(b)
}
