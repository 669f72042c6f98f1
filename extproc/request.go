package extproc

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/trust"
)

func (x *exchange) requestHeaders(ctx context.Context, m *message) error {
	if err := x.readRequestHeaders(m.headers); err != nil {
		return x.malformed(ctx, err)
	}
	if len(x.method) == 0 && !m.eos { // who shows no pseudo-headers, and a body, means a POST
		x.method = append(x.method, http.MethodPost...)
	}
	if err := x.subset.observe(m.metadata); err != nil {
		return x.malformed(ctx, err)
	}
	if limit := x.cfg.MaxInFlight; limit > 0 && x.s.metrics.open.Load() > int64(limit) {
		return tooMany()
	}
	if m.eos {
		return x.answerBodiless(ctx)
	}
	switch x.requestMode {
	case modeBuffered, modeBufferedPartial:
		x.open = true
		x.push(x.s.asm.route(answerRequestHeaders, &route{forged: x.route.forged, reselect: x.route.reselect}))
	case modeStreamed, modeNone:
		if err := x.pickUnseen(ctx); err != nil {
			return err
		}
		x.push(x.s.asm.route(answerRequestHeaders, &x.route))
		return nil
	default:
		x.held = true
	}
	if x.body.expect > x.cfg.MaxBody {
		return tooLarge(x.cfg.MaxBody)
	}
	return nil
}

// answerBodiless answers a request that ends with its headers. GET and its like
// go to any worker; a prompt must have a body, and the scan says so.
func (x *exchange) answerBodiless(ctx context.Context) error {
	var err error
	if x.api != prompt.Other && string(x.method) == http.MethodPost {
		err = x.pickSeen(ctx, nil)
	} else {
		err = x.pickUnseen(ctx)
	}
	if err != nil {
		return err
	}
	x.push(x.s.asm.route(answerRequestHeaders, &x.route))
	return nil
}

func (x *exchange) readRequestHeaders(raw []byte) error {
	x.pathless = true
	var infera, client []byte
	it := headerIter{rest: raw}
	for it.next() {
		switch string(it.key) {
		case ":authority", "host":
			x.host = append(x.host[:0], it.value...)
		case HeaderRequestID:
			if infera == nil {
				infera = it.value
			}
		case ":path":
			x.pathless = false
			x.api = prompt.KindOf(string(it.value))
		case ":method":
			x.method = append(x.method[:0], it.value...)
		case "x-request-id":
			if client == nil {
				client = it.value
			}
		case "x-conversation-id":
			x.conversation = append(x.conversation[:0], it.value...)
		case "authorization":
			x.credential = append(x.credential[:0], it.value...)
		case "content-length":
			if n, err := strconv.Atoi(string(it.value)); err == nil && n > 0 {
				x.body.expect = n
			}
		case "content-encoding":
			if x.encoding == nil {
				x.encoding = http.Header{}
			}
			x.encoding.Add("Content-Encoding", string(it.value))
		default:
			x.readAdmission(it.key, it.value)
			x.readPool(it.key, it.value)
			x.forget(it.key)
		}
	}
	x.identify(infera, client)
	if p, ok := x.s.deps.Objectives.Priority(x.objective); ok && !x.prioritized {
		x.priority = p
	}
	return it.err
}

// identify notes the request's names.
func (x *exchange) identify(infera, client []byte) {
	x.id = string(client[:min(len(client), maxNamed)])
	x.rid = x.id
	if len(infera) > 0 || !trust.ValidID(x.id) || len(x.id) != len(client) {
		x.rid = trust.RequestID(string(infera), string(client))
	}
}

// maxNamed is how many bytes of a client's request ID go into logs and records.
const maxNamed = 256

// forget has a client's header removed that could steer what is behind us.
func (x *exchange) forget(key []byte) {
	if len(key) < 3 || key[0]|0x20 != 'x' || key[1] != '-' {
		return
	}
	var lower [64]byte
	name := append(lower[:0], key...)
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
	if forgeable(string(name)) && !slices.Contains(x.route.forged, string(key)) {
		x.route.forged = append(x.route.forged, string(key))
	}
}

// readAdmission reads the headers that say whose a request is and how urgent.
func (x *exchange) readAdmission(key, value []byte) {
	h := &x.cfg.Admission
	switch {
	case h.Tenant != "" && string(key) == h.Tenant:
		x.tenant = string(value)
	case h.Priority != "" && string(key) == h.Priority:
		x.priority, x.prioritized = admission.PriorityOf(string(value)), true
	}
}

// readPool reads the headers that concern the pool.
func (x *exchange) readPool(key, value []byte) {
	switch string(key) {
	case HeaderObjective:
		if x.s.deps.Objectives != nil {
			x.objective = string(value)
		}
	case HeaderRewrite:
		if x.cfg.RewriteHeader {
			x.renamed = string(value)
		}
	case headerSelection:
		if x.cfg.Conformance && len(value) > 0 {
			x.subset.fix(string(value))
		}
	}
}

func (x *exchange) requestBody(ctx context.Context, m *message) error {
	x.s.metrics.bytesIn.Add(float64(len(m.body)))
	if err := x.subset.observe(m.metadata); err != nil {
		return x.malformed(ctx, err)
	}
	switch {
	case x.held, x.open:
		if len(m.body) > x.cfg.MaxBody-x.body.size {
			return tooLarge(x.cfg.MaxBody)
		}
		n := int64(len(m.body))
		if !x.s.bodies.Take(n) {
			return busy()
		}
		x.buffered += n
		x.body.add(m)
		if x.open {
			return x.answerBuffered(ctx, m.eos)
		}
		if m.eos {
			return x.answerHeld(ctx, true)
		}
	case x.requestMode == modeFullDuplex:
		x.out = x.s.asm.pieces(x.out, answerRequestBody, m.buf, m.bodyAt, m.bodyAt+len(m.body), x.cfg.ChunkSize, m.eos)
	default:
		x.push(x.s.asm.same(m.kind))
	}
	return nil
}

// requestTrailers ends a body whose last chunk did not say so: with trailers,
// Envoy sends no end_of_stream.
func (x *exchange) requestTrailers(ctx context.Context, m *message) error {
	switch {
	case x.held:
		if err := x.answerHeld(ctx, false); err != nil {
			return err
		}
	case x.open:
		// Headers are answered already and no body will come to carry the pick.
		return &refusal{
			status: http.StatusBadRequest, kind: typeInvalid, code: "no_body",
			message: "the request has trailers and no body",
		}
	}
	x.push(x.s.asm.same(m.kind))
	return nil
}

// answerHeld picks with the whole body, answers the headers and passes the body
// on. eos tells whether the body's last piece ends the request.
func (x *exchange) answerHeld(ctx context.Context, eos bool) error {
	if err := x.pickSeen(ctx, x.body.bytes()); err != nil {
		return err
	}
	x.held = false
	x.rename()
	x.push(x.s.asm.route(answerRequestHeaders, &x.route))
	buf, from, to := x.body.take()
	x.out = x.s.asm.pieces(x.out, answerRequestBody, buf, from, to, x.cfg.ChunkSize, eos)
	buf.Free()
	x.unbuffer()
	return nil
}

// answerBuffered picks with a body that came in one message. Of a partial body
// (over the data plane's buffer) the end is missing, so it can't be scanned.
func (x *exchange) answerBuffered(ctx context.Context, eos bool) error {
	x.open = false
	var err error
	if x.requestMode == modeBufferedPartial && !eos {
		err = x.pickUnseen(ctx)
	} else {
		err = x.pickSeen(ctx, x.body.bytes())
	}
	if err != nil {
		return err
	}
	if x.rename() {
		x.route.body = x.body.bytes()
	}
	x.push(x.s.asm.route(answerRequestBody, &x.route))
	x.route.body = nil
	x.body.reset()
	x.unbuffer()
	return nil
}

// pickSeen picks for a request whose body is known, and measures how long that
// takes.
func (x *exchange) pickSeen(ctx context.Context, body []byte) error {
	began := x.s.now()
	err := x.pickFor(ctx, body, began)
	x.s.metrics.pick.Observe(x.s.now().Sub(began).Seconds())
	return err
}

func (x *exchange) pickFor(ctx context.Context, body []byte, began time.Time) error {
	if x.pathless {
		x.api = guess(body)
	}
	if err := x.scan.Scan(x.api, x.encoding, body); err != nil {
		return err
	}
	x.rewrite()
	if err := x.salt(began); err != nil {
		return err
	}
	x.request()
	r := &x.req
	r.Model, r.Unary = x.scan.Model, !x.scan.Stream
	if x.api == prompt.Other {
		// The model is preferred where it is served: a path we don't know may name
		// models its own way.
		r.AnyModel, r.ByLoad, r.NoPair, r.Reason = true, true, true, prompt.ReasonOtherPath
		return x.pick(ctx)
	}
	x.sizes = x.s.deps.Picker.BlockSizes(r.Model, x.sizes[:0])
	x.s.deps.Preparer.Prepare(ctx, &x.scan, x.sizes, &x.prep)
	if err := ctx.Err(); err != nil { // the client left meanwhile
		return err
	}
	x.report = audit.Of(&x.scan, &x.prep, began)
	r.Tokens, r.Blocks, r.Approx, r.Reason = x.prep.Tokens, x.prep.Blocks, x.prep.Approx, x.prep.Reason
	r.Retention = picker.Retention(x.scan.Retention)
	r.Session = x.session()
	r.Multimodal, r.Images = x.scan.Multimodal, x.scan.Images
	return x.pick(ctx)
}

// salt puts the salt in place under which the forwarder sends the prompt, so that
// its blocks are looked for where they are. The body is the forwarder's to edit.
func (x *exchange) salt(now time.Time) error {
	salts := x.s.deps.Salts
	switch {
	case x.api == prompt.Other:
	case salts.Derives():
		x.scan.CacheSalt = salts.Keys.Salt(now, x.tenant, x.scan.CacheSalt)
	case salts.Requires() && x.scan.CacheSalt == "":
		return &prompt.BadRequest{
			Status: http.StatusBadRequest, Code: "cache_salt_required", Param: "cache_salt",
			Message: "send a cache_salt: prompts of different salts share no cache",
		}
	}
	return nil
}

// session names the conversation. Whose it is tells the tenant's header, which
// somebody has verified, or else what the client authenticates with.
func (x *exchange) session() string {
	if x.tenant != "" {
		return picker.SessionKey(x.tenant, string(x.conversation), x.scan.User())
	}
	return picker.SessionKey(x.credential, x.conversation, x.scan.User())
}

// pickUnseen picks by load, for a request whose body is not known or not there.
func (x *exchange) pickUnseen(ctx context.Context) error {
	x.request()
	x.req.Unary = true
	x.req.AnyModel, x.req.ByLoad, x.req.NoPair, x.req.Reason = true, true, true, prompt.ReasonOtherPath
	x.req.AnyRole = string(x.method) != http.MethodPost // a POST may be a generation, and half a pair does none
	return x.pick(ctx)
}

// request starts x.req with what holds for every pick.
func (x *exchange) request() {
	x.req = picker.Request{
		ID: x.id, Subset: x.subset.endpoints, HasSubset: x.subset.given,
		Fallbacks: x.cfg.Endpoints - 1,
	}
}

// to makes r the route of a decision.
func (r *route) to(dec *picker.Decision, port int) {
	r.destination = appendDestination(r.destination[:0], dec.Worker, port)
	r.fallback = r.fallback[:0]
	for _, w := range dec.Fallbacks {
		if strings.IndexByte(w.ID, ',') >= 0 {
			continue // no list can name it
		}
		r.destination = appendDestination(append(r.destination, ','), w, port)
		if len(r.fallback) > 0 {
			r.fallback = append(r.fallback, ',')
		}
		r.fallback = append(r.fallback, w.ID...)
	}
	r.worker, r.prefill, r.rank, r.prefillRank = dec.Worker.ID, "", r.rank[:0], r.prefillRank[:0]
	r.alone = dec.Worker.Role == fleet.Decode && dec.Prefill == nil
	if dec.Prefill != nil {
		r.prefill = dec.Prefill.ID
		if dec.PrefillRank >= 0 {
			r.prefillRank = strconv.AppendInt(r.prefillRank, int64(dec.PrefillRank), 10)
		}
	}
	if dec.Rank >= 0 {
		r.rank = strconv.AppendInt(r.rank, int64(dec.Rank), 10)
	}
}

// appendDestination appends w.Destination(port) without allocating.
func appendDestination(dst []byte, w *fleet.Worker, port int) []byte {
	if w.Endpoint != "" {
		return append(dst, w.Endpoint...)
	}
	for i := range len(w.Host) {
		if w.Host[i] == ':' { // IPv6
			dst = append(append(append(dst, '['), w.Host...), ']')
			return strconv.AppendInt(append(dst, ':'), int64(port), 10)
		}
	}
	return strconv.AppendInt(append(append(dst, w.Host...), ':'), int64(port), 10)
}
