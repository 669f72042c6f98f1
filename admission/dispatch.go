package admission

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// dispatch admits those who wait, in order, as far as there is room. The ceiling
// holds back everyone behind the first that does not fit, full workers hold back
// those of the same key, and a tenant's share its own requests.
func (g *Gate) dispatch(now time.Time) {
	for r := g.queue.first(); r != nil; {
		if len(g.blocked) > 0 && g.allBlocked() {
			break
		}
		next := g.queue.after(r)
		switch {
		case !g.fits(r):
			if g.queue.lanes[laneNone] == 0 {
				g.freed = 0
				return
			}
			next = g.nextHolding(r) // these take nothing more of the ceiling
		case g.blocked[r.Key], g.overShare(r):
		default:
			g.try(now, r)
		}
		r = next
	}
	g.freed = 0
}

// nextHolding returns the first behind r that takes nothing of the ceiling.
func (g *Gate) nextHolding(r *Request) *Request {
	for r = g.queue.after(r); r != nil && !r.holding && r.Units > 0; r = g.queue.after(r) {
	}
	return r
}

func (g *Gate) allBlocked() bool {
	if len(g.blocked) < len(g.queue.keys) {
		return false
	}
	for key := range g.queue.keys {
		if !g.blocked[key] {
			return false
		}
	}
	return true
}

// try asks for r's worker.
func (g *Gate) try(now time.Time, r *Request) {
	if r.ghost {
		if r.overCap {
			if g.freed == 0 {
				g.blocked[r.Key] = true
				return
			}
			g.freed--
		}
		g.dequeue(r)
		g.take(r)
		return
	}
	err := g.pick(now, r)
	switch {
	case errors.Is(err, ErrFull):
		g.blocked[r.Key] = true
		return
	case err == nil, errors.Is(err, ErrOverCap):
		g.grant(now, r)
	default:
		parked := !r.deadline.IsZero()
		g.dequeue(r)
		if err = g.failed(err); parked && errors.Is(err, ErrNoCapacity) {
			err = refusal(reasonNoCapacity, shortRetry)
		}
		g.end(r, reasonNone, err)
	}
}

// failed counts why a pick failed.
func (g *Gate) failed(err error) error {
	if errors.Is(err, ErrNoCapacity) {
		g.metrics.decide(reasonNoCapacity)
	}
	return err
}

// pick calls r.Pick. A panic is kept for r's own goroutine.
func (g *Gate) pick(now time.Time, r *Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.panicked = fmt.Errorf("pick: %v\n%s", p, debug.Stack())
			err = errPanicked
		}
	}()
	return r.Pick(now)
}

var errPanicked = errors.New("the pick panicked")

// grant ends r's wait well.
func (g *Gate) grant(now time.Time, r *Request) {
	g.dequeue(r)
	if r.holding {
		r.state = active
	} else {
		g.opened(now, r)
		g.take(r)
	}
	if !r.deadline.IsZero() && r.done != nil {
		g.waited(now, r)
		if !r.holding {
			g.metrics.decide(reasonAdmitted)
		}
		r.done <- struct{}{}
	}
	r.holding = false
}

// waited notes how long r was in the queue.
func (g *Gate) waited(now time.Time, r *Request) {
	d := max(0, now.Sub(r.arrived))
	r.queued += d
	g.metrics.wait.Observe(d.Seconds())
	if g.meanWait == 0 {
		g.meanWait = d
	}
	g.meanWait += (d - g.meanWait) / 8
}

// end ends r's wait badly.
func (g *Gate) end(r *Request, why reason, err error) {
	if r.ghost {
		r.state = ended
		g.metrics.decide(reasonWouldShed)
		g.unslot(r)
		return
	}
	if why != reasonNone {
		g.metrics.decide(why)
	}
	r.err = err
	if r.holding {
		r.state, r.holding = active, false
	} else {
		r.state = ended
		g.unslot(r)
	}
	if r.done != nil {
		r.done <- struct{}{}
	}
}

// enqueue puts r into the queue.
func (g *Gate) enqueue(r *Request) {
	r.state = waiting
	g.queue.add(r)
	g.waiters.Add(1)
	if !r.ghost {
		return
	}
	g.ghosts++
	if !r.deadline.IsZero() && r.deadline.Before(g.ghostEnd) {
		g.ghostEnd = r.deadline
	}
}

func (g *Gate) dequeue(r *Request) {
	g.queue.remove(r)
	g.waiters.Add(-1)
	if r.ghost {
		g.ghosts--
	}
}
