package picker

import (
	"math"
	"time"

	"pointsman/breaker"
)

// separate leaves out the pairs whose circuits are open, and them only: a decode
// worker costs what its cheapest partner that is left costs more than the cheapest
// of all, and is excluded when none is left. It reports whether a pair is left; of
// open ones only, when open allows that, the one that failed longest ago is.
func (p *Picker) separate(now time.Time, open circuits) bool {
	p.blocked = p.blocked[:0]
	if !p.breakers.Troubled() {
		return true
	}
	p.blocked = p.breakers.OpenPairs(now, p.blocked)
	d := &p.sel
	d.mark()
	for _, b := range p.blocked {
		for _, r := range d.tab.ids[b.Decode] {
			d.marks[r.n] = d.stamp
		}
	}
	for i, r := range d.rows {
		if d.why[i] != eligible || d.marks[r.n] != d.stamp {
			continue
		}
		all, free := p.partners(r)
		if math.IsInf(free, 1) {
			d.exclude(i, pairOpen)
			continue
		}
		d.cost[i] += free - all
	}
	if p.classify(eligible) {
		return true
	}
	return open == openToo && p.oldestPair()
}

// partners returns the costs of the cheapest partner of the decode worker r, and of
// the cheapest whose circuit with r is closed; infinite for none.
func (p *Picker) partners(r *row) (all, free float64) {
	f := &p.pre
	p.block(r.Worker.ID)
	all, free = math.Inf(1), math.Inf(1)
	for j, q := range f.rows {
		if f.why[j] != eligible || q.class != r.class {
			continue
		}
		all = min(all, f.cost[j])
		if f.marks[q.n] != f.stamp {
			free = min(free, f.cost[j])
		}
	}
	return all, free
}

// block marks the prefill workers whose circuits with the decode worker are open.
func (p *Picker) block(decode string) {
	f := &p.pre
	f.mark()
	for _, b := range p.blocked {
		if b.Decode != decode {
			continue
		}
		for _, q := range f.tab.ids[b.Prefill] {
			f.marks[q.n] = f.stamp
		}
	}
}

// fit leaves out the prefill workers that may not be paired with the decode worker
// r, which has been chosen.
func (p *Picker) fit(r *row) {
	if len(p.blocked) == 0 {
		return
	}
	f := &p.pre
	p.block(r.Worker.ID)
	for j, q := range f.rows {
		if f.why[j] == eligible && f.marks[q.n] == f.stamp && f.left > 1 {
			f.exclude(j, pairOpen)
			if f.pinned == j+1 {
				f.pinned = 0
			}
		}
	}
}

// unpair leaves out the decode workers that may not be paired with the prefill
// worker, unless that leaves none.
func (p *Picker) unpair(prefill string) {
	d := &p.sel
	for _, b := range p.blocked {
		if b.Prefill != prefill {
			continue
		}
		for i, r := range d.rows {
			if d.why[i] == eligible && r.Worker.ID == b.Decode && d.left > 1 {
				d.exclude(i, pairOpen)
			}
		}
	}
}

// oldestPair leaves the pair that failed longest ago, of the open ones.
func (p *Picker) oldestPair() bool {
	f, d := &p.pre, &p.sel
	var oldest breaker.Pair
	var when time.Time
	for _, b := range p.blocked {
		at := p.breakers.Pair(b.Prefill, b.Decode).FailedAt()
		if (oldest == breaker.Pair{} || at.Before(when)) && f.has(b.Prefill, eligible) && d.has(b.Decode, pairOpen) {
			oldest, when = b, at
		}
	}
	if (oldest == breaker.Pair{}) {
		return false
	}
	for j, q := range f.rows {
		if f.why[j] == eligible && q.Worker.ID != oldest.Prefill {
			f.exclude(j, pairOpen)
		}
	}
	for i, r := range d.rows {
		switch {
		case r.Worker.ID == oldest.Decode && d.why[i] == pairOpen:
			d.why[i] = eligible
			d.left++
		case d.why[i] == eligible:
			d.exclude(i, pairOpen)
		}
	}
	f.allOpen, d.allOpen = true, true
	p.blocked = p.blocked[:0]
	return p.classify(eligible)
}

// has reports whether a row of the worker is excluded for the given reason.
func (s *selection) has(id string, why exclusion) bool {
	for i, r := range s.rows {
		if s.why[i] == why && r.Worker.ID == id {
			return true
		}
	}
	return false
}

// pairPermit asks the circuit of two workers that have been chosen.
func (p *Picker) pairPermit(now time.Time, prefill, decode string) breaker.PairPermit {
	if permit, ok := p.breakers.AcquirePair(now, prefill, decode); ok {
		return permit
	}
	return p.breakers.ForcePair(now, prefill, decode)
}
