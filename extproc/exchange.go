package extproc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
)

// exchange is the conversation about one HTTP request. A transport gives it
// messages in order and sends the answers it leaves in out, also in order.
type exchange struct {
	s   *Server
	cfg *Config  // as it was when the stream began
	out []answer // to be sent, oldest first; the transport empties it

	configured   bool
	requestMode  bodyMode
	responseMode bodyMode

	// The request.
	begun  bool // its headers came
	api    prompt.Kind
	method []byte // scratch
	id     string // x-request-id, as far as logs and records want it; "" for none
	rid    string // by which the forwarder knows the request; "" for none
	host   []byte // the authority; scratch

	conversation []byte // x-conversation-id; scratch
	credential   []byte // authorization, which keeps conversations apart; scratch

	encoding http.Header
	subset   subset
	body     gather
	buffered int64 // bytes of the body that count in the server's budget
	held     bool  // the headers answer waits for the end of the body
	open     bool  // a BUFFERED body is awaited

	// The pick.
	scan   prompt.Request
	prep   prompt.Prepared
	req    picker.Request
	sizes  []int
	dec    picker.Decision
	picked bool // dec is a reservation not given back yet

	pickNumber uint64 // of the pick, for the forwarder's reports; 0 before it
	ticket     *admission.Request
	pass       admission.Pass
	tenant     string
	// watch makes the transport look out for the stream's end while the request
	// waits, and call cancel then; nil for a transport that can't.
	watch    func(cancel context.CancelCauseFunc)
	priority int
	// prioritized says that priority is a header's, which whoever authenticates
	// clients has set: no objective changes it.
	prioritized bool
	objective   string // the name of the request's; "" for none
	pathless    bool   // the gateway showed no path
	renamed     string // the model that a header, or a rewrite of the pool, puts in the body; "" for none
	route       route

	// The response.
	status    int  // 0 until response headers came
	ours      bool // the picked worker served it, as far as can be known
	first     bool // a first token was seen
	encoded   bool // the body is compressed
	outcome   breaker.Outcome
	prepared  bool         // a report of the end is taken, should the body be hidden
	asked     bool         // the gateway was asked to hide the body, and has shown none of it
	tail      *audit.Tail  // the body's last bytes
	report    audit.Report // what the pick foresaw, until the engine has told
	bytesOut  int
	responded bool // the response's end was seen
	refused   int  // status we answered ourselves; 0 for none
}

// start makes x ready for a request.
func (x *exchange) start() {
	if x.ticket == nil {
		x.ticket = &admission.Request{Pick: x.choose, Places: x.places}
	}
	x.requestMode, x.responseMode = modeFullDuplex, modeFullDuplex
	x.cfg = x.s.cfg.Load()
	x.route.reselect = x.cfg.ClearRouteCache
}

// on takes one message and appends its answers to x.out. It reports whether the
// exchange goes on; false means that the stream ends once out is sent. It never
// panics: a bug ends this request alone, with 500.
func (x *exchange) on(ctx context.Context, m *message) (goesOn bool) {
	defer func() {
		if p := recover(); p != nil {
			x.s.metrics.panics.Inc()
			x.s.log.LogAttrs(ctx, slog.LevelError, "request ended by a bug",
				slog.String("request_id", x.id), slog.Any("error", p), slog.String("stack", string(debug.Stack())))
			x.refuse(ctx, internalError())
			goesOn = false
		}
	}()
	err := x.dispatch(ctx, m)
	switch {
	case err == nil:
		return true
	case errors.Is(err, context.Canceled) && ctx.Err() != nil, errors.Is(err, errStreamEnded): // nobody is there to be answered
		return false
	}
	x.refuse(ctx, err)
	return false
}

func (x *exchange) dispatch(ctx context.Context, m *message) error {
	if m.err != nil {
		return x.malformed(ctx, m.err)
	}
	if m.configured && !x.configured {
		x.configured, x.requestMode, x.responseMode = true, known(m.requestMode), known(m.responseMode)
	}
	switch m.kind {
	case kindRequestHeaders:
		if x.begun { // a second pick would lose the first one's reservation
			return x.malformed(ctx, errSecondRequest)
		}
		x.begun = true
		return x.requestHeaders(ctx, m)
	case kindRequestBody:
		return x.requestBody(ctx, m)
	case kindRequestTrailers:
		return x.requestTrailers(ctx, m)
	case kindResponseHeaders:
		return x.responseHeaders(ctx, m)
	case kindResponseBody:
		x.responseBody(m) //nolint:contextcheck // what outlives the stream is told of its end
	case kindResponseTrailers:
		x.push(x.s.asm.same(m.kind))
		x.responseEnd()
	case kindNone: // of a later protocol; nothing to answer
	}
	return nil
}

var errSecondRequest = errors.New("request headers came twice on one stream")

// known takes a mode of a later protocol for the one that demands most of us.
func known(m bodyMode) bodyMode {
	if m < modeNone || m > modeFullDuplex {
		return modeFullDuplex
	}
	return m
}

func (x *exchange) push(a answer) { x.out = append(x.out, a) }

// malformed makes an unreadable message a refusal and tells the operator: the
// gateway is at fault, not the client.
func (x *exchange) malformed(ctx context.Context, err error) error {
	x.s.metrics.malformed.Inc()
	x.s.log.LogAttrs(ctx, slog.LevelWarn, "malformed message from the gateway",
		slog.String("request_id", x.id), slog.Any("error", err))
	return internalError()
}

// refuse answers the request with err, in place of anything not sent yet.
func (x *exchange) refuse(ctx context.Context, err error) {
	r := refuse(err)
	for i := range x.out {
		x.out[i].data.Free()
	}
	x.out = x.out[:0]
	x.refused = r.status
	if gate := x.s.deps.Gate; gate != nil && x.cfg.Admission.Tells(gate.Mode()) {
		inflight, queued, limit := gate.Counts()
		r.counts = []int{inflight, queued, limit}
	}
	x.s.metrics.refuse(r.status)
	level := slog.LevelDebug
	if r.status == http.StatusInternalServerError {
		level = slog.LevelError
	}
	x.s.log.LogAttrs(ctx, level, "request refused",
		slog.String("request_id", x.id), slog.Int("status", r.status), slog.String("code", r.code), slog.String("error", shorten(err.Error())))
	a, err := r.answer(x.api == prompt.Messages)
	if err != nil {
		x.s.log.LogAttrs(ctx, slog.LevelError, "refusal could not be encoded", slog.Any("error", err))
		return
	}
	x.push(a)
}

// unbuffer gives back what the body took of the server's budget.
func (x *exchange) unbuffer() {
	x.s.bodies.Give(x.buffered)
	x.buffered = 0
}

// release gives the reservation back, once.
func (x *exchange) release() {
	if x.picked {
		x.picked = false
		if x.outcome == breaker.Success && x.responded {
			x.dec.Answered(x.report.Output)
		}
		x.dec.Done(x.s.now(), x.outcome)
	}
	x.pass.Release() // after the worker: who waits needs both
	x.pass = admission.Pass{}
}

// maxKeptAnswers bounds the memory that an idle exchange keeps: more answers
// than this come only with bodies of megabytes.
const maxKeptAnswers = 64

// end closes the exchange when its stream has ended, however it did, and leaves
// it empty for the next.
func (x *exchange) end() {
	x.conceal()
	if !x.leave() {
		x.release()
	}
	x.unbuffer()
	m := x.s.metrics
	m.bytesOut.Add(float64(x.bytesOut))
	switch {
	case x.refused != 0:
		m.end(endRefused, x.refused)
	case x.responded:
		m.end(endComplete, x.status)
	case x.responseMode == modeNone:
		m.end(endUnobserved, x.status)
	default:
		m.end(endAborted, x.status)
	}
	for i := range x.out {
		x.out[i].data.Free()
	}
	x.body.reset()
	x.subset.reset()
	x.scan.Reset()
	x.tail.Reset()
	clear(x.credential)
	if cap(x.out) > maxKeptAnswers {
		x.out = nil
	}
	*x = exchange{
		s: x.s, ticket: x.ticket, out: x.out[:0], tail: x.tail, method: x.method[:0], subset: x.subset, body: x.body,
		scan: x.scan, prep: x.prep, sizes: x.sizes[:0],
		conversation: x.conversation[:0], credential: x.credential[:0],
		host: x.host[:0],
		route: route{
			destination: x.route.destination[:0], rank: x.route.rank[:0], prefillRank: x.route.prefillRank[:0], pick: x.route.pick[:0],
			fallback: x.route.fallback[:0], ticket: x.route.ticket[:0], forged: x.route.forged[:0], extra: x.route.extra[:0],
		},
	}
}
