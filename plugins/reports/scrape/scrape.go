// Package scrape asks engines for their queue and the use of their KV memory, where no
// forwarder tells of them. It reads a few of the metrics that vLLM and SGLang export, and
// no more of a page than it has to; a worker is asked the more often the more it
// changes.
//
// # Concurrency
//
// [Scraper.Run] owns all goroutines, of which a bounded number asks at a time.
package scrape

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"pointsman/fleet"
)

// Bounds of the questions.
const (
	Fastest = 250 * time.Millisecond // between two questions to a worker that changes
	// Slowest is between two to one that does not, or does not answer. It is below the
	// 5 s after which engines close an idle connection (uvicorn's default).
	Slowest = 4500 * time.Millisecond

	timeout  = time.Second
	buffered = 16 << 10 // of a page at a time
	maxAtOne = 16       // workers asked at the same time
	slowGrid = 2 * Fastest
)

// Scraper asks the engines of a fleet. Make it with [New].
type Scraper struct {
	store *fleet.Store
	want  func(worker string) bool
	tell  func(worker string, e Engine, at time.Time)
	http  *http.Client

	buffers sync.Pool // of *[buffered]byte

	mu    sync.Mutex
	state map[string]*state
	slots chan struct{}
	sped  chan struct{} // somebody is to be asked sooner than was planned
}

type state struct {
	next  time.Time
	every time.Duration
	last  Engine
	busy  bool
}

// New returns a scraper of the workers that want names; what they say goes to tell,
// which is called from several goroutines.
func New(store *fleet.Store, want func(worker string) bool, tell func(worker string, e Engine, at time.Time)) *Scraper {
	return &Scraper{
		store: store, want: want, tell: tell, state: map[string]*state{},
		slots: make(chan struct{}, maxAtOne), sped: make(chan struct{}, 1),
		buffers: sync.Pool{New: func() any { return new([buffered]byte) }},
		http: &http.Client{Timeout: timeout, Transport: &http.Transport{
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * Slowest, DisableCompression: true, Proxy: nil,
		}},
	}
}

// Run asks until ctx is done, and returns nil when all has ended.
func (s *Scraper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		changed := s.store.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-s.sped:
		case <-timer.C:
		}
		workers, next := s.due(time.Now())
		for _, w := range workers {
			select {
			case s.slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			wg.Go(func() {
				defer func() { <-s.slots }()
				s.ask(ctx, w)
			})
		}
		timer.Reset(time.Until(next))
	}
}

// due returns whom to ask now and when to look again, and forgets those that have
// left.
func (s *Scraper) due(now time.Time) (out []*fleet.Worker, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.store.Snapshot()
	for id := range s.state {
		if snap.Worker(id) == nil {
			delete(s.state, id)
		}
	}
	next = now.Add(onGrid(now, Slowest))
	for _, w := range snap.Workers {
		st := s.state[w.ID]
		if st == nil {
			st = &state{every: Fastest, next: now}
			s.state[w.ID] = st
		}
		if !now.Before(st.next) {
			every := st.every
			switch {
			case w.Status != fleet.Active || !s.want(w.ID):
				every = Slowest
			case !st.busy:
				st.busy = true
				out = append(out, w)
			}
			st.next = now.Add(onGrid(now, every))
		}
		if st.next.Before(next) {
			next = st.next
		}
	}
	return out, next
}

// onGrid shortens a wait from now so that it ends on a grid of the wall clock, on
// which questions to many workers fall together: they wake an idle process once
// and not once for each. Of long waits some are a step shorter, so that workers that
// came together do not stay so.
func onGrid(now time.Time, wait time.Duration) time.Duration {
	grid := Fastest
	if wait > 4*Fastest {
		grid = slowGrid
		wait -= time.Duration(rand.IntN(2)) * grid //nolint:gosec // spread, not secrecy
	}
	end := now.Add(wait)
	return max(grid/2, wait-end.Sub(end.Truncate(grid)))
}

// ask reads one worker's page.
func (s *Scraper) ask(ctx context.Context, w *fleet.Worker) {
	e, err := s.read(ctx, "http://"+w.Address()+"/metrics")
	now := time.Now()
	s.mu.Lock()
	if st := s.state[w.ID]; st != nil {
		was := st.every
		switch {
		case err != nil:
			st.every = Slowest
		case e.Running != st.last.Running || e.Waiting != st.last.Waiting || math.Abs(e.KVUse-st.last.KVUse) >= 0.01:
			st.every = max(Fastest, st.every/2)
		default:
			st.every = min(Slowest, st.every*3/2)
		}
		st.last, st.busy = e, false
		if st.every < was {
			st.next = now.Add(onGrid(now, st.every))
			select {
			case s.sped <- struct{}{}:
			default:
			}
		}
	}
	s.mu.Unlock()
	if err == nil {
		s.tell(w.ID, e, now)
	}
}

func (s *Scraper) read(ctx context.Context, url string) (Engine, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Engine{}, fmt.Errorf("metrics page: %w", err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return Engine{}, fmt.Errorf("metrics page: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return Engine{}, fmt.Errorf("metrics page: %s", resp.Status)
	}
	buffer := s.buffers.Get().(*[buffered]byte) //nolint:forcetypeassert // the pool has no other
	defer s.buffers.Put(buffer)
	return Parse(resp.Body, buffer[:])
}
