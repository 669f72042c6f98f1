package forward

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"pointsman/admission"
	"pointsman/prompt"
	"pointsman/trust"
)

// forward serves one request that needs a worker.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, client *guardedConn) {
	x := s.begin(w, r)
	if x.client = client; client != nil && r.ContentLength != 0 {
		x.ctx = &x.life
		client.serve(&x.life)
		defer x.release()
	}
	defer x.limit()()
	inflight := s.metrics.running(x.router())
	inflight.Inc()
	defer inflight.Dec()
	defer x.leaveFlight()

	err := x.serve() //nolint:contextcheck // it goes by x.ctx, made of the request's
	x.finish(r.Context(), err)
	x.ticket.Done(x.status > 0 && x.status < http.StatusInternalServerError && x.status != http.StatusTooManyRequests)
	if errors.Is(err, prompt.ErrTooLarge) || errors.Is(err, admission.ErrExhausted) {
		linger(&x.rc, r)
	}
	if x.abort {
		panic(http.ErrAbortHandler) // net/http's way to end a response visibly broken
	}
}

// begin returns a request's exchange. Every stream's goroutine keeps the stack that its
// deepest call has needed, so that the functions above that call keep little on it:
// see next.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) *exchange {
	now := time.Now()
	x := new(exchange)
	x.s, x.cfg, x.w, x.r, x.ctx, x.start = s, s.cfg.Load(), w, r, r.Context(), now
	x.rc = *http.NewResponseController(w)
	x.id = requestID(r.Header, now)
	x.kind = kindOf(r)
	x.route = routingOf(r.Header)
	x.direct = x.cfg.Mode == Direct && x.route.worker != ""
	switch {
	case x.direct:
		x.vouch(now) //nolint:contextcheck // the request's own is in x
	case x.cfg.Mode == Direct:
		s.metrics.directed(directAbsent)
	}
	x.workers = x.firstWorkers[:0]
	x.tries = x.firstTries[:0]
	s.budget.request(now)
	return x
}

// kindOf returns what the path asks for; only a POST can be scored.
func kindOf(r *http.Request) prompt.Kind {
	if r.Method != http.MethodPost {
		return prompt.Other
	}
	return prompt.KindOf(r.URL.Path)
}

// serve reads, scans and dispatches the request.
func (x *exchange) serve() error {
	if x.untrusted != nil {
		return fmt.Errorf("%w: %w", errUntrusted, x.untrusted)
	}
	if x.r.Method == http.MethodConnect || x.r.URL.Path == "" || x.r.URL.Path[0] != '/' {
		return errMethod
	}
	if err := x.admit(); err != nil {
		return err
	}
	x.prepareHeader()
	x.describePick()
	defer x.releaseScored()
	x.takeOff()
	defer x.leaveGate()
	err := x.attempts()
	if err == nil {
		x.audit()
	}
	return err
}

// admit reads the body and finds out what it asks for.
func (x *exchange) admit() error {
	if x.badBudget != nil {
		return x.badBudget
	}
	body, err := x.s.readBody(&x.rc, x.r, bodyLimit{x.cfg.MaxBody, x.cfg.MinBodyRate, x.client.hasBody()})
	if err != nil {
		if x.gone(err) {
			return errClientGone
		}
		return err
	}
	x.body = body
	x.client.watch()
	var raw []byte
	if body != nil {
		raw = *body
	}
	x.bytesIn = len(raw)
	x.s.metrics.bytesIn.Add(float64(len(raw)))
	return x.read(raw)
}

// asked is what the body asks for, as far as it is needed for as long as the
// request lasts: the scan itself goes back with the body.
type asked struct {
	Model     string
	Stream    bool
	N, BestOf int
	Retention prompt.Retention
}

// read scans the body.
func (x *exchange) read(raw []byte) (err error) {
	r, ok := x.s.scans.Get().(*prompt.Request)
	if !ok {
		r = new(prompt.Request)
	}
	x.parsed = r
	if x.kind == prompt.Other && x.r.Method == http.MethodPost && isResponses(x.r.URL.Path) {
		err = r.ScanStrictly(x.r.Header, raw)
	} else {
		err = r.Scan(x.kind, x.r.Header, raw)
	}
	x.scan = asked{Model: r.Model, Stream: r.Stream, N: r.N, BestOf: r.BestOf, Retention: r.Retention}
	if err != nil {
		return err
	}
	return x.edit()
}

// prepareHeader makes the headers that go to every worker tried.
func (x *exchange) prepareHeader() {
	x.target = x.r.URL.RequestURI()
	x.outHeader = outgoing(x.r.Header)
	if x.clientID = field(x.outHeader, headerClientID); !trust.ValidID(x.clientID) {
		x.clientID = x.id
	}
	x.nonce = newNonce()
	if x.identity() {
		x.outHeader["Accept-Encoding"] = x.value("identity")
	}
}

// identity reports whether the answer must not be compressed: its events, or its
// end, are to be seen.
func (x *exchange) identity() bool { return x.kind != prompt.Other || isResponses(x.r.URL.Path) }

// pure reports whether a path of engines only computes: a request to it may be
// repeated like a generation. Of other paths nothing is known, so that only what
// cannot have run is repeated.
func pure(path string) bool {
	if isResponses(path) {
		return true
	}
	switch path {
	case "/v1/embeddings",
		"/v1/messages/count_tokens",
		"/v1/rerank",
		"/v2/rerank",
		"/rerank",
		"/v1/score",
		"/score",
		"/pooling",
		"/classify",
		"/generate",
		"/encode",
		"/tokenize",
		"/detokenize",
		"/v1/audio/transcriptions",
		"/v1/audio/translations":
		return true
	}
	return false
}

// repeatable reports whether running the request twice does no harm beyond the
// cost of it.
func (x *exchange) repeatable() bool {
	switch x.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return x.kind != prompt.Other || pure(x.r.URL.Path)
}
