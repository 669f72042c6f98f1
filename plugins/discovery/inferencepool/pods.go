package inferencepool

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"pointsman/internal/kube"
	"pointsman/wire"
)

// followPods follows the Pods of the present shape until ctx is done.
func (f *follower) followPods(ctx context.Context) {
	var wg sync.WaitGroup
	stop := func() {}
	defer func() { stop(); wg.Wait() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.shaped:
		}
		stop()
		wg.Wait() // one at a time writes the fleet
		f.mu.Lock()
		sh := f.shape
		if sh == nil {
			f.table = newTable()
			f.feed.Replace(nil)
		}
		f.mu.Unlock()
		if sh == nil {
			continue
		}
		view, err := kube.Select(f.client, kube.Pods(), sh.selector, "")
		if err != nil {
			f.log.LogAttrs(ctx, slog.LevelError, "the pool's Pods cannot be followed", slog.Any("error", err))
			continue
		}
		pctx, cancel := context.WithCancel(ctx)
		stop = cancel
		wg.Go(func() { view.Follow(pctx, &podHandler{follower: f, shape: sh}) })
	}
}

// podHandler follows the Pods of one shape; it implements [kube.Handler].
type podHandler struct {
	*follower
	shape *shape
}

// Replace implements [kube.Handler].
func (h *podHandler) Replace(ctx context.Context, all []*corev1.Pod) {
	h.metrics.lists.WithLabelValues("pods").Inc()
	h.mu.Lock()
	defer h.mu.Unlock()
	next := newTable()
	for _, p := range all {
		m := h.observe(ctx, p)
		next.put(m)
	}
	h.table = next
	h.forget()
	h.feed.Replace(next.fleet(h.models))
	h.contest(ctx, slices.Concat(slices.Collect(maps.Keys(next.claims)), slices.Collect(maps.Keys(h.contests))))
	h.listed = true
	if h.lostPods = false; h.lostPool {
		h.feed.Lost()
	}
	h.counted()
	wake(h.news)
}

// observe reads a Pod and says what is wrong with its record, once for as long
// as the Pod keeps it; with mu held.
func (h *podHandler) observe(ctx context.Context, p *corev1.Pod) *member {
	m := h.read(p)
	was := h.table.members[m.uid]
	if m.fault != nil && (was == nil || was.fault == nil || was.record != m.record) {
		h.feed.Skip(wire.Reason(m.fault))
		h.log.LogAttrs(ctx, slog.LevelWarn, "a worker's record cannot be used; its Pod counts as one without",
			slog.String("pod", m.name), slog.Any("error", m.fault))
	}
	return m
}

// Put implements [kube.Handler].
func (h *podHandler) Put(ctx context.Context, p *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(ctx, h.table.put(h.observe(ctx, p)))
	wake(h.news)
}

// Remove implements [kube.Handler].
func (h *podHandler) Remove(ctx context.Context, p *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(ctx, h.table.remove(kube.PodKey(p)))
	h.forget()
}

// publish hands the fleet the workers of the given IDs, with mu held.
func (f *follower) publish(ctx context.Context, ids []string) {
	f.contest(ctx, ids)
	for _, id := range ids {
		if w := f.table.worker(id, f.models); w != nil {
			f.feed.Put(w)
		} else {
			f.feed.Delete(id)
		}
	}
	if f.lostPool || f.lostPods {
		f.feed.Lost()
	}
	f.counted()
}

// contest counts and says it when several Pods begin to claim one of the IDs, with mu
// held. Of Pods that share an address neither can be told to lie.
func (f *follower) contest(ctx context.Context, ids []string) {
	for _, id := range ids {
		switch contested := f.table.contested(id); {
		case !contested:
			delete(f.contests, id)
		case !f.contests[id]:
			f.contests[id] = true
			f.feed.Conflict()
			f.log.LogAttrs(ctx, slog.LevelWarn, "several Pods claim to be one worker; the oldest of them is believed",
				slog.String("worker_id", id), slog.Int("pods", len(f.table.claims[id])))
		}
	}
}

// forget drops the models of endpoints that are gone, with mu held.
func (f *follower) forget() {
	for id := range f.models {
		if len(f.table.claims[id]) == 0 {
			delete(f.models, id)
		}
	}
}

func (f *follower) counted() {
	counts := map[state]int{}
	for _, m := range f.table.members {
		counts[m.state]++
	}
	f.metrics.observe(counts)
}

// Fresh implements [kube.Handler].
func (h *podHandler) Fresh(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fresh(at)
}

// Watching implements [kube.Handler].
func (h *podHandler) Watching() { h.metrics.watches.WithLabelValues("pods").Inc() }

// InStep implements [kube.Handler].
func (h *podHandler) InStep(ctx context.Context, version string, news bool) {
	level := slog.LevelInfo
	if !news {
		level = slog.LevelDebug
	}
	h.mu.Lock()
	pods, workers := len(h.table.members), len(h.table.claims)
	h.mu.Unlock()
	h.log.LogAttrs(ctx, level, "the fleet is in step with the API server", slog.String("namespace", h.client.Namespace),
		slog.String("selector", h.shape.selector), slog.Int("pods", pods), slog.Int("workers", workers), slog.String("version", version))
}

// Ended implements [kube.Handler].
func (h *podHandler) Ended(ctx context.Context, err error, routine, news bool) {
	h.metrics.failed("pods", err)
	if routine {
		return
	}
	h.mu.Lock()
	h.lostPods = true
	h.feed.Lost()
	h.mu.Unlock()
	if news {
		h.log.LogAttrs(ctx, slog.LevelWarn, "the fleet is out of step with the API server; the last known one stays",
			slog.String("server", h.client.Host), slog.Any("error", err))
	}
}
