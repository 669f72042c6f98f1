package simengine

import (
	"strings"
	"sync"
	"time"
)

// Receipt is what the engine saw and did for one inference request. Times that
// have not come are nil.
type Receipt struct {
	Seq             uint64 `json:"seq"`                         // order of arrival in this process, from 0
	RequestID       string `json:"request_id,omitempty"`        // header x-request-id
	InferaRequestID string `json:"infera_request_id,omitempty"` // header x-infera-request-id
	AttemptID       string `json:"attempt_id,omitempty"`        // header x-infera-attempt-id
	Leg             string `json:"leg"`                         // the worker's role: mixed, prefill or decode
	WorkerID        string `json:"worker_id"`
	Method          string `json:"method"`
	Path            string `json:"path"`
	Proto           string `json:"proto"` // HTTP/1.1
	Model           string `json:"model,omitempty"`
	Room            string `json:"room,omitempty"`    // what pairs this leg with its partner; "" for a request that is no leg
	Partner         string `json:"partner,omitempty"` // worker ID of the other leg, once it was met
	Rid             string `json:"rid,omitempty"`     // the body's rid, by which SGLang knows the request
	Stream          bool   `json:"stream"`
	N               int    `json:"n,omitempty"` // sequences the request asked for

	BytesIn      int64    `json:"bytes_in"`              // body bytes read
	BodySHA256   string   `json:"body_sha256,omitempty"` // of the whole body; "" when it was not read
	BodyFields   []string `json:"body_fields,omitempty"` // sorted top-level keys of a JSON body
	PromptTokens int      `json:"prompt_tokens"`
	CachedTokens int      `json:"cached_tokens"`
	TokensSent   int      `json:"tokens_sent"` // output tokens written to the connection
	EventsSent   int      `json:"events_sent"` // SSE events written, the last marker not counted

	Status  int    `json:"status"`            // HTTP status written; 0 when none was
	Outcome string `json:"outcome"`           // running, complete, rejected, aborted or fault
	Fault   string `json:"fault,omitempty"`   // fault applied, as given
	Error   string `json:"error,omitempty"`   // why it was rejected
	Finish  string `json:"finish,omitempty"`  // finish reason of the first choice
	Trailer string `json:"trailer,omitempty"` // request trailer names, comma separated

	ReceivedAt   time.Time  `json:"received_at"`
	StartedAt    *time.Time `json:"started_at,omitempty"`     // first sequence got a slot
	FirstTokenAt *time.Time `json:"first_token_at,omitempty"` // first output token existed
	EndedAt      *time.Time `json:"ended_at,omitempty"`
	AbortedAt    *time.Time `json:"aborted_at,omitempty"` // the client's disconnect, or its request to abort, was seen

	AbortRequestAt *time.Time `json:"abort_request_at,omitempty"` // POST /abort_request named the request, whether or not it still ran

	Authorization    bool              `json:"authorization"` // an Authorization header came with it
	ContentLength    int64             `json:"content_length"`
	TransferEncoding []string          `json:"transfer_encoding,omitempty"`
	Headers          map[string]string `json:"headers,omitempty"` // those in keptHeaders, lower case
}

// The outcomes of a receipt.
const (
	OutcomeRunning  = "running"
	OutcomeComplete = "complete" // everything was written
	OutcomeRejected = "rejected" // answered with an error of its own
	OutcomeAborted  = "aborted"  // the client went away first
	OutcomeFault    = "fault"    // a fault mode ended it
)

// receiptLog keeps the latest receipts.
type receiptLog struct {
	mu    sync.Mutex
	limit int
	next  uint64
	all   []*Receipt
}

// add stores r and returns the handle through which it is updated.
func (l *receiptLog) add(r Receipt) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Seq = l.next
	l.next++
	if len(l.all) >= l.limit {
		l.all[0] = nil
		l.all = l.all[1:]
	}
	l.all = append(l.all, &r)
	return &entry{log: l, r: &r}
}

// list returns copies of the receipts that match id, oldest first; "" matches
// all. An attempt's own ID, which forwarders give vLLM engines, matches its
// request's: ID/m1/….
func (l *receiptLog) list(id string) []Receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Receipt, 0, len(l.all))
	for _, r := range l.all {
		if id == "" || r.RequestID == id || r.InferaRequestID == id || strings.HasPrefix(r.RequestID, id+"/") {
			out = append(out, *r)
		}
	}
	return out
}

// clear forgets all receipts; requests that run go on updating theirs unseen.
func (l *receiptLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

// entry is the writer's side of one receipt.
type entry struct {
	log *receiptLog
	r   *Receipt
}

func (e *entry) update(f func(r *Receipt)) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	f(e.r)
}

// end closes the receipt; the first call decides the outcome.
func (e *entry) end(outcome string) {
	now := time.Now()
	e.update(func(r *Receipt) {
		if r.EndedAt != nil {
			return
		}
		r.EndedAt = &now
		r.Outcome = outcome
		if outcome == OutcomeAborted {
			r.AbortedAt = &now
		}
	})
}
