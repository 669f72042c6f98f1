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
	start    time.Time  // of the request
	idle     *lapse     // nil for none
	first    *lapse     // likewise
	answered bool       // the head is there: stages told late mean nothing
	began    bool       // the first content is there, or its time is up
}

// prepare makes the timers; they do not run yet.
func (w *waits) prepare(a *attempt) {
	s, cfg := a.x.s, a.x.cfg
	w.start = a.x.start
	if !a.timesItself() {
		w.idle = s.idles.lend(a, errIdle, cfg.IdleTimeout)
	}
	limit := cfg.TTFTTimeout
	if a.decision.Prefill != nil {
		limit = cfg.FirstTokenTimeout
	}
	if a.x.scan.Stream { // else the first token cannot be seen
		w.first = s.firsts.lend(a, errFirstToken, limit)
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
func (w *waits) reading() {
	if w.idle != nil {
		w.idle.run(time.Since(w.start))
	}
}

func (w *waits) rest() { w.idle.halt() }

// token notes the first content. It reports false when its time was up.
func (w *waits) token() bool {
	if w.first == nil {
		return true
	}
	w.first.halt()
	return w.claim()
}

// stop ends the timers for good. Transports may still tell stages.
func (w *waits) stop(s *Server) {
	w.mu.Lock()
	idle, first := w.idle, w.first
	w.idle, w.first = nil, nil
	w.mu.Unlock()
	s.idles.take(idle)
	s.firsts.take(first)
}

// lapse is a timer that an attempt starts and halts at every read and that hardly ever
// ends. So the runtime's timer under it is set once, and set again only when it ends and
// the time that counts is not over; and the next attempt gets it as it is. A nil lapse
// does nothing.
type lapse struct {
	mu    sync.Mutex
	a     *attempt // that has it; nil for none
	cause error    // what a is ended with when limit has passed since the last run
	limit time.Duration

	since time.Duration // start of the wait, since the request's start and plus one; 0 while halted
	timer *time.Timer   // nil before the first run
	ends  time.Duration // the longest that timer takes; 0 when it is not set
}

// lapses lends them. The zero value is ready to use.
type lapses struct{ pool sync.Pool }

// lend returns one for a; nil where there is no limit.
func (ls *lapses) lend(a *attempt, cause error, limit time.Duration) *lapse {
	if limit <= 0 {
		return nil
	}
	l, ok := ls.pool.Get().(*lapse)
	if !ok {
		l = new(lapse)
	}
	l.mu.Lock() // its timer may be about to end
	defer l.mu.Unlock()
	l.a, l.cause, l.limit = a, cause, limit
	return l
}

// take takes l back.
func (ls *lapses) take(l *lapse) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.a, l.since = nil, 0
	l.mu.Unlock()
	ls.pool.Put(l)
}

// run starts the time, anew if it runs: so long after the request's start.
func (l *lapse) run(since time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = since + 1
	if l.ends > 0 && l.ends <= l.limit {
		return
	}
	if l.ends = l.limit; l.timer == nil {
		l.timer = time.AfterFunc(l.limit, l.ended)
	} else {
		l.timer.Reset(l.limit)
	}
}

// halt ends the time without effect, until the next run.
func (l *lapse) halt() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = 0
}

// ended is the timer's.
func (l *lapse) ended() {
	if a, cause := l.over(); a != nil && (cause != errFirstToken || a.waits.claim()) { //nolint:errorlint // which of the two
		a.cancel(cause)
	}
}

// over returns the attempt whose time is over, nil for none, and what ends it.
func (l *lapse) over() (*attempt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == 0 {
		l.ends = 0
		return nil, nil
	}
	if left := l.limit - (time.Since(l.a.x.start) + 1 - l.since); left > 0 {
		l.timer.Reset(left)
		l.ends = left
		return nil, nil
	}
	l.since, l.ends = 0, 0
	return l.a, l.cause
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
