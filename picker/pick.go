package picker

import (
	"errors"
	"fmt"
	"math"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
)

// Pick selects a worker for req at now and reserves it. On an error nothing is
// reserved; errors are [ErrNoModel], [ErrNoWorker], [ErrNoEndpoint] and [ErrFull],
// wrapped.
//
// The lowest cost wins. Of equal costs a worker that holds part of the prompt
// wins over one that holds none, unless it has more in flight; then the one with
// less load; what is still equal is spread at random. A conversation stays where it
// was ([Config].SessionAffinity). When the circuits of all candidates are open, the
// one that failed longest ago is asked.
//
// A model with prefill and decode workers that speak one protocol is served by a
// pair, chosen together; its mixed workers serve what no pair can (Infera
// infera/router/auto.py).
func (p *Picker) Pick(now time.Time, req *Request) (Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	p.refresh(now)
	p.index.Expire(now)
	pl, err := tab.pool(req)
	if err != nil {
		switch { // nobody can say then that the model does not exist
		case !p.store.Synced():
			err = fmt.Errorf("the fleet is not known yet: %w", ErrNoWorker)
		case len(tab.rows) == 0:
			err = fmt.Errorf("the fleet has no workers: %w", ErrNoWorker)
		}
		return Decision{}, err
	}
	s := &p.sel
	paired, err := p.plan(now, req, tab, pl)
	switch {
	case err != nil:
		p.ring.refused(&s.trace, err)
		return Decision{}, err
	case paired:
		return p.takePair(now, req), nil
	}
	p.recall(now, req)
	i, permit := s.acquire(now, p.rand.IntN)
	if s.allOpen {
		p.breakers.AllOpen()
	}
	p.bind(now, req, s.rows[i].Key, "")
	rec := p.records.get(now, req.ID)
	p.reserve(now, s, req, i, permit, rec)
	others := p.fallbacks(s, req, i, "")
	out := p.decide(req, i, rec) // which gives the trace away
	out.Fallbacks = others
	return out, nil
}

// plan filters and prices what may serve req: a pair, in p.sel and p.pre, or one
// worker, in p.sel. Workers at their cap are worth waiting for; only without them
// a request goes where the circuits are open.
func (p *Picker) plan(now time.Time, req *Request, tab *table, pl *pool) (pair bool, err error) {
	pairs := pl.pairs && !req.NoPair
	if pairs && p.scorePair(now, req, tab, pl, closedOnly) {
		return true, nil
	}
	waits := pairs && p.pairFull
	err = p.score(now, req, tab, pl)
	switch {
	case waits && (err != nil || p.sel.allOpen):
		return false, fmt.Errorf("%v: %w", pl, ErrFull)
	case err == nil || !pairs || errors.Is(err, ErrFull):
		return false, err
	case p.scorePair(now, req, tab, pl, openToo):
		return true, nil
	case p.pairFull:
		return false, fmt.Errorf("%v: %w", pl, ErrFull)
	}
	return false, err
}

// pool returns the pool that req asks for.
func (tab *table) pool(req *Request) (*pool, error) {
	pl, known := tab.poolOf(req.Model)
	switch {
	case known, pl != nil && !req.AnyModel:
		return pl, nil
	case req.AnyModel:
		return tab.all, nil
	}
	return nil, fmt.Errorf("model %q: %w", req.Model, ErrNoModel)
}

// poolOf returns the pool of a name. What no worker is known to serve may be
// served by those of which it is not known what they serve; nil when there are
// none of these either.
func (tab *table) poolOf(name string) (pl *pool, known bool) {
	if name == "" {
		return nil, false
	}
	if pl := tab.models[name]; pl != nil {
		return pl, true
	}
	return tab.models[""], false
}

// score filters and prices the candidates of an ordinary request into p.sel.
func (p *Picker) score(now time.Time, req *Request, tab *table, pl *pool) error {
	s := &p.sel
	s.begin(now, req, p.policy, tab, pl, pl.candidates(req), p.cfg.weigh(fleet.Mixed, req))
	if err := s.filter(now, req); err != nil {
		return err
	}
	s.fill(req, p.index, p.scale)
	s.price()
	return nil
}

// reserve takes row i for req: its load, and what the next pick is to believe of
// its cache.
func (p *Picker) reserve(now time.Time, s *selection, req *Request, i int, permit breaker.Permit, rec *record) {
	s.chosen = i
	s.ask(i, p.shade.IntN)
	p.metrics.shadowed(s)
	s.overCap = !p.cfg.Caps.Enforce && p.cfg.Caps.full(now, s.rows[i])
	t := s.rows[i].t
	before := t.active()
	l := leg{
		t: t, in: t.in, permit: permit, at: now.UnixNano(), mute: req.Unary || s.total == 0 && req.Tokens == 0, work: s.work(i),
		plain:  int64(s.pool.unit),
		prompt: int64(max(s.total, float64(req.Tokens))),
	}
	hit := int64(s.in.Hit[i]) + int64(s.promised[i])
	if l.miss = max(0, l.prompt-hit); s.receives {
		l.miss, l.work = 0, 0 // another worker computes it
	}
	if j := listFor(s.lists, s.approx, t.size); j >= 0 {
		b := &s.lists[j]
		l.told = s.tell && len(b.Hashes) > 0 && s.remembers(i)
		p.enter(&l, b, s.real(j, t, int(hit)/b.Size))
	} else if len(s.lists) > 0 { // any list tells prompts apart
		p.enter(&l, &s.lists[0], 0)
	}
	if l.told {
		p.index.Predict(l.in, l.node.hashes, now, s.lifetime(i))
	}
	p.turn++
	t.turn = p.turn
	if s.policy.cache || s.shadow.cache() {
		p.charge(t, s, s.in.Miss[i])
	}
	if len(req.Images) > 0 {
		t.images.saw(req.Images)
	}
	rec.legs[rec.n] = l
	rec.legs[rec.n].start()
	rec.legs[rec.n].added = t.active() - before
	rec.n++
}

// enter puts the prompt, real blocks of which are there, into the ledger of l's
// target.
func (p *Picker) enter(l *leg, b *kvindex.Blocks, real int) {
	if len(b.Hashes) == 0 {
		return
	}
	l.node = l.t.led.add(b.Hashes, b.Size, &p.nodes)
	l.node.real = max(l.node.real, real)
}

// What a pick charges its worker fades with each pick (Infera
// kv_event_aware.py: every recent value times 0.97). The fading is one common
// factor, so that it costs the same for any number of workers.
const (
	fade     = 0.97
	minScale = 1e-100
)

// charge fades what every target was charged, and charges t the tokens it has to
// prefill, or one block for a request without blocks.
func (p *Picker) charge(t *target, s *selection, miss float64) {
	if s.total == 0 {
		miss = s.pool.unit
	}
	if p.scale *= fade; p.scale < minScale {
		for _, other := range p.targets {
			other.recent *= p.scale
		}
		p.scale = 1
	}
	if miss <= 0 {
		return
	}
	recent := t.recent * p.scale
	if recent < faintest*s.pool.unit {
		recent = 0
	}
	t.recent = (recent + miss) / p.scale
}

// decide counts the pick, records it and returns it.
func (p *Picker) decide(req *Request, i int, rec *record) Decision {
	s := &p.sel
	r := s.rows[i]
	s.reason = s.label(req)
	hit := 0
	if s.tell {
		hit = int(s.in.Hit[i]) + s.promised[i]
	}
	if !req.Canary {
		p.metrics.picked(req, s, r.t, hit)
	}
	d := Decision{
		Worker: r.Worker, Rank: r.Rank, PrefillRank: -1,
		HitTokens: hit, Reason: s.reason, OverCap: s.overCap,
		affine: hit > 0 && s.policy.cache || s.pinned == i+1,
		p:      p, rec: rec, gen: rec.gen,
	}
	if d.weigh(rec); !req.Canary {
		p.ring.keep(&s.trace)
	}
	return d
}

// weigh says what rec's legs add to the load.
func (d *Decision) weigh(rec *record) {
	l := &rec.legs[0]
	d.PromptTokens, d.MissTokens, d.AddedTokens = int(l.prompt), int(l.miss), int(l.added)
	if rec.n > 1 {
		d.MissTokens = int(rec.legs[1].miss)
	}
}

// label returns the reason that the decision carries.
func (s *selection) label(req *Request) string {
	switch {
	case !s.tell || s.total == 0 || s.anyHit:
		return req.Reason
	case !s.anyMode && !s.approx:
		return ReasonNoEvents
	}
	return ReasonNoMatch
}

// blocksOf returns tokens in blocks of the chosen row's size.
func (s *selection) blocksOf(tokens float64, i int) float64 {
	size := float64(s.size[i])
	if s.approx && len(s.lists) > 0 {
		size = float64(s.lists[0].Size)
	}
	if size <= 0 {
		size = s.pool.unit
	}
	return math.Floor(tokens / size)
}
