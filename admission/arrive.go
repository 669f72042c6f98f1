package admission

import "time"

func (g *Gate) begin(now time.Time, r *Request) error {
	if g.draining {
		g.metrics.decide(reasonDraining)
		return refusal(reasonDraining, drainRetry)
	}
	g.seq++
	r.gen++
	r.seq, r.arrived = g.seq, now
	r.state, r.holding, r.ghost, r.overCap, r.open, r.reported = absent, false, false, false, false, false
	r.slot, r.deadline, r.queued, r.err, r.panicked, r.done = nil, time.Time{}, 0, nil, nil, nil
	r.patience = g.cfg.QueueWait
	return nil
}

// arrive is Enter in mode Enforce, up to the wait.
func (g *Gate) arrive(now time.Time, r *Request) error {
	if err := g.begin(now, r); err != nil {
		return err
	}
	if g.queue.n == 0 {
		g.woken = g.wakes.Load() // nobody waits for what was told until now
	}
	g.expire(now)
	g.slot(r)
	if why := g.place(now, r); why != nil {
		g.unslot(r)
		g.metrics.decide(why.reason)
		return why
	}
	switch r.state {
	case active:
		g.metrics.decide(reasonAdmitted)
		return nil
	case ended:
		return r.err
	case absent, waiting:
	}
	g.metrics.decide(reasonQueued)
	r.done = make(chan struct{}, 1)
	return errParked
}

// place admits r, or puts it into the queue, or returns why neither can be.
func (g *Gate) place(now time.Time, r *Request) *Refusal {
	if top := g.cfg.ceiling(); top > 0 && r.Units > top {
		return oversized(r.Units, top)
	}
	r.lane = laneNone
	g.enqueue(r)
	g.dispatch(now)
	if r.state != waiting {
		return nil
	}
	g.dequeue(r)
	if why := g.room(r); why != nil {
		return why
	}
	r.deadline = now.Add(r.patience)
	g.enqueue(r)
	return nil
}

// room finds r's lane in the queue, throwing out a sheddable request if need be,
// or returns why r may not wait.
func (g *Gate) room(r *Request) *Refusal {
	c, q := &g.cfg, &g.queue
	why := g.holds(r)
	r.lane = lanePool
	if why == heldByWorkers && c.WorkerQueueDepth > 0 {
		places := 1
		if r.Places != nil {
			places = max(1, r.Places())
		}
		if q.parked[r.Key] < places*c.WorkerQueueDepth {
			r.lane = laneWorker
		}
	}
	full := r.lane == lanePool && q.lanes[lanePool] >= c.QueueDepth
	var victim *Request
	if full {
		victim = q.sheddable(r.Priority, lanePool)
	}
	switch {
	case full && victim == nil && why == heldByTenant:
		return refusal(reasonTenant, g.meanWait)
	case full && victim == nil && c.QueueDepth == 0 && (why != heldByWorkers || c.WorkerQueueDepth == 0):
		return refusal(reasonShed, shortRetry)
	case full && victim == nil:
		return refusal(reasonQueueFull, g.meanWait)
	case r.slot != nil && r.lane == lanePool && r.slot.queued >= share(c.QueueDepth, c.TenantSharePct) && (victim == nil || victim.slot != r.slot):
		return refusal(reasonTenant, g.meanWait)
	case c.QueueBytes > 0 && q.bytes+r.Bytes > c.QueueBytes && (victim == nil || q.bytes-victim.Bytes+r.Bytes > c.QueueBytes):
		return refusal(reasonMemory, shortRetry)
	}
	if victim != nil {
		g.dequeue(victim)
		g.end(victim, reasonQueueFull, refusal(reasonQueueFull, g.meanWait))
	}
	return nil
}
