package forward

import (
	"sync"
	"time"
)

// waits are the timers of one attempt at a worker. Each runs only while its own
// stage lasts, so that none stretches or shortens another (failover 2D): while a
// connection is made none does, for the transport bounds that itself; the idle
// timer runs while the worker has the turn; the timer of the first token from
// when the request was fully sent to the first content.
type waits struct {
	mu       sync.Mutex // stages are told by transports' goroutines
	idle     lapse
	first    lapse
	answered bool // the head is there: stages told late mean nothing
	began    bool // the first content is there, or its time is up
}

// prepare makes the timers; they do not run yet.
func (w *waits) prepare(a *attempt) {
	cfg := a.x.cfg
	w.idle.a, w.idle.cause = a, errIdle
	w.first.a, w.first.cause = a, errFirstToken
	if !a.timesItself() {
		w.idle.limit = cfg.IdleTimeout
	}
	limit := cfg.TTFTTimeout
	if a.decision.Prefill != nil {
		limit = cfg.FirstTokenTimeout
	}
	if a.x.scan.Stream { // else the first token cannot be seen
		w.first.limit = limit
	}
}

// claim reports whether the first token had neither come nor been given up.
func (w *waits) claim() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.began
	w.began = true
	return first
}

// reached follows the stages of the request, by the time since its start.
func (a *attempt) reached(s Stage, since time.Duration) {
	w := &a.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answered {
		return
	}
	switch s {
	case StageDial:
		w.idle.halt()
		w.first.halt()
	case StageWrite:
		w.idle.run(since)
	case StageDispatched:
		w.idle.run(since)
		if !w.began {
			w.first.run(since)
		}
	case StageHead, StageBody:
		w.answered = true
	}
}

// reading starts the idle timer, and rest stops it.
func (w *waits) reading() { w.idle.run(time.Since(w.idle.a.x.start)) }
func (w *waits) rest()    { w.idle.halt() }

// token notes the first content. It reports false when its time was up.
func (w *waits) token() bool {
	if w.first.limit == 0 {
		return true
	}
	w.first.halt()
	return w.claim()
}

func (w *waits) stop() {
	w.idle.stop()
	w.first.stop()
}

// lapse is a timer of an attempt that is started and halted at every read and hardly
// ever ends. So the runtime's timer under it is set once, and set again only when it
// ends and the time that counts is not over. One of no limit does nothing.
type lapse struct {
	a     *attempt
	cause error // what a is ended with when limit has passed since the last run
	limit time.Duration

	mu    sync.Mutex
	since time.Duration // start of the wait, since the request's start and plus one; 0 while halted
	timer *time.Timer   // nil before the first run
	set   bool          // timer is to end
}

// run starts the time, anew if it runs: so long after the request's start.
func (l *lapse) run(since time.Duration) {
	if l.limit <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = since + 1
	switch {
	case l.set:
	case l.timer == nil:
		l.timer = time.AfterFunc(l.limit, l.ended)
	default:
		l.timer.Reset(l.limit)
	}
	l.set = true
}

// halt ends the time without effect, until the next run.
func (l *lapse) halt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = 0
}

// stop halts for good.
func (l *lapse) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = 0
	if l.timer != nil {
		l.timer.Stop()
		l.set = true // so that a late run does not start it again
	}
}

// ended is the timer's.
func (l *lapse) ended() {
	if l.isOver() && (l.cause != errFirstToken || l.a.waits.claim()) { //nolint:errorlint // which of the two
		l.a.cancel(l.cause)
	}
}

func (l *lapse) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == 0 {
		l.set = false
		return false
	}
	if left := l.limit - (time.Since(l.a.x.start) + 1 - l.since); left > 0 {
		l.timer.Reset(left)
		return false
	}
	l.since = 0
	return true
}

// timesItself reports whether the worker's transport has an idle timer of its own.
func (a *attempt) timesItself() bool {
	tr, err := a.x.transport(a.decision.Worker)
	if err != nil {
		return false
	}
	own, ok := tr.(interface{ TimesIdle() bool })
	return ok && own.TimesIdle()
}
