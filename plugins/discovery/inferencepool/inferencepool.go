package inferencepool

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/objectives"
)

// Source follows one pool.
type Source struct {
	cfg     Config
	client  *kube.Client
	log     *slog.Logger
	metrics *metrics
	book    *objectives.Book
	waiting atomic.Pointer[string] // what is waited for; nil for nothing
}

// New returns a source. It reads the kubeconfig or the service account's files
// and does not connect.
func New(cfg Config, log *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	client, err := kube.NewClient(cfg.Config)
	if err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, client: client, log: log, metrics: newMetrics(), book: new(objectives.Book)}
	if cfg.Selector == "" {
		s.wait("the InferencePool " + s.poolName() + " has not been seen yet")
	}
	return s, nil
}

// Objectives returns the book of the pool's objectives and rewrites, which Watch
// keeps up to date.
func (s *Source) Objectives() *objectives.Book { return s.book }

// Waiting says what the source waits for before it can tell a fleet, nil when it
// does not. It may be called from any goroutine.
func (s *Source) Waiting() error {
	if text := s.waiting.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

// wait notes what is waited for; it reports whether that is news.
func (s *Source) wait(text string) bool {
	s.metrics.found.Set(0)
	was := s.waiting.Swap(&text)
	return was == nil || *was != text
}

func (s *Source) poolName() string { return s.client.Namespace + "/" + s.cfg.Pool }

// Watch implements [fleet.Source]. It returns nil when ctx is done and no other
// error ends it, but for one of this build's own.
func (s *Source) Watch(ctx context.Context, feed *fleet.Feed) error {
	defer s.client.Close()
	f := newFollower(s, feed)
	views, err := f.views()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, follow := range views {
		wg.Go(func() { follow(ctx) })
	}
	wg.Go(func() { f.followPods(ctx) })
	wg.Go(func() { f.askModels(ctx) })
	wg.Wait()
	return nil
}

// follower is the state of one Watch.
type follower struct {
	*Source
	shaped    chan struct{} // has an element when shape may have changed
	otherPort int           // that the pool names for its picker; 0 while it is ours. Of the pool's goroutine
	news      chan struct{} // has an element when an endpoint may have to be asked for its model

	mu       sync.Mutex // guards what follows, and feed
	feed     *fleet.Feed
	shape    *shape // nil while there is no pool
	table    *table
	models   map[string]*answer // by worker ID, of those without a record
	contests map[string]bool    // worker IDs that several Pods claim, to say it once
	lostPool bool
	lostPods bool
	listed   bool // the Pods have been, of some shape
	intents  intents
}

func newFollower(s *Source, feed *fleet.Feed) *follower {
	f := &follower{
		Source: s, feed: feed, table: newTable(), models: map[string]*answer{}, contests: map[string]bool{},
		shaped: make(chan struct{}, 1), news: make(chan struct{}, 1),
	}
	if s.cfg.Selector != "" {
		f.shape = &shape{selector: s.cfg.Selector, ports: s.cfg.Ports}
		wake(f.shaped)
	}
	return f
}

// wake leaves an element in c, of which one is enough.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// views makes what is followed beside the Pods.
func (f *follower) views() ([]func(context.Context), error) {
	if f.cfg.Selector != "" {
		return nil, nil
	}
	pool, err := kube.Select(f.client, kube.Custom(poolGroup, "v1", "inferencepools", "InferencePool"), "", "metadata.name="+f.cfg.Pool)
	if err != nil {
		return nil, err
	}
	out := []func(context.Context){func(ctx context.Context) { pool.Follow(ctx, poolHandler{f}) }}
	for _, group := range intentGroups() {
		for _, kind := range intentKinds() {
			view, err := kube.Select(f.client, kube.Custom(group, "v1alpha2", kind.plural, kind.kind), "", "")
			if err != nil {
				return nil, err
			}
			view.Patience(f.cfg.Backoff, max(f.cfg.MaxBackoff, time.Minute))
			h := &intentHandler{follower: f, resource: kind.plural + "." + group, group: group, plural: kind.plural}
			out = append(out, func(ctx context.Context) { view.Follow(ctx, h) })
		}
	}
	return out, nil
}

// fresh notes that the fleet was in step at a moment, with mu held.
func (f *follower) fresh(at time.Time) {
	if !f.lostPool && !f.lostPods {
		f.feed.Fresh(at)
	}
}
