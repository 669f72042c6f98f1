package extproc

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/prompt/audit"
)

func (x *exchange) responseHeaders(ctx context.Context, m *message) error {
	var upstream bool
	var receipt []byte
	it := headerIter{rest: m.headers}
	for it.next() {
		switch string(it.key) {
		case ":status":
			x.status, _ = strconv.Atoi(string(it.value))
		case "content-encoding":
			x.encoded = len(it.value) > 0 && string(it.value) != "identity"
		case "x-envoy-upstream-service-time":
			upstream = true
		case HeaderAttempts:
			receipt = it.value
		}
	}
	if it.err != nil {
		return x.malformed(ctx, it.err)
	}
	served, details := servedBy(m), detailsOf(m)
	x.attribute(served, details, upstream)
	x.move(served, details)
	x.settle(receipt)
	a := x.s.asm.same(m.kind)
	if tell := x.tell(m); len(tell) > 0 {
		a = x.s.asm.set(tell...)
	}
	x.push(a.with(x.hide(m)))
	switch {
	case m.eos:
		x.responseEnd()
	case x.responseMode == modeNone:
		x.progress() // no body will be shown
	}
	return nil
}

// tell returns the headers that the response gets.
func (x *exchange) tell(m *message) []header {
	var out []header
	if gate := x.s.deps.Gate; gate != nil && x.cfg.Admission.Tells(gate.Mode()) {
		inflight, queued, limit := gate.Counts()
		out = append(out, header{admission.HeaderInflight, strconv.Itoa(inflight)},
			header{admission.HeaderQueued, strconv.Itoa(queued)}, header{admission.HeaderLimit, strconv.Itoa(limit)})
	}
	if x.cfg.Conformance {
		out = append(out, header{headerConformance, servedForTest(m)})
	}
	return out
}

// unreached begins Envoy's word for an answer that it made because a worker broke
// the connection, or could not be reached, before it answered.
const unreached = "upstream_reset_before_response_started"

// attribute decides whose the response is. A retry may have gone to another
// worker; and Envoy answers by itself (no healthy upstream, reset, timeout),
// which says nothing about the picked worker unless it is named. upstream says
// that Envoy marked the response as coming from a worker, details what Envoy calls
// it. A picked worker that was passed over could not be reached (failover 2A).
func (x *exchange) attribute(served, details []byte, upstream bool) {
	if !x.picked || x.status == 0 {
		return
	}
	upstream = upstream || string(details) == "via_upstream"
	switch {
	case len(served) > 0 && !sameEndpoint(firstOf(x.route.destination), served):
		x.ours, x.outcome = false, breaker.Connect
		x.s.metrics.elsewhere.Inc()
	case bytes.HasPrefix(details, []byte(unreached)):
		x.ours, x.outcome = false, breaker.Connect // Envoy's own answer, because of the worker
	case len(served) > 0:
		x.ours = true
	case x.status == http.StatusServiceUnavailable || x.status == http.StatusGatewayTimeout:
		x.ours = upstream
	default:
		x.ours = true
	}
	// A success is earned by the first token, not by the headers.
	if o := breaker.OutcomeOf(x.status); x.ours && o != breaker.Success {
		x.outcome = o
	}
}

// settle believes a forwarder's receipt over what the status suggests. A 200 may
// have come from another worker after the picked one failed, and a 503 may be
// the forwarder's own. A picked worker that a receipt does not name was not asked.
func (x *exchange) settle(receipt []byte) {
	if !x.picked || len(receipt) == 0 {
		return
	}
	named, prefill := false, breaker.Neutral
	for part := range bytes.SplitSeq(receipt, []byte(",")) {
		leg, id, why, ok := splitReceipt(part)
		if !ok {
			continue
		}
		outcome, known := receiptOutcome(why)
		switch {
		case leg == 'p':
			if known && x.dec.Prefill != nil && string(id) == x.dec.Prefill.ID && outcome != breaker.Success {
				prefill = outcome
			}
		case string(id) == x.dec.Worker.ID:
			named = true
			if x.ours = outcome == breaker.Success; !x.ours {
				x.outcome = outcome
			}
		}
	}
	if !named && (string(receipt) == "none" || bytes.IndexByte(receipt, ';') >= 0) {
		x.ours = false
		if x.outcome != breaker.Connect { // passed over by the gateway already
			x.outcome = breaker.Neutral
		}
	}
	if prefill != breaker.Neutral {
		x.dec.PrefillDone(x.s.now(), prefill)
	}
}

// splitReceipt takes "d1@worker;refused" apart: the leg's letter, the worker and
// the word.
func splitReceipt(part []byte) (leg byte, id, why []byte, ok bool) {
	part = bytes.TrimSpace(part)
	name, rest, found := bytes.Cut(part, []byte("@"))
	cut := bytes.LastIndexByte(rest, ';')
	if !found || len(name) == 0 || cut <= 0 {
		return 0, nil, nil, false
	}
	return name[0], rest[:cut], rest[cut+1:], true
}

// receiptOutcome is what a receipt's word means for the worker's circuit. The
// words are package forward's (docs/failover.md lists them); those of other
// forwarders are no news.
func receiptOutcome(why []byte) (breaker.Outcome, bool) {
	switch string(why) {
	case "ok":
		return breaker.Success, true
	case "refused", "connect_timeout", "reset":
		return breaker.Connect, true
	case "invalid_response", "5xx", "error_event", "idle_timeout", "first_token_timeout", "truncated", "prefill_timeout", "handoff":
		return breaker.Origin, true
	case "stream_truncated", "stream_idle_timeout", "stream_error":
		return breaker.Stream, true
	case "transfer":
		return breaker.Transfer, true
	case "busy":
		return breaker.Busy, true
	}
	return breaker.Neutral, false
}

// sameEndpoint reports whether the endpoint that served is the one picked. A
// pick by host name can only be compared by port.
func sameEndpoint(picked, served []byte) bool {
	if bytes.Equal(picked, served) {
		return true
	}
	host, port, err := net.SplitHostPort(string(picked))
	if err != nil || net.ParseIP(host) != nil {
		return false
	}
	_, servedPort, err := net.SplitHostPort(string(served))
	return err == nil && port == servedPort
}

// progress notes that the picked worker produces: its first token, or an answer
// without a body. In a pair, the prefill worker has done its part by then.
func (x *exchange) progress() {
	if x.first || !x.picked || !x.ours || breaker.OutcomeOf(x.status) != breaker.Success {
		return
	}
	x.first, x.outcome = true, breaker.Success
	now := x.s.now()
	x.dec.FirstToken(now)
	if x.scan.Stream {
		x.pass.FirstToken(now)
	}
	x.dec.PrefillDone(now, breaker.Success)
}

func (x *exchange) responseBody(m *message) {
	x.shown()
	x.bytesOut += len(m.body)
	if len(m.body) > 0 {
		x.progress()
		if x.first && !x.encoded {
			x.tail.Add(m.body)
		}
	}
	if x.responseMode == modeFullDuplex {
		x.out = x.s.asm.pieces(x.out, answerResponseBody, m.buf, m.bodyAt, m.bodyAt+len(m.body), x.cfg.ChunkSize, m.eos)
	} else {
		x.push(x.s.asm.same(m.kind))
	}
	if m.eos {
		x.responseEnd()
	}
}

// responseEnd is the regular end of a request.
func (x *exchange) responseEnd() {
	if x.responded {
		return
	}
	x.responded = true
	x.progress()
	x.audit()
	x.release()
}

// audit tells what the engine counted, beside what the pick foresaw.
func (x *exchange) audit() {
	if !x.first || x.req.ByLoad {
		return
	}
	x.observe(x.tail.Usage(&x.report), true)
}

// observe counts what the engine has reported, if it has. known says that the pick's
// worker has served the request, so that the numbers are about what it foresaw.
func (x *exchange) observe(usage, known bool) {
	if !x.first || x.req.ByLoad {
		return
	}
	r := &x.report
	if usage {
		x.s.metrics.usage(r, x.dec.HitTokens)
	}
	if !known {
		return
	}
	if r.Skip == audit.Comparable && (x.dec.Prefill != nil || x.dec.Worker.Role != fleet.Mixed) {
		r.Skip = audit.SkipPair
	}
	if x.s.deps.Audit != nil {
		r.Worker, r.Hit = x.dec.Worker.ID, x.dec.HitTokens
		x.s.deps.Audit(*r)
	}
}
