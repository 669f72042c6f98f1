// Package scrape asks engines for their queue, where no forwarder reports on a
// worker. It reads a few of the metrics that vLLM and SGLang export, and no more of
// a page than it has to; a worker is asked the more often the more it changes.
//
// # Concurrency
//
// [Scraper.Run] owns all goroutines, of which a bounded number asks at a time.
package scrape

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"pointsman/fleet"
)

// Bounds of the questions.
const (
	Fastest = 250 * time.Millisecond // between two questions to a worker that changes
	Slowest = 5 * time.Second        // to one that does not, or does not answer

	timeout  = time.Second
	maxPage  = 4 << 20
	maxLine  = 64 << 10
	maxAtOne = 16 // workers asked at the same time
)

// Engine is what an engine says of itself.
type Engine struct {
	Running, Waiting float64 // requests
	KVUse            float64 // share of the KV cache in use, 0 to 1
}

// Scraper asks the engines of a fleet. Make it with [New].
type Scraper struct {
	store *fleet.Store
	want  func(worker string) bool
	tell  func(worker string, e Engine, at time.Time)
	http  *http.Client

	mu    sync.Mutex
	state map[string]*state
	slots chan struct{}
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
		store: store, want: want, tell: tell, state: map[string]*state{}, slots: make(chan struct{}, maxAtOne),
		http: &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * Slowest, Proxy: nil}},
	}
}

// Run asks until ctx is done, and returns nil when all has ended.
func (s *Scraper) Run(ctx context.Context) error {
	tick := time.NewTicker(Fastest)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, w := range s.due(now) {
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
		}
	}
}

// due returns whom to ask now, and forgets those that have left.
func (s *Scraper) due(now time.Time) []*fleet.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.store.Snapshot()
	for id := range s.state {
		if snap.Worker(id) == nil {
			delete(s.state, id)
		}
	}
	var out []*fleet.Worker
	for _, w := range snap.Workers {
		st := s.state[w.ID]
		if st == nil {
			st = &state{every: Fastest, next: now}
			s.state[w.ID] = st
		}
		if st.busy || now.Before(st.next) || w.Status != fleet.Active {
			continue
		}
		if !s.want(w.ID) {
			st.next = now.Add(Slowest)
			continue
		}
		st.busy = true
		out = append(out, w)
	}
	return out
}

// ask reads one worker's page.
func (s *Scraper) ask(ctx context.Context, w *fleet.Worker) {
	e, err := s.read(ctx, "http://"+w.Address()+"/metrics")
	now := time.Now()
	s.mu.Lock()
	if st := s.state[w.ID]; st != nil {
		switch {
		case err != nil:
			st.every = Slowest
		case e.Running != st.last.Running || e.Waiting != st.last.Waiting:
			st.every = max(Fastest, st.every/2)
		default:
			st.every = min(Slowest, st.every*3/2)
		}
		st.last, st.busy, st.next = e, false, now.Add(st.every)
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
	return Parse(resp.Body)
}

// Parse reads the metrics of an engine out of its page. A page without them is an
// error: it is not an engine's.
func Parse(page io.Reader) (Engine, error) {
	var e Engine
	found := false
	lines := bufio.NewScanner(io.LimitReader(page, maxPage))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		name, value, ok := sample(lines.Text())
		if !ok {
			continue
		}
		switch name { // with several models or ranks on a page, requests add up
		case "vllm:num_requests_running", "sglang:num_running_reqs":
			e.Running += value
			found = true
		case "vllm:num_requests_waiting", "sglang:num_queue_reqs":
			e.Waiting += value
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage":
			e.KVUse = max(e.KVUse, value)
		}
	}
	if err := lines.Err(); err != nil {
		return e, fmt.Errorf("metrics page: %w", err)
	}
	if !found {
		return e, errors.New("metrics page: it has neither vllm:num_requests_running nor sglang:num_running_reqs")
	}
	return e, nil
}

// sample takes a line of the text format apart.
func sample(line string) (name string, value float64, ok bool) {
	if !strings.HasPrefix(line, "vllm:") && !strings.HasPrefix(line, "sglang:") {
		return "", 0, false
	}
	end := strings.IndexAny(line, "{ ")
	if end < 0 {
		return "", 0, false
	}
	rest := line[end:]
	if close := strings.LastIndexByte(rest, '}'); close >= 0 {
		rest = rest[close+1:]
	}
	text, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	value, err := strconv.ParseFloat(text, 64)
	return line[:end], value, err == nil && value >= 0 && value < 1e9
}
