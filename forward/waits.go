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
	idle     *time.Timer
	idleFor  time.Duration
	first    *time.Timer
	firstFor time.Duration
	answered bool // the head is there: stages told late mean nothing
	began    bool // the first content is there, or its time is up
}

// prepare makes the timers; they do not run yet.
func (w *waits) prepare(a *attempt) {
	cfg := a.x.cfg
	if w.idleFor = cfg.IdleTimeout; w.idleFor > 0 && !a.timesItself() {
		w.idle = stopped(w.idleFor, func() { a.cancel(errIdle) })
	}
	w.firstFor = cfg.TTFTTimeout
	if a.decision.Prefill != nil {
		w.firstFor = cfg.FirstTokenTimeout
	}
	if w.firstFor > 0 && a.x.scan.Stream { // else the first token cannot be seen
		w.first = stopped(w.firstFor, func() {
			if w.claim() {
				a.cancel(errFirstToken)
			}
		})
	}
}

func stopped(d time.Duration, f func()) *time.Timer {
	t := time.AfterFunc(d, f)
	t.Stop()
	return t
}

// claim reports whether the first token had neither come nor been given up.
func (w *waits) claim() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.began
	w.began = true
	return first
}

// reached follows the stages of the request.
func (a *attempt) reached(s Stage) {
	w := &a.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answered {
		return
	}
	switch s {
	case StageDial:
		w.halt(w.idle)
		w.halt(w.first)
	case StageWrite:
		w.run(w.idle, w.idleFor)
	case StageDispatched:
		w.run(w.idle, w.idleFor)
		if !w.began {
			w.run(w.first, w.firstFor)
		}
	case StageHead, StageBody:
		w.answered = true
	}
}

func (*waits) run(t *time.Timer, d time.Duration) {
	if t != nil {
		t.Reset(d)
	}
}

func (*waits) halt(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

// reading starts the idle timer, and rest stops it.
func (w *waits) reading() { w.run(w.idle, w.idleFor) }
func (w *waits) rest()    { w.halt(w.idle) }

// token notes the first content. It reports false when its time was up.
func (w *waits) token() bool {
	if w.first == nil {
		return true
	}
	w.first.Stop()
	return w.claim()
}

func (w *waits) stop() {
	w.halt(w.idle)
	w.halt(w.first)
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
