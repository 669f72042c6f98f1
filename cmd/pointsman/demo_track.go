package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// tracker follows a run while it goes on, for the table and for the kill.
type tracker struct {
	mu       sync.Mutex
	total    int
	sent     int
	ended    map[traffic.Outcome]int
	prompt   int
	cached   int
	ttft     []time.Duration
	ceiling  *traffic.Ceiling
	workers  []*workerLine // in the fleet's order
	byID     map[string]*workerLine
	progress chan struct{} // closed and replaced at every first text

	elsewhere bool // the engine that answers is not the one that computed the prompt
}

// workerLine is one worker's row of the table.
type workerLine struct {
	id             string
	flowing        int // streams of which the client has text and no end
	served         int
	prompt, cached int
	lost           bool
}

func newTracker(total int, workers []*stack.Worker) *tracker {
	t := &tracker{
		total: total, ended: make(map[traffic.Outcome]int), ceiling: traffic.NewCeiling(demoBlock),
		byID: make(map[string]*workerLine), progress: make(chan struct{}),
	}
	for _, w := range workers {
		line := &workerLine{id: w.ID}
		t.workers, t.byID[w.ID] = append(t.workers, line), line
	}
	return t
}

// observer returns the functions through which a driver feeds t.
func (t *tracker) observer() traffic.Observer {
	return traffic.Observer{Sent: t.onSent, First: t.onFirst, Ended: t.onEnded}
}

func (t *tracker) onSent(r *traffic.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent++
	t.ceiling.Add(r.Tokens)
}

func (t *tracker) onFirst(r *traffic.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ttft = append(t.ttft, r.TTFT())
	if line := t.byID[r.Worker]; line != nil {
		line.flowing++
	}
	close(t.progress)
	t.progress = make(chan struct{})
}

func (t *tracker) onEnded(r *traffic.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[r.Outcome()]++
	t.prompt += r.PromptTokens
	t.cached += r.CachedTokens
	line := t.byID[r.Worker]
	if line == nil {
		return
	}
	line.served++
	line.prompt += r.PromptTokens
	line.cached += r.CachedTokens
	if r.Texts > 0 {
		line.flowing--
	}
}

// lost marks a worker as killed.
func (t *tracker) lost(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[id].lost = true
}

// waitForVictim returns the worker with the most streams flowing, at the first
// moment after the given number of requests at which one has at least two; ""
// when ctx ends before.
func (t *tracker) waitForVictim(ctx context.Context, after int) string {
	for {
		t.mu.Lock()
		busiest := slices.MaxFunc(t.workers, func(a, b *workerLine) int { return a.flowing - b.flowing })
		id, flowing, sent, progress := busiest.id, busiest.flowing, t.sent, t.progress
		t.mu.Unlock()
		if sent >= after && flowing >= 2 {
			return id
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return ""
		}
	}
}

// standing is a copy of what the table shows.
type standing struct {
	total, sent, ok, interrupted, failed int
	hit, ceiling                         float64 // hit is -1 while it is not known
	ttftP50                              time.Duration
	workers                              []workerLine
}

func (t *tracker) standing() standing {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := standing{
		total: t.total, sent: t.sent, ceiling: t.ceiling.Ratio(),
		ok: t.ended[traffic.OK], interrupted: t.ended[traffic.Interrupted], failed: t.ended[traffic.Failed],
	}
	if t.elsewhere {
		s.hit = -1
	} else if t.prompt > 0 {
		s.hit = float64(t.cached) / float64(t.prompt)
	}
	if n := len(t.ttft); n > 0 {
		sorted := slices.Sorted(slices.Values(t.ttft))
		s.ttftP50 = sorted[n/2]
	}
	for _, line := range t.workers {
		s.workers = append(s.workers, *line)
	}
	return s
}
