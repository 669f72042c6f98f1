package picker

import (
	"fmt"
	"math"
	"slices"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
)

// PairError says why a model's prefill and decode workers cannot serve a request.
// It is an [ErrNoPair] and an [ErrNoWorker].
type PairError struct {
	Model           string
	Prefill, Decode int  // active targets
	Paired          bool // some of them could be paired, but the request rules those out
}

// Error says which half is missing, in Infera's words (infera/router/auto.py).
func (e *PairError) Error() string {
	switch {
	case e.Decode == 0:
		return fmt.Sprintf("model=%q has %d prefill worker(s) but no decode worker; PD dispatch requires both pools", e.Model, e.Prefill)
	case e.Prefill == 0:
		return fmt.Sprintf("model=%q has %d decode worker(s) but no prefill worker; PD dispatch requires both pools", e.Model, e.Decode)
	case e.Paired:
		return fmt.Sprintf("model=%q has %d prefill and %d decode worker(s), but no pair of them is left for this request", e.Model, e.Prefill, e.Decode)
	}
	return fmt.Sprintf("model=%q has %d prefill and %d decode worker(s), but no two of them share a known protocol", e.Model, e.Prefill, e.Decode)
}

// Is reports whether target is [ErrNoPair] or [ErrNoWorker].
func (e *PairError) Is(target error) bool { return target == ErrNoPair || target == ErrNoWorker }

// classOf returns the class of pairs that w can be in, -1 for none.
func (p *Picker) classOf(tab *table, w *fleet.Worker) int {
	if w.Role == fleet.Mixed || w.Protocol == "" || p.cfg.Protocols != nil && !slices.Contains(p.cfg.Protocols, w.Protocol) {
		return -1
	}
	key := pairing{w.Model, w.Protocol}
	c, ok := tab.class[key]
	if !ok {
		c = len(tab.class)
		tab.class[key] = c
	}
	return c
}

// pairable reports whether pl has both legs of a pair.
func pairable(pl *pool, classes int) bool {
	has := make([]bool, classes)
	for _, r := range pl.prefill {
		if r.class >= 0 {
			has[r.class] = true
		}
	}
	return slices.ContainsFunc(pl.decode, func(r *row) bool { return r.class >= 0 && has[r.class] })
}

// circuits says whether a pair may have a worker whose circuit is open.
type circuits bool

const (
	closedOnly circuits = false
	openToo    circuits = true
)

// class is what a pick knows of the workers that can be paired with each other.
type class struct {
	legs [2]int     // eligible rows: of the prefill leg, of the decode leg
	cost [2]float64 // the lowest of them
}

func (c *class) usable() bool { return c.legs[0] > 0 && c.legs[1] > 0 }

// takePair reserves what scorePair has found.
func (p *Picker) takePair(now time.Time, req *Request) Decision {
	f, d := &p.pre, &p.sel
	i, permit := d.acquire(now, p.rand.IntN)
	if f.allOpen || d.allOpen {
		p.breakers.AllOpen()
	}
	if p.skips(d, i) {
		d.receives = false
		p.bind(now, req, d.rows[i].Key, "")
		rec := p.records.get(now, req.ID)
		p.reserve(now, d, req, i, permit, rec)
		return p.decide(req, i, rec)
	}
	p.fit(d.rows[i])
	j, prefill := f.acquire(now, p.rand.IntN)
	p.bind(now, req, d.rows[i].Key, f.rows[j].Key)
	others := p.fallbacks(d, req, i, f.rows[j].Worker.ID)
	out := p.reservePair(now, req, i, j, permit, prefill)
	out.Fallbacks = others
	return out
}

// scorePair filters and prices the legs of a pair, p.sel for decode and p.pre for
// prefill, and confines both to the class whose cheapest pair is the cheapest.
// It reports whether there is one.
func (p *Picker) scorePair(now time.Time, req *Request, tab *table, pl *pool, open circuits) bool {
	f, d := &p.pre, &p.sel
	f.begin(now, req, p.policy, tab, pl, pl.prefill, p.cfg.weigh(fleet.Prefill, req))
	d.begin(now, req, p.policy, tab, pl, pl.decode, p.cfg.weigh(fleet.Decode, req))
	f.role, d.role, d.receives = fleet.Prefill, fleet.Decode, true
	f.skipTried(req)
	d.skipTried(req)
	d.within(req) // the gateway reaches the decode worker only
	f.leaveOut(now)
	d.leaveOut(now)
	if !p.match(now, open) {
		return false
	}
	for c := range p.classes {
		if !p.classes[c].usable() {
			f.drop(c)
			d.drop(c)
		}
	}
	f.drop(-1)
	d.drop(-1)
	for _, s := range [...]*selection{f, d} {
		s.fill(req, p.index, p.scale)
		s.price()
	}
	if !p.separate(now, open) {
		return false
	}
	best, bound := p.recallPair(now, req)
	if !bound {
		best = p.cheapest()
	}
	for c := range p.classes {
		if c != best {
			f.drop(c)
			d.drop(c)
		}
	}
	return true
}

// match reports whether some class has both legs, of workers that seem able to
// serve, or else of the best of a bad lot: see [selection.judge]. Otherwise
// p.pairFull says whether that is so only because of caps.
func (p *Picker) match(now time.Time, open circuits) bool {
	p.pairFull = false
	if p.classify(eligible) || p.takeBack(now, busy) {
		return true
	}
	if p.pairFull = p.classify(full); p.pairFull || open == closedOnly {
		return false
	}
	if p.takeBack(now, opened) || p.takeBack(now, unhealthy) {
		return true
	}
	p.pairFull = p.classify(full)
	return false
}

// takeBack makes rows eligible that were excluded for the given reason: of a leg
// that has none if that is enough, else of both.
func (p *Picker) takeBack(now time.Time, was exclusion) bool {
	for _, s := range [...]*selection{&p.pre, &p.sel} {
		if s.left == 0 {
			s.readmit(now, was)
		}
	}
	if p.classify(eligible) {
		return true
	}
	p.pre.readmit(now, was)
	p.sel.readmit(now, was)
	return p.classify(eligible)
}

// classify counts the eligible rows of each class, and those excluded for the given
// reason too, and reports whether some class has both legs.
func (p *Picker) classify(also exclusion) bool {
	n := len(p.sel.tab.class)
	p.classes = slices.Grow(p.classes[:0], n)[:n]
	clear(p.classes)
	for leg, s := range [...]*selection{&p.pre, &p.sel} {
		for i, r := range s.rows {
			if (s.why[i] == eligible || s.why[i] == also) && r.class >= 0 {
				p.classes[r.class].legs[leg]++
			}
		}
	}
	return slices.ContainsFunc(p.classes, func(c class) bool { return c.usable() })
}

// drop excludes the rows of a class, those with open circuits too: a leg that
// falls back to these must not leave the class.
func (s *selection) drop(class int) {
	for i, r := range s.rows {
		if r.class != class {
			continue
		}
		switch s.why[i] {
		case eligible:
			s.exclude(i, otherPeers)
		case opened:
			s.why[i] = otherPeers
		default:
		}
	}
}

// cheapest returns the class with the cheapest pair. Of equal ones any is taken.
func (p *Picker) cheapest() int {
	for c := range p.classes {
		p.classes[c].cost = [2]float64{math.Inf(1), math.Inf(1)}
	}
	for leg, s := range [...]*selection{&p.pre, &p.sel} {
		for i, r := range s.rows {
			if s.why[i] == eligible {
				cost := &p.classes[r.class].cost[leg]
				*cost = min(*cost, s.cost[i])
			}
		}
	}
	best, low, ties := -1, math.Inf(1), 0
	for c := range p.classes {
		cost := p.classes[c].cost[0] + p.classes[c].cost[1]
		switch {
		case !p.classes[c].usable():
		case best < 0 || cost < low-tolerance(low):
			best, low, ties = c, cost, 1
		case cost <= low+tolerance(low):
			if ties++; p.rand.IntN(ties) == 0 {
				best = c
			}
		}
	}
	return best
}

// skips reports whether the decode worker of row i can do without a prefill leg.
func (p *Picker) skips(d *selection, i int) bool {
	if p.cfg.PDSkipPrefillTokens == 0 || d.rows[i].Worker.Engine == fleet.SGLang || d.approx || d.total == 0 {
		return false
	}
	left := max(d.total, float64(d.tokens)) - d.in.Hit[i]
	return left <= float64(p.cfg.PDSkipPrefillTokens)
}

// reservePair takes row i of the decode leg and row j of the prefill leg.
func (p *Picker) reservePair(now time.Time, req *Request, i, j int, permit, prefill breaker.Permit) Decision {
	f, d := &p.pre, &p.sel
	rec := p.records.get(now, req.ID)
	p.reserve(now, d, req, i, permit, rec)
	p.reserve(now, f, req, j, prefill, rec)
	from := f.rows[j]
	rec.canary = req.Canary
	if req.Canary {
		rec.pair = p.canaryPermit(now, from.Worker.ID, d.rows[i].Worker.ID)
	} else {
		rec.pair = p.pairPermit(now, from.Worker.ID, d.rows[i].Worker.ID)
	}
	d.partner, f.partner = from.Key, d.rows[i].Key
	f.reason = f.label(req)
	hit := f.hit()
	if !req.Canary {
		p.metrics.picked(req, f, from.t, hit)
		p.ring.keep(&f.trace)
	}
	out := p.decide(req, i, rec)
	out.Prefill, out.PrefillRank, out.PrefillHit = from.Worker, from.Rank, hit
	out.OverCap, out.affine = d.overCap || f.overCap, true
	return out
}

// hit returns the tokens that the chosen row is believed to hold.
func (s *selection) hit() int {
	if !s.tell {
		return 0
	}
	return int(s.in.Hit[s.chosen]) + s.promised[s.chosen]
}

// remembers reports whether what is sent to row i can be found there again. A
// decode worker that publishes no events mostly keeps no prefixes (Infera defect
// K18): to expect them there would pull requests to it for nothing.
func (s *selection) remembers(i int) bool {
	return !s.receives || s.rows[i].Worker.KVEvents != ""
}

// Alternate reserves another decode worker for the KV cache that prefill has
// computed for req. Its decision has no prefill leg.
func (p *Picker) Alternate(now time.Time, req *Request, prefill *fleet.Worker) (Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	p.refresh(now)
	c, ok := tab.class[pairing{prefill.Model, prefill.Protocol}]
	pl := tab.models[prefill.Model]
	if !ok || pl == nil {
		return Decision{}, fmt.Errorf("worker %q: %w", prefill.ID, ErrOtherProtocol)
	}
	s := &p.sel
	s.begin(now, req, p.policy, tab, pl, pl.decode, p.cfg.weigh(fleet.Decode, req))
	s.role, s.receives, s.partner = fleet.Decode, true, prefill.ID
	s.skipTried(req)
	for other := -1; other < len(tab.class); other++ {
		if other != c {
			s.drop(other)
		}
	}
	if s.left == 0 {
		err := &PairError{Model: pl.model, Prefill: len(pl.prefill), Decode: len(pl.decode), Paired: true}
		p.ring.refused(&s.trace, err)
		return Decision{}, err
	}
	if err := s.judge(now); err != nil {
		p.ring.refused(&s.trace, err)
		return Decision{}, err
	}
	s.fill(req, p.index, p.scale)
	s.price()
	p.blocked = p.breakers.OpenPairs(now, p.blocked[:0])
	p.unpair(prefill.ID)
	i, permit := s.acquire(now, p.rand.IntN)
	rec := p.records.get(now, req.ID)
	p.reserve(now, s, req, i, permit, rec)
	rec.pair = p.pairPermit(now, prefill.ID, s.rows[i].Worker.ID)
	out := p.decide(req, i, rec)
	out.affine = true
	return out, nil
}

// dryPair writes out what scorePair has found, decode leg first.
func (p *Picker) dryPair(req *Request) Record {
	zero := func(int) int { return 0 }
	f, d := &p.pre, &p.sel
	d.chosen = d.choose(zero)
	d.reason = d.label(req)
	if p.skips(d, d.chosen) {
		return d.record()
	}
	p.fit(d.rows[d.chosen])
	f.chosen = f.choose(zero)
	f.reason = f.label(req)
	d.partner, f.partner = f.rows[f.chosen].Key, d.rows[d.chosen].Key
	rec, prefill := d.record(), f.record()
	rec.Prefill = &prefill
	return rec
}
