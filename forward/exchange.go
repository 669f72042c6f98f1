package forward

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/reports"
	"pointsman/trust"
)

// exchange is one client request on its way.
type exchange struct {
	s      *Server
	cfg    *Config // as it was when the request came
	w      http.ResponseWriter
	r      *http.Request
	rc     http.ResponseController
	client *guardedConn    // by which an HTTP/1 request came; nil for others
	conn   *guardedConn    // that gathers what a stream writes; nil for none
	ctx    context.Context //nolint:containedctx // its life is the request's
	life   life            // that it is of where the connection says when the client leaves
	start  time.Time
	id     string

	kind         prompt.Kind
	target       string
	outHeader    http.Header
	body         *[]byte // nil when there is none, or when it is not needed any more
	scan         asked
	parsed       *prompt.Request // what scan and the pick are made of; nil when it is not needed any more
	scored       *scored         // nil for what is not scored here
	tail         *audit.Tail     // the answer's last bytes; nil when nobody asks for its usage
	flight       *reports.Flight // nil when nobody counts
	picked       reports.Pick    // what the endpoint picker has told of it
	report       audit.Report    // what the pick foresaw of it
	served       picker.Decision // by which the answer's first content came
	pick         picker.Request
	gate         *admitted // nil for what has not come to the gate
	direct       bool      // the headers name the worker
	route        routing
	badBudget    error     // of the header by which the client bounds the answer's time
	untrusted    error     // why the headers are not believed, when that is to be told
	ticket       trust.Use // by which they are
	own          string    // worker served in place of the named one: the gateway has fallen back to this forwarder
	workers      []string  // that have been asked; the first ones in firstWorkers
	firstWorkers [2]string
	values       [5]string // of headers; see value
	valued       int       // of these, those in use
	tried        []string  // of these and of prefill workers, those that failed
	paired       bool      // a prefill/decode pair has been asked
	object       *Object   // the body's members, once a pair has been asked
	current      *attempt  // the latest
	spent        int       // retries that count as such
	redispatched bool      // a prefill leg has been repeated
	undialed     int       // decode workers that could not be reached
	localTo      string    // decode worker that is to compute the prompt itself, after its prefill worker failed
	deadline     time.Time // by which the client wants all of the answer; zero for none
	clientID     string    // X-Request-Id for workers, and for the client when a worker returns its own
	nonce        nonce     // ends the names under which engines know the request

	mu         sync.Mutex // guards what both legs of a pair write
	tries      []*try
	sent       [legCount]byte
	denied     bool    // the latest repetition that was wanted was one too many for the budget
	firstTries [2]*try // of tries, beginning with it

	stream   *stream // the latest; nil for none
	first    attempt // most requests have no other, nor a second try
	firstTry try

	committed  bool // the response head has been handed to net/http
	abort      bool // the body broke: the connection must not end cleanly
	status     int
	bytesIn    int    // of the request's body
	tokens     int    // events with content that have come
	finished   string // finish reason that the worker told; "" for none
	written    int64
	writeUntil time.Time // the write deadline in force
	firstAt    time.Time // of the first content
	prefix     string    // hashes of the prompt's blocks, for the log
}

// router is which of Infera's routers would have served a request: a label of metrics.
type router uint8

const (
	routerMixed router = iota
	routerDirect
	routerDisagg
	routers
)

func (r router) String() string { return [...]string{"mixed", "direct", "disagg"}[r] }

func (x *exchange) router() router {
	if x.direct {
		return routerDirect
	}
	if x.paired {
		return routerDisagg
	}
	return routerMixed
}

// commit sends the response head. From here on no other worker can be tried, so
// the request's body is given back.
func (x *exchange) commit(status int) {
	x.s.pending.settle(x.current)
	x.identify()
	x.nameWorker(x.answering(), status)
	x.tellGate()
	x.w.WriteHeader(status)
	x.committed, x.status = true, status
	x.releaseBody()
}

// answering returns the try whose answer is being relayed.
func (x *exchange) answering() *try {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, t := range slices.Backward(x.tries) {
		if t.leg != legPrefill {
			return t
		}
	}
	return nil
}

// identify puts the request's ID into the response, and takes out the name under
// which the engine knew it.
func (x *exchange) identify() {
	h := x.w.Header()
	h[headerRequestID] = x.value(x.id)
	if x.cfg.EngineRequestID && len(h[headerClientID]) > 0 {
		h[headerClientID] = []string{x.clientID}
	}
}

// nameWorker tells in the response which worker it came from: after a fail-over
// that is another than the endpoint picker chose. And it tells how the tries
// before it ended, so that the picker blames whom it must.
func (x *exchange) nameWorker(answering *try, status int) {
	if !x.cfg.NameWorker {
		return
	}
	h := x.w.Header()
	if n := len(x.workers); n > 0 {
		h[headerWorker] = x.value(x.workers[n-1])
	}
	h[headerAttempts] = x.value(x.receipt(answering, status))
}

// value returns a header field's values: v alone. The headers that every request
// sets share one array, for each slice of its own would be an allocation. Only the
// request's own goroutine may call it.
func (x *exchange) value(v string) []string {
	n := x.valued
	if n == len(x.values) {
		return []string{v}
	}
	x.values[n] = v
	x.valued++
	return x.values[n : n+1 : n+1]
}

// releaseBody gives back the body and what was read out of it.
func (x *exchange) releaseBody() {
	if x.parsed != nil {
		x.pick.Images = nil // the scan's memory
		x.parsed.Reset()
		x.s.scans.Put(x.parsed)
		x.parsed = nil
	}
	if x.body != nil {
		x.s.bodies.Give(int64(cap(*x.body)))
		x.s.bufs.put(x.body)
		x.body = nil
	}
}

// write sends p to the client. Its only error is errClientGone: a client that
// takes nothing for Config.WriteTimeout counts as gone.
func (x *exchange) write(p []byte, f flushing) error {
	if limit := x.cfg.WriteTimeout; limit > 0 && x.client == nil { // else the connection sees to it
		if now := time.Now(); x.writeUntil.Sub(now) < limit*3/4 {
			x.writeUntil = now.Add(limit)
			_ = x.rc.SetWriteDeadline(x.writeUntil) // not supported by the writers of some tests only
		}
	}
	x.conn.gather(true)
	n, err := x.w.Write(p)
	x.conn.gather(false)
	x.written += int64(n)
	if x.tail != nil {
		x.tail.Add(p)
	}
	if err == nil && bool(f) {
		err = x.rc.Flush()
	}
	if err != nil {
		return errClientGone
	}
	return nil
}

// firstToken notes that the worker has produced something of the answer. Its
// error says that the attempt has failed all the same.
func (x *exchange) firstToken(a *attempt) error {
	if !x.firstAt.IsZero() {
		return nil
	}
	if !a.waits.token() {
		return errFirstToken
	}
	if !x.s.pending.settle(a) {
		return errDeparted
	}
	if a.begin != nil {
		if err := a.begin(); err != nil {
			return err
		}
	}
	x.firstAt, x.served = time.Now(), *a.decision
	if a.last != nil {
		a.last.progress.Reach(StageBody)
	}
	a.decision.FirstToken(x.firstAt)
	x.flight.First(x.firstAt)
	x.streamBegan(x.firstAt)
	return nil
}

// finish answers a request that could not be served, as far as it still can be,
// and counts it.
func (x *exchange) finish(ctx context.Context, err error) {
	switch {
	case err == nil || x.committed:
	case errors.Is(err, errClientGone):
		x.abort = true // net/http would make up an empty 200, and half of the client may be there
	default:
		x.fail(err)
	}
	x.releaseBody()
	outcome := x.outcome(err)
	took := time.Since(x.start)
	x.s.metrics.finished(x.router(), outcome, took)
	end := x.ending(err)
	x.s.metrics.endedAs(end)
	if err != nil {
		x.s.metrics.pairs.unpaired(err, x.route.prefill != "")
	}
	x.remember(err, end, took)
	x.land(took)
	x.s.metrics.bytesOut.Add(float64(x.written))
	x.log(ctx, err, outcome, took)
}

// fail sends err as the response. A worker's own refusal, and any answer to a
// path that we only pass through, goes out as it came (Retry-After included);
// a failure's text does not, for it may tell of the inside of the fleet.
func (x *exchange) fail(err error) {
	x.identify()
	told := describe(err)
	x.committed, x.status = true, told.status
	var ans *answer
	if errors.As(err, &ans) && ans.complete && (ans.status < 500 || x.kind == prompt.Other && ans.header != nil) {
		h := x.w.Header()
		copyResponse(h, ans.header)
		if ans.header == nil { // came as an event
			h.Set("Content-Type", "application/json")
		}
		h.Set("Content-Length", strconv.Itoa(len(ans.body)))
		x.identify()
		x.nameWorker(nil, 0)
		x.w.WriteHeader(ans.status)
		n, _ := x.w.Write(ans.body)
		x.written += int64(n)
		return
	}
	if errors.Is(err, picker.ErrNoModel) && x.scan.Model != "" {
		told.message = "the model " + strconv.Quote(clip(x.scan.Model)) + " does not exist in this fleet"
	}
	if told.status == http.StatusRequestEntityTooLarge || told.status == http.StatusRequestTimeout {
		x.w.Header().Set("Connection", "close") // the rest of the body is not worth reading
	}
	x.nameWorker(nil, 0)
	x.tellGate()
	x.written += int64(told.write(x.w, shapeOf(x.kind), x.id, x.attemptID()))
}

// attemptID returns the ID of the last try, of a pair that of its decode leg; ""
// when no worker has been asked.
func (x *exchange) attemptID() string {
	if t := x.answering(); t != nil {
		return t.id
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.tries); n > 0 {
		return x.tries[n-1].id
	}
	return ""
}

func (x *exchange) outcome(err error) string {
	if err == nil {
		return statusLabel(x.status)
	}
	return x.failure(err)
}

func (x *exchange) failure(err error) string {
	var broken *Error
	var event *errorEvent
	switch {
	case errors.Is(err, errClientGone), x.gone(err):
		return outcomeGone
	case x.abort, x.status < 400, errors.As(err, &event):
		return outcomeTruncated
	case x.status < 500:
		return outcome4xx
	case errors.As(err, &broken), errors.Is(err, errIdle), errors.Is(err, errMaxDuration), x.status == http.StatusInternalServerError && !isAnswer(err):
		return outcomeError
	}
	return outcome5xx
}

func isAnswer(err error) bool {
	var ans *answer
	return errors.As(err, &ans)
}

// log writes the request's access log line.
func (x *exchange) log(ctx context.Context, err error, outcome string, took time.Duration) {
	log := x.s.deps.Log
	if !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", x.id),
		slog.String("method", x.r.Method),
		slog.String("path", clip(x.r.URL.Path)),
		slog.String("model", clip(x.scan.Model)),
		slog.String("router", x.router().String()),
		slog.Int("status", x.status),
		slog.String("outcome", outcome),
		slog.Int("attempts", len(x.workers)),
		slog.Any("workers", x.workers),
		slog.String("receipt", x.receipt(nil, 0)),
		slog.Int64("response_bytes", x.written),
		slog.Duration("duration", took),
	}
	if !x.firstAt.IsZero() {
		attrs = append(attrs, slog.Duration("ttft", x.firstAt.Sub(x.start)))
	}
	if attrs = x.sizes(attrs); err != nil {
		attrs = append(attrs, slog.String("error", clip(err.Error())))
	}
	log.LogAttrs(ctx, slog.LevelDebug, "request finished", attrs...)
}

// clip bounds what a client can put into a log attribute or an answer.
func clip(s string) string {
	const most = 256
	if len(s) > most {
		return s[:most]
	}
	return s
}
