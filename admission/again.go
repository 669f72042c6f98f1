package admission

import (
	"context"
	"errors"
	"time"
)

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
