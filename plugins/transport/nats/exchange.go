package nats

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/wire"
)

// Timing of probes. The second miss in a row counts: a worker that reconnects has
// the time between them.
const (
	firstProbe  = 500 * time.Millisecond // after the last frame, when Config.ProbeInterval is longer
	missedProbe = time.Second            // after a first miss
)

// Errors that end an exchange.
var (
	errNobody   = errors.New("no responders: the worker is not subscribed to its request subject")
	errNotBack  = fmt.Errorf("%w since the broker is back: %w", errNobody, forward.ErrBlameless)
	errGone     = errors.New("the worker has left the NATS broker")
	errRefused  = fmt.Errorf("the request stream refused the request: %w", forward.ErrBlameless)
	errDenied   = fmt.Errorf("the broker's permissions forbid the request: %w", forward.ErrBlameless)
	errGap      = fmt.Errorf("frames of the answer were lost: %w", forward.ErrBlameless)
	errBehind   = fmt.Errorf("the client takes the answer too slowly: %w", forward.ErrBlameless)
	errSequence = errors.New("frames of the answer are missing or doubled")
	errStray    = errors.New("a message that is no reply frame came as the answer")
	errIdle     = errors.New("no frame within the idle timeout")
	errTotal    = fmt.Errorf("the request exceeded its maximum duration: %w", forward.ErrBlameless)
	errSize     = errors.New("the answer is too large to be held until its status is known")
)

// exchange is one request and its answer.
type exchange struct {
	t       *Transport
	l       *link
	worker  *fleet.Worker
	place   place
	subject string
	key     string // last part of inbox
	inbox   string
	start   time.Time
	wake    chan struct{} // one token: something has come

	mu      sync.Mutex // everything below is shared with the connection's reader
	queue   []wire.Reply
	head    int   // first of queue not taken
	held    int64 // bytes in queue
	broken  error // ends the exchange behind what is queued
	closed  bool  // no frame is taken in any more: a terminal one has come, or broken is set
	settled bool  // nothing at all is: the exchange has ended
	last    time.Time
	frames  int
	stored  uint64 // message in the request stream; 0 for none
	isStore bool   // an acknowledgment has come, with or without a sequence
	probes  int
	missed  bool // the last probe was answered by the broker
	misses  int  // probes missed in a row

	// Of the goroutine that reads the answer.
	timer     *time.Timer
	nextProbe time.Time
	checked   bool // the probe that a storage acknowledgment asks for was sent
	final     bool // the terminal frame was taken
	over      bool // the exchange is not registered any more
}

func newExchange(t *Transport, l *link, w *fleet.Worker, p place) *exchange {
	now := time.Now()
	return &exchange{
		t: t, l: l, worker: w, place: p, subject: wire.RequestSubject(w.ID),
		start: now, last: now, wake: make(chan struct{}, 1),
	}
}

// publish sends the envelope.
func (x *exchange) publish(data []byte) error {
	err := x.l.nc.PublishMsg(&nats.Msg{
		Subject: x.subject, Reply: x.inbox, Data: data,
		Header: nats.Header{wire.HeaderInbox: {x.inbox}},
	})
	if err == nil {
		x.place.sent()
	}
	return err
}

// push takes a message in; false when the exchange has ended. The connection's
// reader calls it and must not wait.
func (x *exchange) push(r *wire.Reply) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.settled:
		return false
	case r.Kind == wire.ReplyStored: // may come behind the answer
		x.stored, x.isStore = r.Stored, true
	case x.closed:
		return true
	}
	switch r.Kind {
	case wire.ReplyData, wire.ReplyDone, wire.ReplyError:
		x.frame(r)
	case wire.ReplyNoResponders:
		x.absent()
	case wire.ReplyNotStored:
		x.place.refused() // a worker that reads from the stream will not get it
		if x.frames == 0 && x.place.throttles() {
			x.breakOff(errRefused)
		}
	case wire.ReplyStray:
		x.breakOff(errStray)
	case wire.ReplyEmpty:
		return true
	case wire.ReplyStored:
	}
	x.signal()
	return true
}

// frame queues a frame of the answer.
func (x *exchange) frame(r *wire.Reply) {
	if r.Seq >= 0 && r.Seq != x.frames {
		x.breakOff(errSequence)
		return
	}
	x.frames++
	x.last, x.misses = time.Now(), 0
	size := int64(len(r.Data))
	if x.held > 0 && (x.held+size > x.t.cfg.ReplyBuffer || x.t.buffered.Load()+size > x.t.cfg.TotalBuffer) {
		x.breakOff(errBehind)
		return
	}
	x.held += size
	x.t.buffered.Add(size)
	x.queue = append(x.queue, *r)
	x.closed = r.Final()
}

// absent handles the broker's word that nobody is subscribed: to the request
// subject, or, once probes were sent, to the cancel subject.
func (x *exchange) absent() {
	switch {
	case x.probes == 0:
		if x.start.Before(x.l.gather) {
			x.breakOff(errNotBack)
			return
		}
		x.breakOff(errNobody)
		return
	case x.frames == 0 && x.isStore && x.probes == 1: // stored for a worker that is not there
		x.breakOff(errGone)
		return
	}
	x.missed = true
	if x.misses++; x.misses > 1 {
		x.breakOff(errGone)
	}
}

// fail ends the exchange behind what is queued.
func (x *exchange) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed {
		x.breakOff(err)
		x.signal()
	}
}

func (x *exchange) breakOff(err error) { x.broken, x.closed = err, true }

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// pop takes the next frame, if there is one. Its error is why there will be none.
func (x *exchange) pop() (r wire.Reply, ok bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.head == len(x.queue) {
		x.queue, x.head = x.queue[:0], 0
		return r, false, x.broken
	}
	r = x.queue[x.head]
	x.queue[x.head] = wire.Reply{}
	x.head++
	x.held -= int64(len(r.Data))
	x.t.buffered.Add(-int64(len(r.Data)))
	x.final = x.final || r.Final()
	return r, true, nil
}

// next returns the next frame. Its error is the exchange's end.
func (x *exchange) next(ctx context.Context) (wire.Reply, error) {
	for {
		r, ok, err := x.pop()
		if ok || err != nil {
			return r, err
		}
		if err := x.wait(ctx); err != nil {
			return r, err
		}
	}
}

// wait returns when something may have come.
func (x *exchange) wait(ctx context.Context) error {
	deadline := x.deadline(time.Now())
	if x.timer == nil {
		x.timer = time.NewTimer(time.Until(deadline))
	} else {
		x.timer.Reset(time.Until(deadline))
	}
	select {
	case <-x.wake:
		x.check()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-x.timer.C:
		return x.due(time.Now())
	}
}

// never is as far away as a wait without limit.
const never = 24 * time.Hour

// deadline returns when something is due.
func (x *exchange) deadline(now time.Time) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	next := now.Add(never)
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	cfg := &x.t.cfg
	if cfg.IdleTimeout > 0 {
		earlier(x.last.Add(cfg.IdleTimeout))
	}
	if cfg.MaxDuration > 0 {
		earlier(x.start.Add(cfg.MaxDuration))
	}
	if cfg.ProbeInterval > 0 {
		if first := x.last.Add(min(firstProbe, cfg.ProbeInterval)); x.nextProbe.Before(first) {
			x.nextProbe = first
		}
		if soon := now.Add(min(missedProbe, cfg.ProbeInterval)); x.missed && soon.Before(x.nextProbe) {
			x.nextProbe = soon
		}
		earlier(x.nextProbe)
	}
	return next
}

// due does what the time asks for. Its error is a limit that has passed.
func (x *exchange) due(now time.Time) error {
	cfg := &x.t.cfg
	if cfg.MaxDuration > 0 && now.Sub(x.start) >= cfg.MaxDuration {
		return errTotal
	}
	x.mu.Lock()
	silence := now.Sub(x.last)
	waiting := x.head == len(x.queue)
	x.mu.Unlock()
	if cfg.IdleTimeout > 0 && waiting && silence >= cfg.IdleTimeout {
		return errIdle
	}
	if cfg.ProbeInterval > 0 && !now.Before(x.nextProbe) {
		x.nextProbe = now.Add(cfg.ProbeInterval)
		x.probe()
	}
	return nil
}

// check probes a worker for which the request was stored: the stream hides from
// the broker that nobody is there.
func (x *exchange) check() {
	x.mu.Lock()
	ask := x.isStore && x.frames == 0 && !x.checked
	x.mu.Unlock()
	if ask {
		x.checked = true
		x.probe()
	}
}

// probe asks the broker whether the worker is connected.
func (x *exchange) probe() {
	x.mu.Lock()
	if !x.missed {
		x.misses = 0
	}
	x.missed = false
	x.probes++
	x.mu.Unlock()
	x.t.metrics.probes.Inc()
	// A probe that cannot be sent is no news; the connection's end is.
	_ = x.l.nc.PublishRequest(wire.CancelSubject(x.worker.ID), x.inbox, []byte(x.inbox+".probe"))
}

// finish ends the exchange, once. Unless the worker has sent its terminal frame
// or has never got the request, it is told to stop.
func (x *exchange) finish(cause error) {
	if x.over {
		return
	}
	final, stored, broken := x.release()
	if cause == nil {
		cause = broken
	}
	if stored != 0 {
		x.t.chores.forgetMessage(x.t, x.worker.ID, stored, !final)
	}
	if !final && !errors.Is(cause, errNobody) && !errors.Is(cause, errDenied) {
		x.t.chores.cancel(x.t, x.worker.ID, x.inbox)
	}
}

// abandon ends an exchange whose request was not sent.
func (x *exchange) abandon() { _, _, _ = x.release() }

// release gives back what the exchange holds, and returns how it has ended.
func (x *exchange) release() (final bool, stored uint64, broken error) {
	x.over = true
	if x.timer != nil {
		x.timer.Stop()
	}
	x.mu.Lock()
	x.closed = x.closed || x.final
	final = x.final || x.closed && x.broken == nil // the terminal frame may still be in the queue
	x.mu.Unlock()
	x.l.forget(x, ended{worker: x.worker.ID, certain: !final})
	x.place.leave()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed, x.settled = true, true
	x.t.buffered.Add(-x.held)
	x.held, x.queue, x.head = 0, nil, 0
	return final, x.stored, x.broken
}

// answer returns the response as soon as its status is known.
func (x *exchange) answer(ctx context.Context) (*forward.Response, error) {
	resp, err := x.begin(ctx)
	outcome := "answered"
	switch {
	case err != nil:
		outcome = "failed"
		var failed *forward.Error
		if errors.As(err, &failed) && failed.Stage == forward.StageDial {
			outcome = "no_responders"
		}
	case resp.Status == http.StatusGatewayTimeout && !x.final:
		outcome = "timeout"
	}
	x.t.metrics.requests.WithLabelValues(outcome).Inc()
	return resp, err
}

// begin reads up to where the status is known.
func (x *exchange) begin(ctx context.Context) (*forward.Response, error) {
	h := holder{limit: x.t.cfg.MaxReply}
	for {
		r, err := x.next(ctx)
		if err != nil {
			x.finish(err)
			return headFailure(ctx, err, h.size > 0)
		}
		switch r.Kind {
		case wire.ReplyData:
			if !h.add(r.Data) {
				x.finish(errSize)
				return nil, &forward.Error{Stage: forward.StageHead, Err: errSize}
			}
			if h.kind() == heldEvents {
				b := &body{x: x, ctx: ctx, rest: h.bytes()}
				return &forward.Response{
					Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Length: -1, Body: b,
				}, nil
			}
		case wire.ReplyDone:
			x.finish(nil)
			return h.whole(r.Status), nil
		default: // an error frame: nothing else is queued
			x.finish(nil)
			return refusal(string(r.Data), h.size > 0)
		}
	}
}
