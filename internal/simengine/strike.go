package simengine

import (
	"context"
	"net/http"
	"time"
)

// FaultHeader is the request header that makes the engine misbehave for that
// request only.
const FaultHeader = "X-Sim-Fault"

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
