// Package zmq follows the KV cache events that engines publish over ZeroMQ and
// feeds them to the index.
//
// A [Subscriber] keeps one subscription for each target of the fleet (a worker,
// or each rank of one that multiplexes ranks, on the port that many above the
// registered one) whose record names a publisher. A subscription whose worker
// changed in what its cache depends on (publisher, block size, engine,
// incarnation) is replaced and its view dropped; of a worker that is gone the
// view is dropped too, while the target itself is forgotten by the picker, which
// keeps the table of targets.
//
// What a publisher sent while nobody listened is asked for where it keeps a
// history (vLLM's replay endpoint): all of it when a subscription begins, what
// is missing when the sequence has a gap. Without one a gap drops the view,
// which then fills again from live events and from the picker's own knowledge.
//
// # Concurrency
//
// Each subscription is one goroutine, owned by Run. None waits for another: a
// publisher that is out of reach, silent or speaks nonsense costs only its own.
package zmq

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"pointsman/fleet"
	"pointsman/kvindex"
)

// Subscriber follows the publishers of a fleet.
type Subscriber struct {
	cfg     Config
	store   *fleet.Store
	index   *kvindex.Index
	log     *slog.Logger
	metrics *kvindex.TransportMetrics
	scratch sync.Pool // of *scratch

	unsettled atomic.Int64 // subscriptions that have not settled
}

// New returns a subscriber; Run starts it.
func New(cfg Config, store *fleet.Store, index *kvindex.Index, log *slog.Logger) (*Subscriber, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Subscriber{
		cfg: cfg.withDefaults(), store: store, index: index, log: log, metrics: kvindex.NewTransportMetrics("zmq"),
		scratch: sync.Pool{New: func() any { return new(scratch) }},
	}, nil
}

// scratch is what handling one message takes. It is shared among subscriptions,
// since of thousands only a few have a message at hand at any time.
type scratch struct {
	msg   message
	batch kvindex.Batch
}

// Behind says of how many publishers the history has not been read yet, "" for none.
func (s *Subscriber) Behind() string {
	if n := s.unsettled.Load(); n > 0 {
		return fmt.Sprintf("the history of %d publishers has not been read", n)
	}
	return ""
}

// source is one target's publisher, and what its view depends on.
type source struct {
	key         string
	worker      string
	addr        string // host:port
	replay      string // host:port; "" for none
	blockSize   int
	engine      fleet.Engine
	incarnation string
}

// running is a subscription that Run has started.
type running struct {
	source
	cancel context.CancelFunc
	done   <-chan struct{}
}

// Run follows the fleet until ctx is done, and returns nil when every
// subscription has ended.
func (s *Subscriber) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	current := make(map[string]running)
	for {
		changed := s.store.Changed()
		s.reconcile(ctx, &wg, current, s.sources(s.store.Snapshot()))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// reconcile ends and starts subscriptions so that current is what is wanted.
func (s *Subscriber) reconcile(ctx context.Context, wg *sync.WaitGroup, current map[string]running, wanted map[string]source) {
	for key, run := range current {
		if wanted[key] == run.source {
			continue
		}
		run.cancel()
		if _, stays := wanted[key]; !stays {
			delete(current, key)
		}
	}
	for key, src := range wanted {
		former, exists := current[key]
		if exists && former.source == src {
			continue
		}
		sctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		current[key] = running{source: src, cancel: cancel, done: done}
		wg.Go(func() {
			defer close(done)
			defer cancel()
			if exists {
				<-former.done // one at a time feeds a target
			}
			u := newSubscription(s, src)
			u.run(sctx)
			if ctx.Err() == nil { // what follows is another publisher, another process or nobody
				u.feed.Reset(kvindex.ResetIncarnation)
			}
		})
	}
}

// sources returns the publishers of a fleet by target key. Draining workers keep
// theirs: they may come back.
func (s *Subscriber) sources(snap *fleet.Snapshot) map[string]source {
	out := make(map[string]source)
	var targets []fleet.Target
	for _, w := range snap.Workers {
		if w.KVEvents == "" || w.Status == fleet.Dead {
			continue
		}
		targets = w.Targets(targets[:0])
		for _, t := range targets {
			rank := max(0, t.Rank)
			addr := offset(w.KVEvents, rank)
			if addr == "" {
				continue
			}
			src := source{
				key: t.Key, worker: w.ID, addr: addr, replay: offset(w.KVReplay, rank),
				blockSize: w.BlockSize, engine: w.Engine, incarnation: w.Incarnation,
			}
			if src.replay == "" && s.cfg.ReplayPortOffset != 0 {
				src.replay = offset(w.KVEvents, rank+s.cfg.ReplayPortOffset)
			}
			out[t.Key] = src
		}
	}
	return out
}

// offset returns the host:port that many ports above endpoint's, "" where there
// is none.
func offset(endpoint string, ports int) string {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return ""
	}
	p, err := strconv.Atoi(port)
	if err != nil || p+ports < 1 || p+ports > 65535 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(p+ports))
}
