package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// Ends of a relay that are not knobs.
const (
	drainBytes = 64 << 10    // read behind a stream's end, so that the connection can be kept
	drainTime  = time.Second // and for how long

	gatherTime = time.Millisecond // longest that an event is held for the next ones
)

// stream relays one SSE body: whole events only, as they come, and exactly one
// terminal. Until the first event with content it holds everything back, so
// that a failure can still become a status or an attempt at another worker.
type stream struct {
	x    *exchange
	a    *attempt
	resp *Response
	dial dialect
	form shape

	frames  framer
	lent    *[]byte   // the memory of buf; nil while nothing is in it and nothing comes
	buf     []byte    // bytes from the first one not written
	whole   int       // end of the last complete event in buf
	held    time.Time // since when events are held for the next ones; zero for none
	like    likeness
	start   time.Time
	events  int       // with data, sent or about to be
	waits   Waiter    // the body, if it is one
	pulse   *pulse    // nil without keep-alive comments
	reasons *finishes // nil unless a finish reason stands for [DONE]
}

// relayStream relays a's response to the client. Its error means that the
// stream has not been completed; x.committed tells whether the client has got
// anything of it.
func (x *exchange) relayStream(a *attempt, resp *Response) error {
	st := new(stream)
	x.stream = st // so that it is not on the stack: see next
	st.x, st.a, st.resp, st.start = x, a, resp, time.Now()
	st.dial, st.pulse = dialectOf(x.kind, x.r.URL.Path), x.newPulse(a)
	st.waits, _ = resp.Body.(Waiter)
	st.form = st.dial.shape()
	x.conn = x.gathering()
	if x.cfg.AcceptFinish && st.dial == chat {
		st.reasons = &finishes{want: x.scan.N}
	}
	err := st.run()
	st.pulse.stop()
	st.giveBack()
	if err == nil || !x.committed {
		return err
	}
	return st.fail(err)
}

// borrow takes a buffer, unless there is one.
func (st *stream) borrow() {
	if st.lent == nil {
		st.lent = st.x.s.bufs.get(smallBuffer)
		st.buf = *st.lent
	}
}

// giveBack gives the buffer back, with what is in it.
func (st *stream) giveBack() {
	if st.lent != nil {
		*st.lent = st.buf
		st.x.s.bufs.put(st.lent)
		st.lent, st.buf = nil, nil
	}
}

// read reads what is at hand, at least one byte. Most streams wait for most of the
// time, and hold no buffer meanwhile when all that came is written.
func (st *stream) read() (n int, err error) {
	st.a.waits.reading()
	if len(st.buf) == 0 && st.waits != nil && st.waits.Waits() {
		st.giveBack()
		st.waits.Wait()
	}
	st.borrow()
	if len(st.buf) == cap(st.buf) {
		if err = st.grow(); err != nil {
			return 0, err
		}
	}
	n, err = st.resp.Body.Read(st.buf[len(st.buf):cap(st.buf)])
	return n, st.a.rested(err)
}

// run reads events until the terminal or a failure.
func (st *stream) run() error {
	for {
		n, rerr := st.read()
		st.buf = st.buf[:len(st.buf)+n]
		end, err := st.look()
		if end {
			return st.finish(err, rerr)
		}
		if rerr != nil {
			return st.ended(rerr)
		}
		if st.gather() {
			continue
		}
		if err := st.send(flush); err != nil {
			return err
		}
	}
}

// gather reports whether more has come while events were looked at, which is then to go
// out with them: a piece costs either side a system call and wakes the client. The first
// events are not held. That other streams have their turn in between would be of no
// use: it makes the scheduler wake another thread, and pieces become no larger.
func (st *stream) gather() bool {
	if st.waits == nil || st.x.written == 0 {
		return false
	}
	now := time.Now()
	if st.held.IsZero() {
		st.held = now
	}
	if now.Sub(st.held) < gatherTime && st.waits.Waits() && st.waits.Poll() {
		return true
	}
	st.held = time.Time{}
	return false
}

// grow makes room behind a partial event.
func (st *stream) grow() error {
	if len(st.buf) >= maxEvent+maxHold {
		return errEventSize
	}
	grown := make([]byte, len(st.buf), min(2*cap(st.buf), maxEvent+maxHold))
	copy(grown, st.buf)
	st.buf = grown
	return nil
}

// look classifies the events that have become complete. end is true when one
// was a terminal: then nothing behind it counts, and err says whether it was a
// failure.
func (st *stream) look() (end bool, err error) {
	for {
		if n := st.like.next(st.buf[st.whole:]); n > 0 {
			st.whole += n
			st.frames.skip(st.whole)
			st.events++
			st.x.tokens++
			continue
		}
		next := st.frames.next(st.buf)
		if next < 0 {
			return false, nil
		}
		raw := st.buf[st.whole:next]
		st.whole = next
		if end, err := st.event(raw); end || err != nil {
			return true, err
		}
	}
}

func (st *stream) event(raw []byte) (end bool, err error) {
	switch st.dial.meaning(raw) {
	case content:
		st.events++
		st.x.tokens++
		noted := st.x.noteFinish(raw)
		if st.reasons != nil {
			st.reasons.note(raw)
		}
		if st.x.firstAt.IsZero() {
			if err := st.x.firstToken(st.a); err != nil {
				return true, err
			}
			st.x.s.metrics.ttft.Observe(st.x.firstAt.Sub(st.x.start).Seconds())
		}
		if st.dial == chat && st.reasons == nil && !noted {
			st.like.learn(raw)
		}
		return false, st.commit()
	case final:
		return true, st.commit()
	case failed:
		status := errorStatus(raw)
		if !st.x.committed {
			return true, &answer{status: status, body: parseEvent(raw).data, complete: true}
		}
		return true, &errorEvent{status: status}
	case lifecycle:
		if st.dial == responses && parseEvent(raw).hasData {
			st.events++
		}
		if st.whole > maxHold || time.Since(st.start) >= st.x.cfg.HoldTime {
			return false, st.commit()
		}
	}
	return false, nil
}

// commit sends the response head, once.
func (st *stream) commit() error {
	if st.x.committed {
		return nil
	}
	st.pulse.lock()
	defer st.pulse.unlock(true)
	h := st.x.w.Header()
	copyResponse(h, st.resp.Header)
	st.x.commit(st.resp.Status)
	return nil
}

// flushing says whether a write goes out at once.
type flushing bool

const (
	flush   flushing = true
	noFlush flushing = false // the handler's end flushes, in the same segment as the end of the body
)

// send writes the complete events in the buffer, once the head is out.
func (st *stream) send(f flushing) error {
	if !st.x.committed || st.whole == 0 {
		return nil
	}
	st.pulse.lock()
	err := st.x.write(st.buf[:st.whole], f)
	st.pulse.unlock(true)
	rest := copy(st.buf, st.buf[st.whole:])
	st.buf = st.buf[:rest]
	st.frames.cut(st.whole)
	st.whole = 0
	return err
}

// finish ends the stream behind a terminal event: err is nil when it was [DONE]
// or its like, rerr what the last read said.
func (st *stream) finish(err, rerr error) error {
	_, event := errors.AsType[*errorEvent](err)
	if err != nil && !event {
		return err
	}
	st.pulse.stop()
	if event {
		st.x.s.metrics.truncated.WithLabelValues("upstream_error_event").Inc()
		st.closeFailed()
	}
	f := flush
	if rerr != nil {
		f = noFlush
	}
	if werr := st.send(f); werr != nil {
		return werr
	}
	if rerr == nil {
		st.a.drain(st.resp.Body)
	}
	if err == nil {
		st.x.trailers(st.resp)
	}
	return err
}

// ended decides what the end of the body without a terminal event means.
func (st *stream) ended(rerr error) error {
	st.pulse.stop()
	if !errors.Is(rerr, io.EOF) {
		if err := st.send(noFlush); err != nil {
			return err
		}
		return rerr
	}
	tail := st.buf[st.whole:]
	if string(parseEvent(tail).data) == doneData { // [DONE] whose blank line is missing
		st.buf = append(st.buf, "\n\n"...)
		st.whole = len(st.buf)
		if err := st.commit(); err != nil {
			return err
		}
		return st.finish(nil, rerr)
	}
	if len(tail) == 0 && st.reasons.complete() {
		st.x.s.metrics.missingDone.Inc()
		st.buf = append(st.buf, doneEvent...)
		st.whole = len(st.buf)
		if err := st.send(noFlush); err != nil {
			return err
		}
		st.x.trailers(st.resp)
		return nil
	}
	if st.dial != generic || st.resp.CloseDelimited && st.x.committed && len(tail) > 0 {
		if err := st.send(noFlush); err != nil {
			return err
		}
		return &Error{Stage: StageBody, Err: ErrTruncated}
	}
	st.whole = len(st.buf)
	if err := st.commit(); err != nil {
		return err
	}
	if err := st.send(noFlush); err != nil {
		return err
	}
	st.x.trailers(st.resp)
	return nil
}

// fail ends a stream of which the client has seen something: one error event,
// no [DONE], and a proper end of the body, so that the event is not lost
// (failover 4.2).
func (st *stream) fail(err error) error {
	var event *errorEvent
	if errors.As(err, &event) || errors.Is(err, errClientGone) {
		return err
	}
	told := describe(err)
	st.x.s.metrics.truncated.WithLabelValues(told.code).Inc()
	out := told.event(st.form, ids{request: st.x.id, attempt: st.x.attemptID(), sequence: st.events})
	if st.x.cfg.ErrorDone && st.dial == chat {
		out = append(out, doneEvent...)
	}
	if werr := st.x.write(out, noFlush); werr != nil {
		return werr
	}
	return err
}

// closeFailed puts [DONE] behind the worker's own error event, for clients that
// wait for it (Config.ErrorDone).
func (st *stream) closeFailed() {
	if !st.x.cfg.ErrorDone || st.dial != chat {
		return
	}
	st.buf = append(st.buf[:st.whole], doneEvent...)
	st.whole = len(st.buf)
}

// drain reads on to the end of a body that has said all that counts, so that
// the connection can be used again.
func (a *attempt) drain(body io.Reader) {
	timer := time.AfterFunc(drainTime, func() { a.cancel(context.Canceled) })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, drainBytes)
}

// trailers passes on the trailers of a finished body.
func (x *exchange) trailers(resp *Response) {
	if resp.Trailer == nil {
		return
	}
	fields := resp.Trailer()
	if len(fields) == 0 {
		return
	}
	_ = x.rc.Flush() // else a short body gets a Content-Length, and no trailers
	for k, v := range fields {
		if !hopByHop(k) {
			x.w.Header()[http.TrailerPrefix+k] = v
		}
	}
}
