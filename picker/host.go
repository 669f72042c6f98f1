package picker

import (
	"math"
	"time"

	"pointsman/fleet"
)

// host is what the picker remembers of one worker across snapshots, whatever its
// ranks. The picker's mutex guards it.
type host struct {
	requests int       // in flight on all of its ranks
	external int       // the same, of others, as far as freshly told
	risky    int       // of these, sent although its circuit was not closed
	sick     bool      // as the prober last said
	fresh    bool      // has joined since the last visit
	untried  bool      // has come (back) since the last table
	gone     bool      // departed, with requests in flight
	warmAt   time.Time // when it joined or became healthy; zero for long ago
}

// meet makes sure that the worker has a host. joining says that it comes to a fleet
// that was there before.
func (p *Picker) meet(id string, joining bool) {
	h := p.hosts[id]
	if h == nil {
		h = &host{gone: true}
		p.hosts[id] = h
	}
	if h.gone {
		h.gone, h.fresh, h.sick, h.warmAt = false, joining, false, time.Time{}
		h.untried = joining && p.store.Synced()
	}
}

// part forgets the hosts of the departed that have nothing in flight.
func (p *Picker) part(tab *table) {
	for id, h := range p.hosts {
		if h.gone = tab.ids[id] == nil; h.gone && h.requests == 0 {
			delete(p.hosts, id)
		}
	}
}

// visit asks the prober of every worker.
func (p *Picker) visit(now time.Time) {
	for id, h := range p.hosts {
		if h.gone {
			if h.requests == 0 {
				delete(p.hosts, id)
			}
			continue
		}
		sick := p.health != nil && !p.health.Healthy(id)
		if h.fresh || h.sick && !sick {
			h.warmAt = now
		}
		h.fresh, h.sick = false, sick
	}
}

// InFlight returns how many requests, or legs of pairs, are in flight on the
// workers of a role together, and the cap of each, 0 for none.
func (p *Picker) InFlight(role fleet.Role) (n, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.tab.Load()
	for id, h := range p.hosts {
		if rows := tab.ids[id]; len(rows) > 0 && rows[0].Worker.Role == role {
			n += h.requests
		}
	}
	return n, p.cfg.Caps.of(role)
}

// Warming returns how many workers may not take all of their cap yet, because they
// have just come (back): see [Caps].Warmup.
func (p *Picker) Warming(now time.Time) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	p.refresh(now)
	for id := range p.hosts {
		if rows := tab.ids[id]; len(rows) > 0 {
			if most := p.cfg.Caps.of(rows[0].Worker.Role); p.cfg.Caps.ramp(now, most, rows[0].t) < most {
				n++
			}
		}
	}
	return n
}

// of returns the cap of a worker of the given role, 0 for none.
func (c *Caps) of(role fleet.Role) int {
	switch role {
	case fleet.Prefill:
		return c.Prefill
	case fleet.Decode:
		return c.Decode
	case fleet.Mixed:
	}
	return c.Worker
}

// full reports whether r's worker has as much in flight as it may have at now.
func (c *Caps) full(now time.Time, r *row) bool {
	most := c.of(r.Worker.Role)
	return most > 0 && r.t.host.requests+r.t.host.external >= c.ramp(now, most, r.t)
}

// ramp returns the part of a cap that t's worker may use: a quarter when it has
// just come (back), all of it after the warm-up.
func (c *Caps) ramp(now time.Time, most int, t *target) int {
	if c.Warmup <= 0 {
		return most
	}
	since := t.host.warmAt
	if at := t.circuit.Recovered(); at.After(since) {
		since = at
	}
	age := now.Sub(since)
	if since.IsZero() || age >= c.Warmup {
		return most
	}
	share := 0.25 + 0.75*max(0, float64(age)/float64(c.Warmup))
	return max(1, int(math.Ceil(float64(most)*share)))
}
