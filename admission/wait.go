package admission

import (
	"context"
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
