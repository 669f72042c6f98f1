package admission

import (
	"errors"
	"time"
)

// pass admits r without waiting. In mode Observe it counts what would have been.
func (g *Gate) pass(now time.Time, r *Request, mode Mode) error {
	if err := g.fresh(now, r); err != nil {
		return err
	}
	err := g.pick(now, r)
	switch {
	case errors.Is(err, ErrFull):
		g.metrics.decide(reasonShed)
		return refusal(reasonShed, shortRetry)
	case err != nil && !errors.Is(err, ErrOverCap):
		return g.failed(err)
	}
	g.mu.Lock()
	defer g.unlock()
	g.opened(now, r)
	if mode == Off {
		g.metrics.decide(reasonAdmitted)
		g.take(r)
		return nil
	}
	r.ghost, r.overCap = true, err != nil
	g.expire(now)
	g.slot(r)
	switch why := g.place(now, r); {
	case r.state == active:
		g.metrics.decide(reasonAdmitted)
	case why == nil:
		g.metrics.decide(reasonWouldQueue)
	default:
		r.state = ended
		g.metrics.decide(reasonWouldShed)
	}
	return nil
}

// fresh makes r a new request, unless the gate drains.
func (g *Gate) fresh(now time.Time, r *Request) error {
	g.mu.Lock()
	defer g.unlock()
	return g.begin(now, r)
}

// expire drops the ghosts whose time in the queue would be over.
func (g *Gate) expire(now time.Time) {
	if g.ghosts == 0 || now.Before(g.ghostEnd) {
		return
	}
	g.ghostEnd = now.Add(time.Hour)
	for r := g.queue.first(); r != nil; {
		next := g.queue.after(r)
		switch {
		case !r.ghost:
		case !now.Before(r.deadline):
			g.dequeue(r)
			r.state = ended
			g.unslot(r)
			g.metrics.decide(reasonWouldTimeout)
		case r.deadline.Before(g.ghostEnd):
			g.ghostEnd = r.deadline
		}
		r = next
	}
	g.dispatch(now)
}
