package remote

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/fleet"
	"pointsman/prompt"

	"github.com/zeebo/xxh3"
)

// Tokenizer asks workers for token ids. It implements [prompt.Tokenizer].
type Tokenizer struct {
	cfg      Config
	store    *fleet.Store
	log      *slog.Logger
	client   *http.Client
	cache    *cache
	circuits *circuits
	metrics  metrics
	slots    chan struct{} // one element per open exchange
	seed     uint64        // of cache keys
	next     atomic.Uint64 // spreads the questions over the workers
	version  atomic.Uint64 // of the fleet that circuits were last cleaned for
	scratch  sync.Pool     // of *[]byte: questions
}

var _ prompt.Tokenizer = (*Tokenizer)(nil)

// New returns a tokenizer that asks the workers of store. cfg must be valid.
func New(cfg Config, store *fleet.Store, log *slog.Logger) *Tokenizer {
	t := &Tokenizer{
		cfg:      cfg,
		store:    store,
		log:      log,
		client:   newClient(cfg),
		cache:    newCache(cfg.CacheBytes, cfg.CacheTTL),
		circuits: newCircuits(cfg.Failures, cfg.Cooldown),
		slots:    make(chan struct{}, cfg.Concurrency),
		seed:     rand.Uint64(), //nolint:gosec // it need only differ from process to process
		scratch:  sync.Pool{New: func() any { return new([]byte) }},
	}
	t.metrics = newMetrics(t.cache.bytes)
	return t
}

// Close lets go of idle connections. Tokenize must not be called after.
func (t *Tokenizer) Close() { t.client.CloseIdleConnections() }

// Tokenize appends the token ids that the engine makes of r's first prompt to dst.
// It takes at most [Config.Timeout]. Its error is one of this package's, one that
// wraps [prompt.ErrAnswer], or that of the exchange; dst is then as it was.
func (t *Tokenizer) Tokenize(ctx context.Context, r *prompt.Request, dst []uint32) ([]uint32, error) {
	ids, err := t.tokenize(ctx, r, dst)
	t.metrics.results.WithLabelValues(reason(err)).Inc()
	if err != nil {
		return dst, err
	}
	r.Source = prompt.SourceWorker
	return ids, nil
}

func (t *Tokenizer) tokenize(ctx context.Context, r *prompt.Request, dst []uint32) ([]uint32, error) {
	switch {
	case unsupported(r):
		return dst, ErrUnsupported
	case size(r) > t.cfg.MaxPromptBytes:
		return dst, ErrTooLong
	}
	workers := t.workers(r.Model)
	if len(workers) == 0 {
		return dst, ErrNoWorker
	}
	buf := t.scratch.Get().(*[]byte)
	defer t.scratch.Put(buf)
	*buf = appendQuestion((*buf)[:0], r)
	// Workers of one model with another canary have another tokenizer.
	key := xxh3.Hash128Seed(*buf, t.seed^canary(workers[0]))
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	about := subject{r.Model, r.Kind}
	ids, asked, lead := t.cache.get(key, time.Now(), dst)
	switch {
	case asked == nil:
		t.metrics.hits.Inc()
		return ids, nil
	case lead:
		ids, err := t.exchange(ctx, about, workers, *buf, dst)
		t.cache.end(key, asked, time.Now(), ids[len(dst):], err == nil)
		return ids, err
	}
	select {
	case <-asked.done:
	case <-ctx.Done():
		return dst, ctx.Err()
	}
	if asked.ok {
		t.metrics.hits.Inc()
		return append(dst, asked.ids...), nil
	}
	// The other may have failed for a reason of its own: its client left.
	return t.exchange(ctx, about, workers, *buf, dst)
}

// exchange asks a worker, if the circuit and the number of open exchanges allow.
func (t *Tokenizer) exchange(ctx context.Context, about subject, workers []*fleet.Worker, question []byte, dst []uint32) ([]uint32, error) {
	if !t.circuits.allow(about, time.Now()) {
		return dst, ErrSkipped
	}
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return dst, ctx.Err()
		}
		return dst, ErrBusy
	}
	// net/http may still be sending the body when it has returned.
	ids, err := t.askAny(ctx, workers, slices.Clone(question), dst)
	t.settle(ctx, about, err)
	return ids, err
}

// askAny asks one worker, and another one if the first cannot be reached.
func (t *Tokenizer) askAny(ctx context.Context, workers []*fleet.Worker, question []byte, dst []uint32) (ids []uint32, err error) {
	first := t.next.Add(1)
	for attempt := range min(2, uint64(len(workers))) {
		start := time.Now()
		ids, err = t.ask(ctx, workers[(first+attempt)%uint64(len(workers))], question, dst)
		t.metrics.seconds.Observe(time.Since(start).Seconds())
		if err == nil || ctx.Err() != nil || reason(err) != "connection" {
			break
		}
	}
	return ids, err
}

// settle tells the circuit how a question went.
func (t *Tokenizer) settle(ctx context.Context, about subject, err error) {
	var status *StatusError
	opened := false
	switch now := time.Now(); {
	case err == nil:
		if t.circuits.success(about) {
			t.log.LogAttrs(ctx, slog.LevelInfo, "workers tokenize again",
				slog.String("model", about.model), slog.String("kind", about.kind.String()))
		}
	case errors.Is(err, context.Canceled): // the client left
	case errors.As(err, &status) && status.refusal():
		opened = t.circuits.refused(about, now)
	default:
		opened = t.circuits.failure(about, now)
	}
	if opened {
		t.log.LogAttrs(ctx, slog.LevelWarn, "workers fail to tokenize; prompts are approximated until they do",
			slog.String("model", about.model), slog.String("kind", about.kind.String()),
			slog.Duration("cooldown", t.cfg.Cooldown), slog.Any("error", err))
	}
}

// workers returns the active workers of a model, alias or adapter.
func (t *Tokenizer) workers(model string) (out []*fleet.Worker) {
	snap := t.store.Snapshot()
	for _, w := range snap.Workers {
		if w.Serves(model) && w.Status == fleet.Active && w.URL != "" {
			out = append(out, w)
		}
	}
	if last := t.version.Swap(snap.Version); last != snap.Version {
		names := snap.Models()
		t.circuits.keep(func(model string) bool {
			_, found := slices.BinarySearch(names, model)
			return found
		})
	}
	return out
}

// canary is a number for the worker's tokenizer, 0 when it does not say.
func canary(w *fleet.Worker) (h uint64) {
	for _, id := range w.Canary {
		h = h*0x9E3779B97F4A7C15 + uint64(id) + 1
	}
	return h
}
