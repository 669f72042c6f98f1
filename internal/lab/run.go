package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
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
	reports loadReports
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
		m.reports.due(e.w)
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
