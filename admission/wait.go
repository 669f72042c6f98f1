package admission

import (
	"context"
	"errors"
	"time"
)

// wait waits for r's turn.
func (g *Gate) wait(ctx context.Context, r *Request) error {
	timer := time.NewTimer(r.deadline.Sub(g.clock()))
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return g.leave(r, reasonCancelled, context.Cause(ctx))
	case <-timer.C:
		return g.leave(r, reasonQueueTimeout, nil)
	}
}

// leave takes r out of the queue, unless its wait has just ended otherwise: that
// counts then. Who is behind r may go now.
func (g *Gate) leave(r *Request, why reason, err error) error {
	g.mu.Lock()
	defer g.unlock()
	if r.state != waiting {
		return r.err
	}
	now := g.clock()
	g.dequeue(r)
	g.waited(now, r)
	if why == reasonQueueTimeout {
		out := refusal(why, g.meanWait)
		out.Queued = r.queued
		err = out
	}
	g.end(r, why, err)
	g.dispatch(now)
	return err
}

// again is [Pass.Again].
func (g *Gate) again(ctx context.Context, p Pass, key string) error {
	r, now := p.r, g.clock()
	g.mu.Lock()
	if r.gen != p.gen || !r.open || r.state == waiting {
		g.unlock()
		return errNotAdmitted
	}
	err := g.rearrive(now, r, key)
	g.unlock()
	if errors.Is(err, errParked) {
		err = g.wait(ctx, r)
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	return err
}

var errNotAdmitted = errors.New("the pass is not valid any more")

// rearrive is arrive for a request that is open.
func (g *Gate) rearrive(now time.Time, r *Request, key string) error {
	r.err, r.done = nil, nil
	if r.ghost || g.Mode() != Enforce {
		err := g.pick(now, r)
		switch {
		case errors.Is(err, ErrOverCap):
			return nil
		case errors.Is(err, ErrFull):
			return refusal(reasonShed, shortRetry)
		}
		return err
	}
	r.holding, r.lane, r.arrived, r.deadline, r.Key = true, laneNone, now, time.Time{}, key
	g.enqueue(r)
	g.dispatch(now)
	if r.state != waiting {
		return r.err
	}
	r.deadline = now.Add(r.patience - r.queued)
	if g.cfg.QueueDepth == 0 && g.cfg.WorkerQueueDepth == 0 || !now.Before(r.deadline) {
		g.dequeue(r)
		r.state, r.holding = active, false
		return refusal(reasonShed, shortRetry)
	}
	g.metrics.decide(reasonQueued)
	r.done = make(chan struct{}, 1)
	return errParked
}

// release is [Pass.Release].
func (g *Gate) release(p Pass) {
	g.mu.Lock()
	defer g.unlock()
	r := p.r
	if r.gen != p.gen {
		return
	}
	if !r.open {
		g.metrics.anomaly(anomalyUnknown)
		return
	}
	now := g.clock()
	r.gen++
	g.expire(now)
	g.closed(r)
	switch r.state {
	case active:
		g.giveBack(r)
	case waiting: // a ghost
		g.dequeue(r)
	case absent, ended:
	}
	g.unslot(r)
	r.state = absent
	clear(g.blocked)
	g.dispatch(now)
}

func (g *Gate) giveBack(r *Request) {
	if r.ghost {
		g.freed += max(1, r.Units)
	}
	if g.used -= r.Units; g.used < 0 {
		g.used = 0
		g.metrics.anomaly(anomalyUnderflow)
	}
	if r.slot != nil {
		r.slot.used -= r.Units
	}
}

// Wake says that a worker has capacity again or that there is another worker: the
// first that wait are asked for again. It never blocks, so that it may be called
// from anywhere, a Pick included.
func (g *Gate) Wake() {
	g.wakes.Add(1)
	if g.waiters.Load() > 0 && g.mu.TryLock() {
		g.unlock()
	} // else whoever holds the lock sees to it
}

// unlock releases the lock, after it has done what Wake asked for meanwhile.
func (g *Gate) unlock() {
	for {
		seen := g.wakes.Load()
		if g.wanted(seen) {
			clear(g.blocked)
			g.dispatch(g.clock())
		}
		g.mu.Unlock()
		if g.wakes.Load() == seen || g.waiters.Load() == 0 || !g.mu.TryLock() {
			return
		}
	}
}

// wanted reports whether Wake was called since it last reported so.
func (g *Gate) wanted(wakes uint64) bool {
	was := g.woken
	g.woken = wakes
	return was != wakes && g.queue.n > 0
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

// Drain ends the admission: newcomers are refused with gateway_draining, and
// those that wait with admission_drained. What runs goes on.
func (g *Gate) Drain() {
	g.mu.Lock()
	defer g.unlock()
	g.draining = true
	for r := g.queue.first(); r != nil; {
		next := g.queue.after(r)
		if !r.holding && !r.ghost {
			g.dequeue(r)
			g.end(r, reasonDrained, refusal(reasonDrained, drainRetry))
		}
		r = next
	}
}

// Draining reports whether Drain was called.
func (g *Gate) Draining() bool {
	g.mu.Lock()
	defer g.unlock()
	return g.draining
}
