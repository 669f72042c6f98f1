package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"pointsman/breaker"
	"pointsman/kvindex"
	"pointsman/picker"
)

// maxTries is how many workers a request is sent to at most.
const maxTries = 3

// Progress hears from time to time how many of a run's requests have ended. It is
// called by the run's goroutine; nil hears nothing.
type Progress func(done, of int)

// sim is one run.
type sim struct {
	s       *Setup
	t       *Trace
	now     int64
	clock   clock
	routers []*router
	workers []*worker
	ids     []string
	calls   []call
	pub     publisher
	rand    *rand.Rand
	scale   float64 // of the trace's times
	open    int     // calls that came and have not ended
	ended   int
	refused error // why the last call was refused
	reports *reports
	samples []Sample
	every   int64 // between samples
}

// Run sends the trace through a setup and returns what came of it. It returns an
// error for an invalid setup, a request that no engine can hold, and a policy that
// dispatches nothing.
func Run(ctx context.Context, t *Trace, s Setup, progress Progress) (*Result, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if blocks, n := t.largest(); blocks > s.CacheBlocks {
		return nil, fmt.Errorf("request %d needs %d blocks of %d tokens and an engine has %d: give larger caches", n+1, blocks, t.BlockTokens, s.CacheBlocks)
	}
	m, err := newSim(t, &s)
	if err != nil {
		return nil, err
	}
	if err := m.run(ctx, progress); err != nil {
		return nil, err
	}
	return m.result(), nil
}

func newSim(t *Trace, s *Setup) (*sim, error) {
	s.Policy.index(s)
	m := &sim{
		s: s, t: t, now: epoch, ids: workerIDs(s.Workers),
		calls: make([]call, len(t.Requests)), pub: publisher{t: t},
		rand: rand.New(rand.NewPCG(s.Seed, 0)), scale: 1, //nolint:gosec // a simulation's chance
	}
	span := t.Duration()
	if s.Rate > 0 && span > 0 {
		m.scale = float64(len(t.Requests)) / s.Rate / span.Seconds()
	}
	for i := range s.Workers {
		m.workers = append(m.workers, &worker{n: i, engine: s.Engine, size: t.BlockTokens, cache: newCache(s.CacheBlocks)})
	}
	store := newFleet(m.ids, t.BlockTokens)
	for i := range s.Routers {
		r, err := newRouter(s, i, store, m.ids, func() time.Time { return at(m.now) })
		if err != nil {
			return nil, err
		}
		m.routers = append(m.routers, r)
	}
	m.reports = newReports(m)
	m.plan(span)
	return m, nil
}

// plan adds the events that are known from the start.
func (m *sim) plan(span time.Duration) {
	for _, slow := range m.s.Slow {
		w := m.workers[slow.Worker]
		if slow.From == 0 {
			w.engine = w.engine.slowed(slow.Factor)
			continue
		}
		m.clock.add(event{at: m.now + int64(slow.From), kind: workerSlows, w: w, try: int(slow.Factor * 1000)})
	}
	for _, f := range m.s.Failures {
		m.clock.add(event{at: m.now + int64(f.From), kind: workerDies, w: m.workers[f.Worker]})
		m.clock.add(event{at: m.now + int64(f.From+f.For), kind: workerReturns, w: m.workers[f.Worker]})
	}
	if m.s.Samples > 0 {
		m.every = max(int64(time.Millisecond), int64(float64(span)*m.scale)/int64(m.s.Samples))
		m.clock.add(event{at: m.now, kind: sampleDue})
	}
	m.reports.plan()
	if every := int64(m.s.Policy.Scrape); every > 0 {
		for i, w := range m.workers {
			m.clock.add(event{at: m.now + every*int64(i+1)/int64(len(m.workers)), kind: scrapeDue, w: w})
		}
	}
}

// arrival returns when request i comes.
func (m *sim) arrival(i int) int64 {
	return epoch + int64(float64(m.t.Requests[i].At-m.t.Requests[0].At)*m.scale)
}

const (
	checkEvery = 4096 // events between looks at the context
	hopeless   = 1000 // requests in a row, the first ones, of which none was dispatched
)

// run lets everything happen, in order.
func (m *sim) run(ctx context.Context, progress Progress) error {
	next := 0
	for n := 1; m.ended < len(m.calls); n++ {
		if n%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err //nolint:wrapcheck // the caller's own
			}
			if progress != nil {
				progress(m.ended, len(m.calls))
			}
		}
		due, ok := m.clock.next()
		switch {
		case next < len(m.calls) && (!ok || m.arrival(next) <= due):
			m.now = m.arrival(next)
			m.arrive(next)
			next++
		case !ok || m.stuck(next):
			return fmt.Errorf("policy %s: %d requests wait for ever: every engine is idle, and none of them is dispatched: %w", m.s.Policy.Label, m.open, m.why())
		default:
			e := m.clock.take()
			m.now = e.at
			m.happen(&e) //nolint:contextcheck // a breaker logs nothing here
		}
		if m.ended >= min(hopeless, len(m.calls)) && m.never() {
			return fmt.Errorf("policy %s: none of the first %d requests was dispatched: %w", m.s.Policy.Label, m.ended, m.why())
		}
	}
	return nil
}

// never reports whether no request was ever sent to a worker.
func (m *sim) never() bool {
	if m.ended > hopeless {
		return false
	}
	for i := range m.calls[:m.ended] {
		if m.calls[i].try > 0 {
			return false
		}
	}
	return true
}

var errNoReason = errors.New("it gave no reason")

func (m *sim) why() error {
	if m.refused == nil {
		return errNoReason
	}
	return m.refused
}

// stuck reports whether all that is still to come are ticks that change nothing.
func (m *sim) stuck(next int) bool {
	if next < len(m.calls) || m.open == 0 {
		return false
	}
	for i := range m.clock.heap {
		switch m.clock.heap[i].kind {
		case sampleDue, reportDue, scrapeDue:
		default:
			return false
		}
	}
	return true
}

func (m *sim) happen(e *event) {
	switch e.kind {
	case stepEnds:
		if e.try == e.w.lives {
			m.stepped(e.w)
		}
	case eventsCome:
		m.deliver(e.w, e.b)
	case firstSeen:
		m.heardFirst(e.c, e.try)
	case endSeen:
		m.heardEnd(e.c, e.try)
	case waitOver:
		m.waited(e.c)
	case reportDue:
		m.reports.due(e)
	case scrapeDue:
		m.scrape(e.w)
	case sampleDue:
		m.sample()
	case workerDies:
		m.dies(e.w)
	case workerReturns:
		e.w.down = false
	case workerSlows:
		e.w.engine = e.w.engine.slowed(float64(e.try) / 1000)
	}
}

// arrive brings request i to a router.
func (m *sim) arrive(i int) {
	c := &m.calls[i]
	c.n, c.req, c.came = i, &m.t.Requests[i], m.now
	c.router, c.from = m.routers[0], 0
	if len(m.routers) > 1 {
		c.from = m.rand.IntN(len(m.routers))
		c.router = m.routers[c.from]
	}
	c.lists[0] = kvindex.Blocks{Size: m.t.BlockTokens, Hashes: c.req.hashes}
	c.ask = picker.Request{ID: "r", Model: modelName, Tokens: c.req.Prompt, Blocks: c.lists[:], Reason: "exact"}
	c.ticket.Units, c.ticket.Key = 1, modelName
	c.ticket.Places = func() int { return len(m.workers) }
	c.ticket.Pick = func(time.Time) error { return m.choose(c) }
	m.open++
	pass, waits, err := c.router.gate.Offer(&c.ticket)
	c.pass = pass
	switch {
	case err != nil:
		m.refused = err
		m.end(c, refused)
	case waits:
		c.queued = true
		if c.state == coming {
			c.state = parked
		}
		m.clock.add(event{at: m.now + int64(m.s.Admission.QueueWait), kind: waitOver, c: c})
	}
}

// choose picks a worker for c and sends it there.
func (m *sim) choose(c *call) error {
	d, err := c.router.pick(at(m.now), &c.ask)
	if err != nil {
		m.refused = err
		return err
	}
	c.decision = d
	c.state = running
	m.dispatch(c)
	return nil
}

// dispatch sends c to the worker that was picked.
func (m *sim) dispatch(c *call) {
	w := m.workers[m.indexOf(c.decision.Worker.ID)]
	c.w, c.sent = w, m.now
	c.try++
	c.seq = sequence{call: c, total: blocksFor(c.req.Prompt+c.req.Output, w.size)}
	if w.down {
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: endSeen, c: c, try: c.try})
		return
	}
	m.reports.sent(c)
	w.submit(&c.seq)
	if !w.busy {
		m.step(w)
	}
}

// indexOf returns the number of a worker: its ID says it.
func (m *sim) indexOf(id string) int {
	n := 0
	for _, d := range id[len("worker-"):] {
		if d == ':' {
			break
		}
		n = 10*n + int(d-'0')
	}
	return n
}

// step begins w's next step, if there is anything to do.
func (m *sim) step(w *worker) {
	took, ok := w.begin()
	m.publish(w) // what was evicted to admit
	if ok {
		m.clock.add(event{at: m.now + max(1, int64(took)), kind: stepEnds, w: w, try: w.lives})
	}
}

// stepped ends w's step: tokens come out.
func (m *sim) stepped(w *worker) {
	w.finish()
	m.publish(w)
	for _, q := range w.first {
		c := q.call
		c.first, c.hit = m.now, q.cached
		m.reports.first(c)
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: firstSeen, c: c, try: c.try})
	}
	for _, q := range w.done {
		c := q.call
		c.ended = m.now
		m.reports.over(c)
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: endSeen, c: c, try: c.try})
	}
	m.step(w)
}

// publish sends what has changed in w's cache.
func (m *sim) publish(w *worker) {
	if b := m.pub.take(w); b != nil && m.s.Policy.Guess == Events {
		m.clock.add(event{at: m.now + int64(m.s.EventLag), kind: eventsCome, w: w, b: b})
	}
}

// deliver brings a batch to every router, unless it gets lost on the way.
func (m *sim) deliver(w *worker, b *batch) {
	msg := m.pub.encode(b)
	for _, r := range m.routers {
		if m.s.Loss > 0 {
			kept := msg
			kept.Events = kept.Events[:0:0]
			for _, e := range msg.Events {
				if r.rand.Float64() >= m.s.Loss {
					kept.Events = append(kept.Events, e)
				}
			}
			r.feeds[w.n].Apply(&kept, at(m.now))
			continue
		}
		r.feeds[w.n].Apply(&msg, at(m.now))
	}
	m.pub.free = append(m.pub.free, b)
}

// heardFirst is c's first token, as its router learns of it.
func (m *sim) heardFirst(c *call, try int) {
	if try != c.try || c.state != running {
		return
	}
	c.decision.FirstToken(at(m.now))
	c.pass.FirstToken(at(m.now))
}

// heardEnd is the end of an attempt, as its router learns of it.
func (m *sim) heardEnd(c *call, try int) {
	if try != c.try || c.state != running {
		return
	}
	switch {
	case c.ended > 0:
		c.decision.Answered(c.req.Output)
		c.decision.Done(at(m.now), breaker.Success)
		c.pass.Release()
		m.end(c, served)
	case c.first > 0: // tokens have gone out: nothing is sent twice
		c.decision.Done(at(m.now), breaker.Stream)
		c.pass.Release()
		m.end(c, failed)
	default:
		c.decision.Done(at(m.now), breaker.Connect)
		m.again(c)
	}
}

// again tries another worker.
func (m *sim) again(c *call) {
	c.tried = append(c.tried, c.w.id(m))
	c.ask.Tried = c.tried
	if c.try < maxTries && len(c.tried) < len(m.workers) && m.choose(c) == nil {
		return
	}
	c.pass.Release()
	m.end(c, failed)
}

func (w *worker) id(m *sim) string { return m.ids[w.n] }

// waited ends c's wait, if it still waits.
func (m *sim) waited(c *call) {
	if c.state != parked {
		return
	}
	if err := c.router.gate.GiveUp(c.pass); err != nil {
		m.refused = err
	}
	m.end(c, refused) // also when its workers had gone while it waited
}

func (m *sim) end(c *call, s state) {
	c.state = s
	m.open--
	m.ended++
}

// dies kills w: its requests are lost, and its cache with them.
func (m *sim) dies(w *worker) {
	for _, q := range w.fail() {
		m.reports.over(q.call)
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: endSeen, c: q.call, try: q.call.try})
	}
	w.lives++
	w.busy = false
	m.clock.add(event{at: m.now + int64(m.s.EventLag), kind: eventsCome, w: w, b: &batch{cleared: true}})
}

// scrape tells every router what w's engine says of itself.
func (m *sim) scrape(w *worker) {
	seen := picker.Scraped{Queued: float64(len(w.queue)), Usage: w.cache.used()}
	for _, r := range m.routers {
		r.picker.SetScraped(m.ids[w.n], -1, seen)
	}
	m.clock.add(event{at: m.now + int64(m.s.Policy.Scrape), kind: scrapeDue, w: w})
}

// sample looks at the queues.
func (m *sim) sample() {
	q := make([]int, len(m.workers))
	for i, w := range m.workers {
		q[i] = len(w.queue) + len(w.prefills)
	}
	m.samples = append(m.samples, Sample{At: time.Duration(m.now - epoch), Queues: q})
	if m.ended < len(m.calls) && m.now < math.MaxInt64-m.every {
		m.clock.add(event{at: m.now + m.every, kind: sampleDue})
	}
}
