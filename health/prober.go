// Package health asks workers from time to time whether they are there.
//
// A [Prober] follows the fleet: each worker is probed once an interval, at a
// moment of its own, so that neither a start nor a change of the fleet makes a
// herd. The picker asks [Prober.Healthy] and leaves out who is down.
//
// A probe is advice. It shows that a listener or a health route answers, not
// that inference or a KV transfer works; and a probe that fails everywhere tells
// more about this side than about the fleet. Whoever asks Healthy therefore
// still dispatches when it leaves nobody, as with breakers that are all open. A
// worker that has not been probed yet is healthy.
//
// # Concurrency
//
// Run owns one goroutine per worker; at most maxProbes probes are on the wire at
// once. Healthy reads one pointer and is safe for any number of callers.
package health

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/fleet"
)

// maxProbes bounds the probes on the wire. Workers that take a connection and
// say nothing hold one of these for the timeout: at the default times 640 of
// them can be probed in time.
const maxProbes = 256

// Deps are what a [Prober] uses.
type Deps struct {
	Store *fleet.Store // required
	Log   *slog.Logger // required

	// Dial opens connections; nil dials TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Ping asks at a worker's NATS subject and returns nil when anybody answers,
	// [ErrNoNews] when it could not ask. Without it probes of type nats are skipped.
	Ping func(ctx context.Context, subject string) error
}

// ErrNoNews ends a probe that tells nothing about the worker.
var ErrNoNews = errors.New("the probe could not be sent")

// Prober probes the workers of a fleet. Create it with [New].
type Prober struct {
	deps    Deps
	cfg     atomic.Pointer[Config]
	down    atomic.Pointer[map[string]struct{}] // replaced, never written
	slots   chan struct{}
	changed chan struct{} // the settings are others
	metrics *metrics

	mu      sync.Mutex
	watched map[string]*watch // by worker ID
	rand    *rand.Rand
}

// watch is what is known of one worker.
type watch struct {
	worker *fleet.Worker
	stop   context.CancelFunc

	// Guarded by Prober.mu.
	down       bool
	fails, oks int // in a row
}

// New returns a prober. It does no I/O.
func New(cfg Config, deps Deps) (*Prober, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Dial == nil {
		deps.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	p := &Prober{
		deps: deps, metrics: newMetrics(), slots: make(chan struct{}, maxProbes), changed: make(chan struct{}, 1),
		watched: map[string]*watch{}, rand: rand.New(rand.NewPCG(cfg.Seed, 0)), //nolint:gosec // jitter, no secret
	}
	p.cfg.Store(&cfg)
	return p, nil
}

// SetConfig makes cfg the settings of later probes; the wait for a worker's next
// one goes on as it began. What is known of the workers is kept unless probing
// ends. An invalid cfg changes nothing.
func (p *Prober) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg.Seed = p.cfg.Load().Seed
	p.cfg.Store(&cfg)
	select {
	case p.changed <- struct{}{}:
	default:
	}
	return nil
}

// Healthy reports whether the worker may get requests as far as probes can tell.
// It is true for workers that are unknown or not probed.
func (p *Prober) Healthy(workerID string) bool {
	down := p.down.Load()
	if down == nil {
		return true
	}
	_, is := (*down)[workerID]
	return !is
}

// Snapshot is what the prober knows, for the read-back of a running program.
type Snapshot struct {
	Probed int      `json:"probed"` // workers
	Down   []string `json:"down"`   // their IDs, sorted
}

// Snapshot returns the present state.
func (p *Prober) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := Snapshot{Probed: len(p.watched), Down: []string{}}
	if down := p.down.Load(); down != nil {
		out.Down = slices.AppendSeq(out.Down, maps.Keys(*down))
	}
	slices.Sort(out.Down)
	return out
}

// Run probes until ctx is done. It returns nil.
func (p *Prober) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for {
		moved := p.deps.Store.Changed()
		p.follow(ctx, &probes)
		select {
		case <-moved:
		case <-p.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow begins to watch who has come and forgets who has left. A worker with
// another address or incarnation is another worker.
func (p *Prober) follow(ctx context.Context, probes *sync.WaitGroup) {
	cfg := p.cfg.Load()
	workers := map[string]*fleet.Worker{}
	if cfg.Enabled && cfg.Type != None {
		for _, w := range p.deps.Store.Snapshot().Workers {
			if w.Status != fleet.Dead {
				workers[w.ID] = w
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, is := range p.watched {
		w := workers[id]
		if w == nil || w.Address() != is.worker.Address() || w.Incarnation != is.worker.Incarnation {
			is.stop()
			delete(p.watched, id)
			continue
		}
		is.worker = w
		delete(workers, id)
	}
	for id, w := range workers {
		probing, stop := context.WithCancel(ctx)
		is := &watch{worker: w, stop: stop}
		p.watched[id] = is
		first := onGrid(time.Now(), time.Duration(p.rand.Int64N(int64(cfg.Interval))), cfg)
		probes.Go(func() {
			defer stop()
			p.watch(probing, is, first)
		})
	}
	p.publish()
}

// watch probes one worker until ctx is done, first after a part of the interval.
func (p *Prober) watch(ctx context.Context, is *watch, first time.Duration) {
	pause := time.NewTimer(first)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		start, cfg := time.Now(), p.cfg.Load()
		p.mu.Lock()
		w := is.worker
		p.mu.Unlock()
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		res := p.probe(ctx, cfg, w)
		<-p.slots
		if ctx.Err() != nil {
			return // cut short by our own end: no news
		}
		p.metrics.probed(res, time.Since(began))
		pause.Reset(onGrid(time.Now(), time.Until(start.Add(p.judge(ctx, cfg, is, res))), cfg))
	}
}

// judge takes a result into account and returns the time from the start of this
// probe to the next. While a failure waits for its confirmation the next probe
// comes early, so that 1+Retries failures fit into 1+Retries times interval and
// timeout whatever the jitter.
func (p *Prober) judge(ctx context.Context, cfg *Config, is *watch, res result) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch res {
	case skipped:
	case ok:
		is.fails = 0
		is.oks++
		if is.down && is.oks >= cfg.Rise {
			p.turn(ctx, is, res)
		}
	default:
		is.oks = 0
		is.fails++
		if !is.down && is.fails > cfg.Retries {
			p.turn(ctx, is, res)
		}
	}
	tenths := 9
	switch {
	case is.fails > 0 && !is.down:
	case cfg.Retries == 0:
		tenths += p.rand.IntN(2)
	default:
		tenths += p.rand.IntN(3)
	}
	return cfg.Interval/10*time.Duration(tenths) + cfg.Interval/20
}

// onGrid shortens a wait from now so that it ends on a tenth of the interval by the
// wall clock. Probes of many workers then begin together, some at each tenth, which
// wakes a process that is idle ten times in an interval and not once for each worker.
func onGrid(now time.Time, wait time.Duration, cfg *Config) time.Duration {
	end := now.Add(wait)
	return max(0, wait-end.Sub(end.Truncate(cfg.Interval/10)))
}

// turn makes a worker down that was up, or up that was down. p.mu is held.
func (p *Prober) turn(ctx context.Context, is *watch, res result) {
	is.down = !is.down
	p.publish()
	p.metrics.transitions.Inc()
	id, how := slog.String("worker_id", is.worker.ID), slog.String("result", string(res))
	if is.down {
		p.deps.Log.LogAttrs(ctx, slog.LevelInfo, "worker failed its probes", id, how)
		return
	}
	p.deps.Log.LogAttrs(ctx, slog.LevelInfo, "worker answers its probes again", id, how)
}

// publish tells Healthy who is down. p.mu is held.
func (p *Prober) publish() {
	var now map[string]struct{}
	for id, is := range p.watched {
		if is.down {
			if now == nil {
				now = map[string]struct{}{}
			}
			now[id] = struct{}{}
		}
	}
	if before := p.down.Load(); before != nil && maps.Equal(*before, now) {
		return
	}
	p.down.Store(&now)
}
