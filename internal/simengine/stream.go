package simengine

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// errFaulted says that a fault mode has ended the answer.
var errFaulted = errors.New("ended by a fault")

// errReset is errFaulted for an answer whose handler must end visibly broken.
var errReset = fmt.Errorf("%w: reset", errFaulted)

// reply writes one answer, bent by its fault.
type reply struct {
	w     http.ResponseWriter
	ctx   context.Context //nolint:containedctx // the request's, which a reply lives no longer than
	fault fault
	frame framer
	entry *entry

	out    io.Writer // w, its compressor, or the bare connection
	zip    *gzip.Writer
	conn   net.Conn // set once the connection was taken away from net/http
	events int
	odd    bool // the odd event of partial_utf8 or huge_line was sent
}

func newReply(w http.ResponseWriter, r *http.Request, f fault, frame framer, e *entry) *reply {
	return &reply{w: w, ctx: r.Context(), fault: f, frame: frame, entry: e, out: w}
}

// head sends the status and headers of a success.
func (p *reply) head(contentType string) error {
	h := p.w.Header()
	h.Set("Content-Type", contentType)
	status := http.StatusOK
	switch p.fault.mode {
	case fault1xx:
		h.Set("Link", "</sim>; rel=preload")
		p.w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		p.w.WriteHeader(http.StatusProcessing)
	case faultTrailers:
		h.Set("Trailer", "X-Sim-Tokens, X-Sim-Outcome")
	case faultGzip:
		h.Set("Content-Encoding", "gzip")
		h.Del("Content-Length")
		p.zip = gzip.NewWriter(p.w)
		p.out = p.zip
	case faultStatusHangBody:
		status = p.fault.arg
	case faultCloseDelimCut:
		if err := p.bareHead(contentType); !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		h.Del("Content-Length")
	}
	p.entry.update(func(r *Receipt) { r.Status = status })
	p.w.WriteHeader(status)
	return nil
}

// bareHead takes the connection and sends a head whose body ends with it.
func (p *reply) bareHead(contentType string) error {
	conn, err := hijack(p.w)
	if err != nil {
		return err
	}
	p.conn, p.out = conn, conn
	p.entry.update(func(r *Receipt) { r.Status = http.StatusOK })
	_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: "+contentType+"\r\nConnection: close\r\n\r\n")
	return err
}

// flush pushes out what was written.
func (p *reply) flush() error {
	if p.zip != nil {
		if err := p.zip.Flush(); err != nil {
			return err
		}
	}
	if p.conn != nil {
		return nil
	}
	return http.NewResponseController(p.w).Flush()
}

// startStream sends the head of an SSE stream.
func (p *reply) startStream() error {
	if err := p.head("text/event-stream; charset=utf-8"); err != nil {
		return err
	}
	if p.fault.is(faultStatusHangBody) {
		return p.hang()
	}
	return p.strike()
}

// hang flushes and waits until the client goes away.
func (p *reply) hang() error {
	if err := p.flush(); err != nil {
		return err
	}
	<-p.ctx.Done()
	return p.ctx.Err()
}

// event writes one event of choice c.
func (p *reply) event(c int, b []byte) error {
	if p.fault.is(faultKeepalive) {
		if _, err := io.WriteString(p.out, ": keep-alive\n\n"); err != nil {
			return err
		}
	}
	if _, err := p.out.Write(b); err != nil {
		return err
	}
	p.events++
	if p.fault.mode == "" {
		return nil
	}
	return p.afterEvent(c)
}

// afterEvent does what the fault does between events.
func (p *reply) afterEvent(c int) error {
	switch p.fault.mode {
	case faultSlowToken:
		if err := p.flush(); err != nil {
			return err
		}
		return p.sleep(time.Duration(p.fault.arg) * time.Millisecond)
	case faultPartialUTF8, faultHugeLine:
		if p.events >= 2 && !p.odd {
			p.odd = true
			return p.oddEvent(c)
		}
	}
	return p.strike()
}

// oddEvent writes the event that partial_utf8 and huge_line are about.
func (p *reply) oddEvent(c int) error {
	if p.fault.is(faultHugeLine) {
		_, err := p.out.Write(p.frame.delta(nil, c, strings.Repeat("x", p.fault.arg)))
		p.events++
		return err
	}
	const grin = "\U0001F600"
	b := p.frame.delta(nil, c, "é"+grin)
	cut := strings.Index(string(b), grin) + 2 // in the middle of the four bytes
	for i, half := range [][]byte{b[:cut], b[cut:]} {
		if _, err := p.out.Write(half); err != nil {
			return err
		}
		if err := p.flush(); err != nil {
			return err
		}
		if i == 0 {
			if err := p.sleep(20 * time.Millisecond); err != nil {
				return err
			}
		}
	}
	p.events++
	return nil
}

// strike ends the stream when its fault says that this many events are enough.
func (p *reply) strike() error {
	if p.events < p.fault.arg || !p.fault.is(faultCutAfter, faultHangAfter, faultCloseDelimCut, faultErrorEvent, faultErrorThenDone) {
		return nil
	}
	return p.breakOff()
}

// breakOff ends the stream the way its fault does.
func (p *reply) breakOff() error {
	if err := p.flush(); err != nil {
		return err
	}
	switch p.fault.mode {
	case faultHangAfter:
		return p.hang()
	case faultCutAfter:
		conn, err := hijack(p.w)
		if err != nil { // HTTP/2: the handler's end resets the stream
			return errReset
		}
		p.conn = conn
		drainThenReset(p.ctx, conn)
	case faultCloseDelimCut:
		if p.conn != nil { // else HTTP/2, where the handler's end is a clean one
			_ = p.conn.Close()
		}
	default:
		b := p.frame.failure(nil, "the simulated engine failed")
		if p.fault.is(faultErrorThenDone) {
			b = append(b, p.frame.done()...)
		}
		if _, err := p.out.Write(b); err != nil {
			return err
		}
	}
	return errFaulted
}

func (p *reply) sleep(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ctx.Done():
		return p.ctx.Err()
	case <-t.C:
		return nil
	}
}

// finishStream ends a stream whose choices are all written.
func (p *reply) finishStream() error {
	if p.fault.is(faultCutAfter, faultHangAfter, faultCloseDelimCut, faultErrorEvent, faultErrorThenDone) {
		return p.breakOff() // shorter than the fault's count: it ends where [DONE] would be
	}
	end := p.frame.done()
	switch p.fault.mode {
	case faultNoDone:
		end = ""
	case faultTwoDone:
		end += end
	case faultDataAfterDone:
		end += string(p.frame.delta(nil, 0, " late"))
	}
	if _, err := io.WriteString(p.out, end); err != nil {
		return err
	}
	if err := p.finishBody(); err != nil {
		return err
	}
	if p.fault.is(faultNoDone, faultTwoDone, faultDataAfterDone) {
		return errFaulted
	}
	return nil
}

// finishBody closes the compressor and sends trailers.
func (p *reply) finishBody() error {
	if p.zip != nil {
		if err := p.zip.Close(); err != nil {
			return err
		}
	}
	if p.fault.is(faultTrailers) {
		p.w.Header().Set("X-Sim-Tokens", "1")
		p.w.Header().Set("X-Sim-Outcome", "complete")
	}
	return p.flush()
}

// unary writes a whole body.
func (p *reply) unary(b []byte) error {
	switch p.fault.mode {
	case faultErrorEvent, faultErrorThenDone:
		writeError(p.w, &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "the simulated engine failed"})
		p.entry.update(func(r *Receipt) { r.Status = http.StatusInternalServerError })
		return errFaulted
	case faultHugeLine:
		b = append(b[:len(b)-1:len(b)-1], `,"padding":"`+strings.Repeat("x", p.fault.arg)+`"}`...)
	case faultSlowToken:
		if err := p.sleep(time.Duration(p.fault.arg) * time.Millisecond); err != nil {
			return err
		}
	}
	if !p.fault.is(faultGzip, faultTrailers, faultStatusHangBody) {
		p.w.Header().Set("Content-Length", itoa(len(b)))
	}
	if err := p.head("application/json"); err != nil {
		return err
	}
	if p.fault.is(faultStatusHangBody) {
		return p.hang()
	}
	if p.fault.is(faultCutAfter, faultHangAfter, faultCloseDelimCut) {
		if _, err := p.out.Write(b[:len(b)/2]); err != nil {
			return err
		}
		return p.breakOff()
	}
	if _, err := p.out.Write(b); err != nil {
		return err
	}
	return p.finishBody()
}
