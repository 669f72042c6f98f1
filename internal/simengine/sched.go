package simengine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/wire"
)

// errTooLong refuses a sequence that could never be admitted.
var errTooLong = errors.New("the request needs more KV blocks than the engine has: shorten the prompt or lower max_tokens")

// quantum is the shortest sleep worth a timer: steps that are due sooner are run
// at once, so that a fast time scale costs wake-ups per millisecond, not per step.
const quantum = time.Millisecond

// sequence is one prompt and the output it will get.
type sequence struct {
	tokens   []uint32  // prompt and output
	hashes   []uint64  // engine hash of each full block of tokens
	prompt   int       // tokens of the prompt
	out      int       // tokens to generate; 0 only computes the prompt
	keys     wire.Keys // published with its blocks
	received bool      // the prompt's KV cache comes from another engine
	notify   chan struct{}

	produced atomic.Int64 // output tokens ready to be sent
	finished atomic.Bool

	// The rest is guarded by the scheduler until finished.
	lease    lease
	cached   int           // prompt tokens found in the cache
	computed int           // tokens whose KV is in the cache
	chunk    int           // tokens of the step in progress
	prefill  time.Duration // of the steps that had a part of the prompt
	started  time.Time
	first    time.Time
}

// scheduler runs sequences in steps: each running decoder gets one token and
// what is left of the step's token budget goes to prompts, in order of arrival.
type scheduler struct {
	cfg  TimeConfig
	emit func(changes) // called in order, with mu held; must not block
	wake chan struct{}

	mu      sync.Mutex
	cache   *cache
	waiting []*sequence
	running []*sequence

	promptTokens, outputTokens, doneSeqs, abortedSeqs uint64
	prefills, gaps                                    timing
}

// timing is durations of simulated time and how many there were.
type timing struct {
	sum time.Duration
	n   uint64
}

func (t *timing) add(d time.Duration, n int) {
	t.sum += d * time.Duration(n)
	t.n += uint64(n) //nolint:gosec // not negative
}

func newScheduler(cfg TimeConfig, c *cache, emit func(changes)) *scheduler {
	return &scheduler{cfg: cfg, cache: c, emit: emit, wake: make(chan struct{}, 1)}
}

// blocksOf returns the blocks a sequence occupies when it is complete.
func (s *scheduler) blocksOf(q *sequence) int {
	return (q.prompt + q.out + s.cache.size - 1) / s.cache.size
}

// submit queues q.
func (s *scheduler) submit(q *sequence) error {
	if s.blocksOf(q) > s.cache.capacity {
		return errTooLong
	}
	s.mu.Lock()
	s.waiting = append(s.waiting, q)
	s.mu.Unlock()
	signal(s.wake)
	return nil
}

// cancel takes q out and frees what it holds. It does nothing when q is finished; a sequence that was never submitted is only
// marked.
func (s *scheduler) cancel(q *sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.finished.Load() {
		return
	}
	if i := slices.Index(s.waiting, q); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.abortedSeqs++
	}
	if i := slices.Index(s.running, q); i >= 0 {
		s.running = slices.Delete(s.running, i, i+1)
		s.cache.release(&q.lease)
		s.abortedSeqs++
	}
	q.finished.Store(true)
	signal(q.notify)
	signal(s.wake)
}

// clearCache empties the cache and says so.
func (s *scheduler) clearCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.clear()
	s.flush()
}

// load is what /metrics reports.
type load struct {
	running, waiting, used, capacity, cached int
	queries, hits                            uint64
	promptTokens, outputTokens, done, lost   uint64
	prefills, gaps                           timing
}

func (s *scheduler) load() load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return load{
		running: len(s.running), waiting: len(s.waiting), used: s.cache.used(), capacity: s.cache.capacity, cached: len(s.cache.blocks),
		queries: s.cache.queries, hits: s.cache.hits,
		promptTokens: s.promptTokens, outputTokens: s.outputTokens, done: s.doneSeqs, lost: s.abortedSeqs,
		prefills: s.prefills, gaps: s.gaps,
	}
}

// run steps until ctx is done. It sleeps while nothing is queued or running.
func (s *scheduler) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	due := time.Now()
	for ctx.Err() == nil {
		cost, busy := s.plan()
		if !busy {
			select {
			case <-ctx.Done():
			case <-s.wake:
				due = time.Now()
			}
			continue
		}
		due = due.Add(time.Duration(float64(cost) / s.cfg.Scale))
		if wait := time.Until(due); wait >= quantum {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
		s.finish()
	}
}

// plan admits what fits and gives every running sequence its share of the next
// step. It returns the step's simulated cost and whether there is a step at all.
func (s *scheduler) plan() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit()
	if len(s.running) == 0 {
		s.flush()
		return 0, false
	}
	budget := s.cfg.ChunkTokens
	decoders, context, prefill := 0, 0, 0.0
	for _, q := range s.running {
		q.chunk = 0
		if q.computed >= q.prompt {
			q.chunk = 1
			budget--
			decoders++
			context += q.computed
		}
	}
	for _, q := range s.running {
		if q.computed < q.prompt && budget > 0 {
			q.chunk = min(budget, q.prompt-q.computed)
			budget -= q.chunk
			prefill += s.weight(q.computed, q.chunk)
		}
	}
	cost := s.cfg.DecodeStep + time.Duration(decoders)*s.cfg.PerDecoder + time.Duration(context)*s.cfg.ContextCost +
		time.Duration(prefill/s.cfg.PrefillRate*float64(time.Second))
	s.gaps.add(cost, decoders)
	for _, q := range s.running {
		if q.computed < q.prompt && q.chunk > 0 {
			q.prefill += cost
		}
	}
	return cost, true
}

// weight is the cost of n prompt tokens from position at on, in tokens at
// position 0: attention makes later ones dearer.
func (s *scheduler) weight(at, n int) float64 {
	if s.cfg.Doubling == 0 {
		return float64(n)
	}
	mean := float64(at) + float64(n)/2
	return float64(n) * (1 + mean/float64(s.cfg.Doubling))
}

// admit moves sequences from the queue into the batch, in order, while there is
// a slot and memory: the head of the queue is never overtaken.
func (s *scheduler) admit() {
	for len(s.waiting) > 0 && len(s.running) < s.cfg.MaxSeqs {
		q := s.waiting[0]
		l, ok := s.cache.acquire(q.hashes, q.prompt, s.blocksOf(q))
		if !ok {
			return
		}
		q.lease = l
		q.cached = len(l.held) * s.cache.size
		if q.received && q.prompt > q.cached {
			// All but the token that the first output is computed from.
			q.cached = q.prompt - 1
			s.cache.commit(&q.lease, q.hashes, q.tokens, q.cached, q.keys)
		}
		q.computed = q.cached
		q.started = time.Now()
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.running = append(s.running, q)
	}
}

// finish applies the step that plan prepared.
func (s *scheduler) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := s.running[:0]
	for _, q := range s.running {
		if s.advance(q) {
			s.retire(q)
			continue
		}
		keep = append(keep, q)
	}
	clear(s.running[len(keep):])
	s.running = keep
	s.flush()
}

// advance gives q the tokens of its chunk and reports whether it is complete.
func (s *scheduler) advance(q *sequence) bool {
	if q.chunk == 0 {
		return false
	}
	if q.computed < q.prompt {
		s.promptTokens += uint64(q.chunk) //nolint:gosec // not negative
	}
	q.computed += q.chunk
	q.chunk = 0
	s.cache.commit(&q.lease, q.hashes, q.tokens, q.computed, q.keys)
	if q.computed < q.prompt {
		return false
	}
	if q.prefill > 0 {
		s.prefills.add(q.prefill, 1)
		q.prefill = 0
	}
	if q.out > 0 {
		if q.first.IsZero() {
			q.first = time.Now()
		}
		q.produced.Add(1)
		s.outputTokens++
		signal(q.notify)
	}
	return q.produced.Load() >= int64(q.out)
}

// retire frees a complete sequence's memory and slot.
func (s *scheduler) retire(q *sequence) {
	s.cache.release(&q.lease)
	s.doneSeqs++
	q.finished.Store(true)
	signal(q.notify)
}

// flush hands the cache's changes to the publisher.
func (s *scheduler) flush() {
	if ch := s.cache.take(); len(ch.events) > 0 {
		s.emit(ch)
	}
}

// signal sets a one-slot flag.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
