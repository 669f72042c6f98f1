// Package nats follows the KV cache events that Infera's relays publish over
// NATS JetStream and feeds them to the index.
//
// One subscription serves the whole fleet: an ephemeral consumer of the stream
// INFERA_KV_EVENTS that delivers everything the stream has, oldest first, and
// goes on live. Worker and rank come from the subject. An event's way:
// [Subscriber.Run] (a session with the broker) -> wire.DecodeBatch -> kvindex.Feed.
//
// # What is missing is noticed
//
// The stream numbers its messages over all subjects. A number that is skipped in
// delivery is fetched again. One that the stream no longer has (it dropped its
// oldest messages, was purged, or is another stream of that name) may have been
// anybody's, so all views start over. What was dropped before the router joined
// makes views partial from the start, and what is missing in the middle of the
// past those that begin after it. Events that a relay never got to the broker
// leave no trace: the payload carries no number.
//
// The bucket infera_kv_view says what may be missing from a partial view. Its
// values are sets of hashes without order and without the engine's names for
// them, so they become predictions, which expire and are corrected by events;
// they never replace a view.
//
// # Workers and processes
//
// Relays start before their worker registers. Events of a worker that discovery
// does not know are held, bounded in bytes, number and time, and applied when it
// appears. A worker that appears, or whose incarnation changes, is a new process
// with an empty cache: what was published more than [Config.Lead] before does
// not count, by the broker's timestamps. So that the stream does not bring a
// dead process back when the router starts, which process was seen since when is
// noted in the bucket [MarksBucket]. Of a worker that is there when the router
// starts:
//
//   - noted with the same incarnation: events since the noted time count;
//   - noted with another one: it became a new process while no router looked,
//     nobody knows when, and only events from the start of the router on count;
//   - not noted, or without an incarnation: all that the stream has counts.
//
// # Concurrency
//
// Run owns all goroutines: one follows discovery, one takes messages, and three
// do what may wait for the broker (notes, seeding, deletions in the bucket).
// They meet in one lock, which is never held during I/O.
package nats

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/fleet"
	"pointsman/kvindex"
)

// Subscriber follows the events of a fleet.
type Subscriber struct {
	cfg     Config
	store   *fleet.Store
	index   *kvindex.Index
	log     *slog.Logger
	metrics *metrics

	ready    chan struct{} // closed once discovery has listed the fleet
	seedWake chan struct{} // of one: seeds has something
	markWake chan struct{} // of one: a note is to be written

	mu       sync.Mutex
	peers    map[string]*peer
	unknown  int             // peers that discovery does not know
	held     int             // bytes held of all peers
	heldMsgs int             // messages held of all peers
	skew     time.Duration   // the broker's clock less ours
	pos      position        // where we are in the stream
	up       bool            // in touch with the broker, and past what the stream had
	seeds    map[slot]bool   // ranks to be seeded
	marks    map[string]mark // the notes, by worker ID
	batch    kvindex.Batch
	said     bool // a batch that is none has been logged since the connection

	answered atomic.Bool
}

// Answered reports whether a broker has ever let this subscriber in.
func (s *Subscriber) Answered() bool { return s.answered.Load() }

// Behind says what of the events so far has not been applied yet, "" when nothing
// is known to be missing.
func (s *Subscriber) Behind() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return "the stream's history has not been read to its end"
	}
	return ""
}

// slot is one rank of a worker.
type slot struct {
	id   string
	rank int
}

// New returns a subscriber; Run starts it.
func New(cfg Config, store *fleet.Store, index *kvindex.Index, log *slog.Logger) (*Subscriber, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Subscriber{
		cfg: cfg.withDefaults(), store: store, index: index, log: log, metrics: newMetrics(),
		ready: make(chan struct{}), seedWake: make(chan struct{}, 1), markWake: make(chan struct{}, 1),
		peers: map[string]*peer{}, seeds: map[slot]bool{}, marks: map[string]mark{},
	}, nil
}

// Run follows the fleet until ctx is done, and returns nil when all has ended. A
// broker that is out of reach, at the start or later, is tried again for ever.
// Run must be called at most once.
func (s *Subscriber) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.followFleet(ctx) })
	// History is of use only to who knows the workers; the stream keeps it.
	select {
	case <-ctx.Done():
		return nil
	case <-s.ready:
	}
	s.followStream(ctx)
	return nil
}

// followFleet keeps peers in step with discovery.
func (s *Subscriber) followFleet(ctx context.Context) {
	tick := time.NewTicker(max(s.cfg.HoldFor/4, 10*time.Millisecond))
	defer tick.Stop()
	synced := false
	for {
		changed := s.store.Changed()
		if s.store.Synced() {
			s.reconcile(s.store.Snapshot(), !synced)
			if !synced {
				synced = true
				close(s.ready)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
			s.sweep()
		}
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
