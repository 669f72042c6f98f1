package simengine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman/fleet"
)

// maxBody bounds a request body, so that a test can't exhaust the machine.
const maxBody = 256 << 20

// FaultHeader is the request header that makes the engine misbehave for that
// request only.
const FaultHeader = "X-Sim-Fault"

// keptHeaders are the request headers that a receipt keeps, when they came.
// Authorization is never kept, only noted.
func keptHeaders() []string {
	return []string{
		"Accept", "Accept-Encoding", "Baggage", "Connection", "Content-Encoding", "Content-Type", "Expect", "Te",
		"Traceparent", "Tracestate", "User-Agent", "X-Data-Parallel-Rank", "X-Forwarded-For", "X-Gateway-Destination-Endpoint",
		"X-Infera-Attempt-Id", "X-Infera-Request-Id", "X-Prefill-Instance-Id", "X-Request-Id", "X-Worker-Instance-Id",
	}
}

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

// newReceipt notes what is known before the body.
func (e *Engine) newReceipt(r *http.Request) Receipt {
	rc := Receipt{
		RequestID: r.Header.Get("X-Request-Id"), InferaRequestID: r.Header.Get("X-Infera-Request-Id"),
		AttemptID: r.Header.Get("X-Infera-Attempt-Id"), Leg: e.cfg.Role.String(), WorkerID: e.id,
		Method: r.Method, Path: r.URL.Path, Proto: r.Proto, Outcome: OutcomeRunning, ReceivedAt: time.Now(),
		Authorization: r.Header.Get("Authorization") != "",
		ContentLength: r.ContentLength, TransferEncoding: r.TransferEncoding,
		Headers: map[string]string{"host": r.Host},
	}
	for _, name := range keptHeaders() {
		if v := r.Header.Values(name); len(v) > 0 {
			rc.Headers[strings.ToLower(name)] = strings.Join(v, ", ")
		}
	}
	return rc
}

// faultFor picks the request's fault: its own header before the one in force.
func (e *Engine) faultFor(r *http.Request) (fault, error) {
	if h := r.Header.Get(FaultHeader); h != "" {
		return parseFault(h)
	}
	return e.faults.draw(time.Now(), false), nil
}

// strikeConnection applies the faults that come before the body is read.
func strikeConnection(ctx context.Context, w http.ResponseWriter, f fault, rc *entry) bool {
	if !f.atConnect() {
		return false
	}
	conn, err := hijack(w)
	if err != nil { // HTTP/2
		if f.is(faultHangAccept) {
			<-ctx.Done()
		}
		rc.end(OutcomeFault)
		breakConnection()
	}
	if !f.is(faultHangAccept) {
		resetConn(conn)
		rc.end(OutcomeFault)
		return true
	}
	if untilClosed(ctx, conn) {
		rc.end(OutcomeAborted)
	} else {
		rc.end(OutcomeFault)
	}
	return true
}

// strikeRequest applies the faults that replace the answer.
func strikeRequest(ctx context.Context, w http.ResponseWriter, f fault, rc *entry) bool {
	switch f.mode {
	case faultHangHead:
		<-ctx.Done()
		rc.end(OutcomeAborted)
		breakConnection()
	case faultStatus:
		if f.arg == http.StatusTooManyRequests || f.arg == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		writeError(w, &apiError{status: f.arg, kind: http.StatusText(f.arg), message: "the simulated engine answers " + itoa(f.arg)})
		rc.update(func(r *Receipt) { r.Status = f.arg })
		rc.end(OutcomeFault)
		return true
	}
	return false
}

// FaultField is the body field that does what [FaultHeader] does: routers that
// forward few headers relay bodies as they are.
const FaultField = "sim_fault"

// bodyFault reads a fault out of the body and applies it where it replaces the
// answer; it reports whether it did.
func bodyFault(ctx context.Context, w http.ResponseWriter, b body, rc *entry) (fault, bool) {
	text := faultOK
	if err := b.get(FaultField, &text); err != nil {
		reject(w, rc, err)
		return fault{}, true
	}
	f, err := parseFault(text)
	if err != nil {
		reject(w, rc, badRequest(FaultField, "%v", err))
		return fault{}, true
	}
	if f.mode != "" {
		rc.update(func(r *Receipt) { r.Fault = f.text })
	}
	return f, strikeConnection(ctx, w, f, rc) || strikeRequest(ctx, w, f, rc)
}

// readBody reads and notes the whole body.
func readBody(r *http.Request, rc *entry) ([]byte, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	sum := sha256.Sum256(raw)
	rc.update(func(c *Receipt) {
		c.BytesIn = int64(len(raw))
		if err == nil {
			c.BodySHA256 = hex.EncodeToString(sum[:])
		}
		c.Trailer = strings.Join(slices.Sorted(maps.Keys(r.Trailer)), ",")
	})
	return raw, err
}

// bodyError is the answer to a body that could not be read.
func bodyError(err error) *apiError {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError", message: err.Error()}
	}
	return badRequest("", "the body could not be read: %v", err)
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

func tokensSent(j *job) int {
	n := 0
	for _, c := range j.choices {
		n += c.sent
	}
	return n
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// wait returns when every choice is finished.
func wait(ctx context.Context, j *job) error {
	for {
		if !slices.ContainsFunc(j.choices, func(c *choice) bool { return !c.seq.finished.Load() }) {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-j.choices[0].seq.notify:
		}
	}
}

// unary writes a whole answer.
func unary(p *reply, v any, j *job) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := p.unary(b); err != nil {
		return err
	}
	for _, c := range j.choices {
		c.sent = len(c.pieces)
	}
	return nil
}

// stream writes tokens as they are produced.
func stream(p *reply, j *job) error {
	// The head goes out with the first token, as an engine's does: a failure
	// before it can still be a status.
	if err := firstToken(p, j); err != nil {
		return err
	}
	if err := p.startStream(); err != nil {
		return err
	}
	var buf []byte
	for {
		all, err := writeReady(p, j, &buf)
		p.entry.update(func(r *Receipt) { r.EventsSent, r.TokensSent = p.events, tokensSent(j) })
		if err != nil {
			return err
		}
		if all {
			break
		}
		if err := p.flush(); err != nil {
			return err
		}
		select {
		case <-p.ctx.Done():
			return p.ctx.Err()
		case <-j.choices[0].seq.notify:
		}
	}
	if b := p.frame.usage(buf[:0], j.usage()); len(b) > 0 {
		if err := p.event(0, b); err != nil {
			return err
		}
	}
	return p.finishStream()
}

// firstToken waits for the first output token of any choice.
func firstToken(p *reply, j *job) error {
	for !slices.ContainsFunc(j.choices, func(c *choice) bool { return c.seq.produced.Load() > 0 }) {
		select {
		case <-p.ctx.Done():
			return p.ctx.Err()
		case <-j.choices[0].seq.notify:
		}
	}
	return nil
}

// writeReady writes every token produced and not yet sent, and reports whether
// all choices are complete.
func writeReady(p *reply, j *job, buf *[]byte) (bool, error) {
	all := true
	for i, c := range j.choices {
		ready := int(c.seq.produced.Load())
		if err := writeChoice(p, i, c, ready, buf); err != nil {
			return false, err
		}
		all = all && c.closed
	}
	return all, nil
}

// writeChoice writes choice i up to its ready-th token.
func writeChoice(p *reply, i int, c *choice, ready int, buf *[]byte) error {
	if ready == 0 || c.closed {
		return nil
	}
	send := func(b []byte) error {
		*buf = b
		if len(b) == 0 {
			return nil
		}
		return p.event(i, b)
	}
	if !c.opened {
		c.opened = true
		if err := send(p.frame.open((*buf)[:0], i, usageOf(c))); err != nil {
			return err
		}
	}
	for c.sent < ready {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		text := c.pieces[c.sent]
		c.sent++ // before the write: a cut after this event has sent it
		if text == "" {
			continue
		}
		if err := send(p.frame.delta((*buf)[:0], i, text)); err != nil {
			return err
		}
	}
	if c.sent < len(c.pieces) {
		return nil
	}
	c.closed = true
	return send(p.frame.finish((*buf)[:0], i, c.reason, usageOf(c)))
}

// requestID is the client's id, or one of our own.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return rand.Text()
}

// reject answers with an error of the request's own making.
func reject(w http.ResponseWriter, rc *entry, err *apiError) {
	rc.update(func(r *Receipt) { r.Status, r.Error = err.status, err.message })
	writeError(w, err)
	rc.end(OutcomeRejected)
}

// writeError writes err in OpenAI's shape.
func writeError(w http.ResponseWriter, err *apiError) {
	var param any
	if err.param != "" {
		param = err.param
	}
	writeJSON(w, err.status, map[string]any{"error": map[string]any{
		"message": err.message, "type": err.kind, "param": param, "code": err.status,
	}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may be gone
}

func itoa(n int) string { return strconv.Itoa(n) }
