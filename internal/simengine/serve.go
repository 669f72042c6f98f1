package simengine

import (
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"pointsman/fleet"
)

// api is one inference endpoint.
type api struct {
	parse func(*Engine, body) (*job, *apiError)
	frame func(id, model string, created int64, j *job) framer
	unary func(e *Engine, id string, created int64, j *job) any
	id    string // prefix of the answer's id
}

func chatAPI() api {
	return api{
		parse: (*Engine).chatJob, id: "chatcmpl-", unary: chatAnswer,
		frame: func(id, model string, created int64, j *job) framer {
			return newOpenAIFrames(id, model, created, true, j.includeUsage)
		},
	}
}

func completionAPI() api {
	return api{
		parse: (*Engine).completionJob, id: "cmpl-", unary: completionAnswer,
		frame: func(id, model string, created int64, j *job) framer {
			return newOpenAIFrames(id, model, created, false, j.includeUsage)
		},
	}
}

func messagesAPI() api {
	return api{
		parse: (*Engine).chatJob, id: "msg_", unary: messagesAnswer,
		frame: func(id, model string, _ int64, _ *job) framer { return &anthropicFrames{id: id, model: model} },
	}
}

func embeddingsAPI() api {
	return api{parse: (*Engine).embeddingJob, id: "embd-", unary: embeddingAnswer}
}

// infer serves one inference endpoint.
func (e *Engine) infer(a api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.inflight.add(1)
		defer e.inflight.add(-1)
		rc := e.receipts.add(e.newReceipt(r))
		f, err := e.faultFor(r)
		if err != nil {
			reject(w, rc, badRequest("", "%v", err))
			return
		}
		if f.mode != "" {
			rc.update(func(r *Receipt) { r.Fault = f.text })
		}
		if strikeConnection(r.Context(), w, f, rc) {
			return
		}
		raw, err := readBody(r, rc)
		if err != nil {
			if r.Context().Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) {
				rc.end(OutcomeAborted)
				breakConnection()
			}
			reject(w, rc, bodyError(err))
			return
		}
		if rid := ridOf(raw); rid != "" && e.abortable() {
			rc.update(func(r *Receipt) { r.Rid = rid })
			var end func()
			r, end = e.named.watch(r, rid)
			defer end()
		}
		if strikeRequest(r.Context(), w, f, rc) {
			return
		}
		e.answer(w, r, a, raw, f, rc)
	}
}

// notServed answers a path that the engine does not have, with a receipt: what a
// router passes through must be seen to arrive.
func (e *Engine) notServed(w http.ResponseWriter, r *http.Request) {
	rc := e.receipts.add(e.newReceipt(r))
	if _, err := readBody(r, rc); err != nil {
		rc.end(OutcomeAborted)
		breakConnection()
	}
	rc.update(func(c *Receipt) { c.Status, c.Error = http.StatusNotFound, "Not Found" })
	writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	rc.end(OutcomeRejected)
}

// answer parses, queues and answers a request.
func (e *Engine) answer(w http.ResponseWriter, r *http.Request, a api, raw []byte, f fault, rc *entry) {
	b, aerr := parseBody(raw)
	if aerr != nil {
		reject(w, rc, aerr)
		return
	}
	rc.update(func(r *Receipt) { r.BodyFields = b.fields() })
	if f.mode == "" {
		var struck bool
		if f, struck = bodyFault(r.Context(), w, b, rc); struck {
			return
		}
	}
	var leg *pdLeg
	if a.generates() {
		if leg, aerr = e.leg(r, b); aerr != nil {
			reject(w, rc, aerr)
			return
		}
	}
	j, aerr := a.parse(e, b)
	if aerr != nil {
		reject(w, rc, aerr)
		return
	}
	if aerr = stampJob(b, j, rc); aerr != nil {
		reject(w, rc, aerr)
		return
	}
	rc.update(func(r *Receipt) { r.Model, r.Stream, r.N = j.model, j.stream, len(j.choices) })
	defer e.abandon(j)
	if leg != nil {
		rc.update(func(r *Receipt) { r.Room = leg.room })
		if e.cfg.Role == fleet.Decode {
			aerr = e.receive(r.Context(), leg, j, rc)
		}
		if e.gone(w, r, rc, aerr) {
			return
		}
	}
	for _, c := range j.choices {
		if err := e.sched.submit(c.seq); err != nil {
			reject(w, rc, badRequest("max_tokens", "%v", err))
			return
		}
	}
	if leg != nil && e.cfg.Role == fleet.Prefill && wait(r.Context(), j) == nil {
		if e.gone(w, r, rc, e.handOver(r.Context(), leg, j, rc)) {
			return
		}
	}
	id := a.id + requestID(r)
	if h := r.Header.Get("X-Request-Id"); h != "" {
		w.Header().Set("X-Request-Id", h)
	}
	created := time.Now().Unix()
	var err error
	if j.stream && a.frame != nil {
		frame := a.frame(id, j.model, created, j)
		err = stream(newReply(w, r, f, frame, rc), j)
	} else if err = wait(r.Context(), j); err == nil {
		err = unary(newReply(w, r, f, nil, rc), a.unary(e, id, created, j), j)
	}
	if e.close(rc, j, err) == OutcomeAborted || errors.Is(err, errReset) {
		breakConnection()
	}
}

// generates reports whether the endpoint's requests can be legs of a pair.
func (a api) generates() bool { return a.frame != nil }

// gone answers with err, if there is one, and reports whether it did.
func (e *Engine) gone(w http.ResponseWriter, r *http.Request, rc *entry, err *apiError) bool {
	switch {
	case err == nil:
		return false
	case r.Context().Err() != nil:
		rc.end(OutcomeAborted)
		breakConnection()
	}
	reject(w, rc, err)
	return true
}

// breakConnection ends the handler without letting net/http complete the
// answer: an engine that dies must not look like one that finished.
func breakConnection() { panic(http.ErrAbortHandler) }

// abandon cancels what has not finished.
func (e *Engine) abandon(j *job) {
	for _, c := range j.choices {
		e.sched.cancel(c.seq)
	}
}

// close writes the outcome into the receipt and returns it.
func (e *Engine) close(rc *entry, j *job, err error) string {
	e.abandon(j)
	rc.update(func(r *Receipt) {
		u := j.usage()
		r.PromptTokens, r.CachedTokens, r.TokensSent = u.PromptTokens, u.Details.CachedTokens, tokensSent(j)
		first := j.choices[0]
		r.StartedAt, r.FirstTokenAt, r.Finish = stamp(first.seq.started), stamp(first.seq.first), first.reason
	})
	outcome := OutcomeAborted // a write failed or the request's context ended: the client is gone
	switch {
	case err == nil:
		outcome = OutcomeComplete
	case errors.Is(err, errFaulted):
		outcome = OutcomeFault
	}
	rc.end(outcome)
	return outcome
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// requestID is the client's id, or one of our own.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return rand.Text()
}

func itoa(n int) string { return strconv.Itoa(n) }
