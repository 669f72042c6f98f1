package admission

import "time"

// take counts r against the ceiling.
func (g *Gate) take(r *Request) {
	r.state = active
	g.used += r.Units
	if r.slot != nil {
		r.slot.used += r.Units
	}
}

// opened links r into the list of the open ones.
func (g *Gate) opened(now time.Time, r *Request) {
	r.open, r.admitted = true, now
	g.requests++
	g.open += r.Units
	if r.older = g.newest; r.older != nil {
		r.older.newer = r
	} else {
		g.oldest = r
	}
	r.newer, g.newest = nil, r
}

func (g *Gate) closed(r *Request) {
	r.open = false
	g.requests--
	if g.open -= r.Units; g.open < 0 {
		g.open = 0
		g.metrics.anomaly(anomalyUnderflow)
	}
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		g.oldest = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		g.newest = r.older
	}
	r.older, r.newer = nil, nil
}

func (g *Gate) slot(r *Request) {
	if g.cfg.TenantSharePct == 0 || r.Units == 0 {
		return
	}
	slot, full := g.tenants.take(r.Tenant)
	if r.slot = slot; full {
		g.metrics.anomaly(anomalyTenants)
	}
}

func (g *Gate) unslot(r *Request) {
	if r.slot != nil {
		g.tenants.give(r.slot)
		r.slot = nil
	}
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
