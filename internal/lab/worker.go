package lab

import (
	"slices"
	"time"
)

// sequence is one request on one engine.
type sequence struct {
	call     *call
	total    int // blocks it occupies when complete
	held     int // leading blocks of the prompt that are cached and held
	spare    int // blocks taken that are no cached ones
	cached   int // prompt tokens found
	computed int // prompt tokens done
	chunk    int // of the step in progress
	endsAt   int // count of the worker's decode steps at which it is complete
}

// worker is one simulated engine.
type worker struct {
	n      int
	engine Engine
	size   int // tokens per block
	cache  *cache

	queue    []*sequence
	prefills []*sequence // running, without a first token, in order
	decoders []*sequence // running, past it; a heap by endsAt
	context  int         // tokens of the decoders' contexts
	decoded  int         // steps in which the decoders got a token
	busy     bool        // a step is in progress
	down     bool        // accepts nothing
	lives    int         // how often it has died

	stored []int32 // nodes of the step in progress
	done   []*sequence
	first  []*sequence

	prefilled int64 // prompt tokens computed
	hits      int64 // prompt tokens found
	service   time.Duration
}

// submit queues a sequence.
func (w *worker) submit(q *sequence) { w.queue = append(w.queue, q) }

// begin plans the next step and returns how long it takes; ok is false when there is
// nothing to do. What the decoders leave of the step's tokens goes to the prompts that
// have begun, in order, and then to those that wait: as in vLLM, a sequence waits until
// there is a slot, memory and at least one token for it.
func (w *worker) begin() (took time.Duration, ok bool) {
	budget := w.engine.ChunkTokens - len(w.decoders)
	weight := 0.0
	give := func(q *sequence) {
		q.chunk = min(budget, q.call.req.Prompt-q.computed)
		budget -= q.chunk
		weight += w.engine.weigh(q.computed, q.chunk)
	}
	for _, q := range w.prefills {
		give(q)
	}
	for budget > 0 {
		q := w.admit()
		if q == nil {
			break
		}
		give(q)
	}
	if len(w.prefills)+len(w.decoders) == 0 {
		w.busy = false
		return 0, false
	}
	w.busy = true
	took = w.engine.took(weight, len(w.decoders), w.context)
	w.service += took
	return took, true
}

// admit takes the first sequence from the queue, if there is a slot and memory for it;
// else nil.
func (w *worker) admit() *sequence {
	if len(w.queue) == 0 || len(w.prefills)+len(w.decoders) >= w.engine.MaxSeqs {
		return nil
	}
	q := w.queue[0]
	r := q.call.req
	hit := w.cache.lookup(r.blocks, (r.Prompt-1)/w.size)
	if !w.cache.acquire(r.blocks, hit, q.total) {
		return nil
	}
	q.held, q.spare = hit, q.total-hit
	q.cached = hit * w.size
	q.computed = q.cached
	w.hits += int64(q.cached)
	w.queue[0] = nil
	if w.queue = w.queue[1:]; len(w.queue) == 0 {
		w.queue = nil
	}
	w.prefills = append(w.prefills, q)
	return q
}

// finish applies the step that begin planned: it sets w.stored, w.first and w.done.
func (w *worker) finish() {
	w.stored, w.first, w.done = w.stored[:0], w.first[:0], w.done[:0]
	if n := len(w.decoders); n > 0 {
		w.decoded++
		w.context += n
		for len(w.decoders) > 0 && w.decoders[0].endsAt <= w.decoded {
			w.complete(w.pop())
		}
	}
	keep := w.prefills[:0]
	for _, q := range w.prefills {
		if !w.advance(q) {
			keep = append(keep, q)
		}
	}
	clear(w.prefills[len(keep):])
	w.prefills = keep
}

// advance gives q its chunk and reports whether its prompt is done.
func (w *worker) advance(q *sequence) bool {
	r := q.call.req
	w.prefilled += int64(q.chunk)
	q.computed += q.chunk
	for q.held < len(r.blocks) && (q.held+1)*w.size <= q.computed {
		n := r.blocks[q.held]
		if w.cache.commit(n) {
			q.spare--
			w.stored = append(w.stored, n)
		}
		q.held++
	}
	if q.computed < r.Prompt {
		return false
	}
	w.first = append(w.first, q)
	if r.Output <= 1 {
		w.complete(q)
		return true
	}
	q.endsAt = w.decoded + r.Output - 1
	w.context += r.Prompt
	w.push(q)
	return true
}

// complete frees what q has.
func (w *worker) complete(q *sequence) {
	r := q.call.req
	w.cache.release(r.blocks[:q.held], q.spare)
	w.done = append(w.done, q)
}

// push adds q to the heap of decoders.
func (w *worker) push(q *sequence) {
	w.decoders = append(w.decoders, q)
	h := w.decoders
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].endsAt <= h[i].endsAt {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

// pop takes the first of the decoders to end.
func (w *worker) pop() *sequence {
	h := w.decoders
	q := h[0]
	last := len(h) - 1
	h[0], h[last] = h[last], nil
	h = h[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h[down+1].endsAt < h[down].endsAt {
			down++
		}
		if h[i].endsAt <= h[down].endsAt {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	w.decoders = h
	w.context -= q.call.req.Prompt + q.call.req.Output - 1
	return q
}

// fail ends everything that w was doing and empties its cache: its process died.
func (w *worker) fail() []*sequence {
	lost := slices.Concat(w.queue, w.prefills, w.decoders)
	w.queue, w.prefills, w.decoders, w.context = nil, nil, nil, 0
	w.cache = newCache(w.cache.capacity)
	w.down = true
	return lost
}
