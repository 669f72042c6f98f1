package picker

import (
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
)

// CanaryDue returns the pair that a canary is to try at now: one whose cooldown is
// over, or one half of which has come (back), as far as both workers can be asked.
// The canary is sent by [Picker.Direct] with [Request].Canary, which takes the
// pair's probe. There is none unless [breaker.Config].PairCanary says so.
func (p *Picker) CanaryDue(now time.Time) (prefill, decode *fleet.Worker, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	if !p.breakers.Canary() || !p.breakers.Troubled() {
		return nil, nil, false
	}
	p.refresh(now)
	p.due = p.breakers.DuePairs(now, p.due[:0])
	for _, id := range p.due {
		f, d := p.askable(now, tab, id.Prefill, fleet.Prefill), p.askable(now, tab, id.Decode, fleet.Decode)
		if f != nil && d != nil && f.class >= 0 && f.class == d.class {
			return f.Worker, d.Worker, true
		}
	}
	return nil, nil, false
}

// askable returns a row of the worker if it is able to do the leg now.
func (p *Picker) askable(now time.Time, tab *table, id string, role fleet.Role) *row {
	rows := tab.ids[id]
	if len(rows) == 0 {
		return nil
	}
	r := rows[0]
	switch t := r.t; {
	case r.Worker.Role != role, r.Worker.Status != fleet.Active, t.host.sick, t.circuit.Busy(now), !t.circuit.Allows(now),
		p.cfg.Caps.Enforce && p.cfg.Caps.full(now, r):
		return nil
	}
	return r
}

// suspectNew makes the pairs of workers due that have come (back) since the last
// table.
func (p *Picker) suspectNew(tab *table) {
	for id, h := range p.hosts {
		if h.untried && tab.ids[id] != nil {
			p.suspect(tab, id, "")
		}
		h.untried = false
	}
}

// suspect makes the pairs of a worker due, but for that with the given partner,
// with which it has just served.
func (p *Picker) suspect(tab *table, id, partner string) {
	rows := tab.ids[id]
	if len(rows) == 0 || rows[0].class < 0 || !p.breakers.Canary() {
		return
	}
	w, class := rows[0].Worker, rows[0].class
	for other, others := range tab.ids {
		switch o := others[0]; {
		case o.class != class || other == partner:
		case w.Role == fleet.Prefill && o.Worker.Role == fleet.Decode:
			p.breakers.Due(id, other)
		case w.Role == fleet.Decode && o.Worker.Role == fleet.Prefill:
			p.breakers.Due(other, id)
		}
	}
}

// recovered makes the pairs due of the worker of d's leg i, whose own circuit has
// closed by d. The mutex is held.
func (p *Picker) recovered(d *Decision, i int) {
	tab := p.tab.Load()
	switch {
	case i > 0 && d.Prefill != nil:
		p.suspect(tab, d.Prefill.ID, d.Worker.ID)
	case d.Prefill != nil:
		p.suspect(tab, d.Worker.ID, d.Prefill.ID)
	default:
		p.suspect(tab, d.Worker.ID, "")
	}
}

// closes reports whether the end o of a request by permit closes its circuit.
func closes(permit breaker.Permit, o breaker.Outcome) bool {
	return o == breaker.Success && (permit.Probe() || permit.Forced())
}

// canaryPermit takes the probe of a pair. Without one it is a request as any other.
func (p *Picker) canaryPermit(now time.Time, prefill, decode string) breaker.PairPermit {
	if permit, ok := p.breakers.AcquireCanary(now, prefill, decode); ok {
		return permit
	}
	return p.breakers.ForcePair(now, prefill, decode)
}
