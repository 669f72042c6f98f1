package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Snapshot is the fleet at one instant.
type Snapshot struct {
	Workers []*Worker // ordered by ID, all statuses
	Targets []Target  // of active workers, in the order of Workers, then by rank
	Version uint64    // grows with each published change

	names map[string]Name // of aliases and adapters; nil for none
	left  []string        // IDs of workers that are gone, the latest first
}

// keptLeft is how many of the workers that left are remembered.
const keptLeft = 64

// Left reports whether the worker was in the fleet and is gone: it is among the
// latest 64 that left. A gateway may name it for as long as it has not heard.
func (s *Snapshot) Left(id string) bool { return slices.Contains(s.left, id) }

// gone returns the IDs that have left, once workers are the fleet.
func (s *Snapshot) gone(workers []*Worker) []string {
	next := &Snapshot{Workers: workers}
	var left []string
	for _, w := range s.Workers {
		if next.Worker(w.ID) == nil {
			left = append(left, w.ID)
		}
	}
	for _, id := range s.left {
		if next.Worker(id) == nil && len(left) < keptLeft {
			left = append(left, id)
		}
	}
	return left
}

// Worker returns the worker with the given ID, or nil.
func (s *Snapshot) Worker(id string) *Worker {
	if i, ok := s.find(id); ok {
		return s.Workers[i]
	}
	return nil
}

func (s *Snapshot) find(id string) (int, bool) {
	return slices.BinarySearchFunc(s.Workers, id, func(w *Worker, id string) int {
		return cmp.Compare(w.ID, id)
	})
}

// Source is a discovery backend.
//
// Watch writes the current fleet and every later change to feed, and returns
// when ctx is done or the backend cannot go on. It reconnects on its own; a
// returned error is final. feed must not be used after Watch returns, nor by
// two goroutines at once.
type Source interface {
	Watch(ctx context.Context, feed *Feed) error
}

// Store publishes snapshots. The zero value is ready to use.
type Store struct {
	cur     atomic.Pointer[Snapshot]
	changed atomic.Pointer[chan struct{}]
	fresh   atomic.Int64 // unix nanoseconds of the last proof that the source is in step; 0 for never
	lost    atomic.Bool

	mu      sync.Mutex
	skipped map[string]uint64 // guarded by mu

	given Names                 // set before Run
	admit func(w *Worker) error // set before Run; nil admits all

	conflicts atomic.Uint64
}

var empty = new(Snapshot)

// Snapshot returns the latest fleet. It never returns nil.
func (s *Store) Snapshot() *Snapshot {
	if snap := s.cur.Load(); snap != nil {
		return snap
	}
	return empty
}

// Changed returns a channel that is closed at the next published change. Take
// it before reading Snapshot, else a change in between is missed.
func (s *Store) Changed() <-chan struct{} {
	for {
		if ch := s.changed.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if s.changed.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

// Synced reports whether the source has delivered a whole fleet at least once.
func (s *Store) Synced() bool { return s.cur.Load() != nil }

// Staleness returns for how long the source has not proved that it is in step;
// ok is false when it never has.
func (s *Store) Staleness(now time.Time) (age time.Duration, ok bool) {
	at := s.fresh.Load()
	if at == 0 {
		return 0, false
	}
	return max(0, now.Sub(time.Unix(0, at))), true
}

// Connected reports whether the source last said that it is in step.
func (s *Store) Connected() bool { return s.fresh.Load() != 0 && !s.lost.Load() }

// Skipped returns how many records the source could not use, by reason.
func (s *Store) Skipped() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.skipped)
}

// SetAdmit makes admit judge every worker that a source finds: with an error the
// worker is no part of the fleet and is counted as skipped for its address. Call it
// before Run. admit is called by the source's goroutine.
func (s *Store) SetAdmit(admit func(w *Worker) error) { s.admit = admit }

// Conflicts returns how often a record claimed the ID of a worker that another has.
func (s *Store) Conflicts() uint64 { return s.conflicts.Load() }

// Run applies src's changes until ctx is done. It is the only writer.
func (s *Store) Run(ctx context.Context, src Source) error {
	return src.Watch(ctx, &Feed{store: s})
}

func (s *Store) publish(workers []*Worker) {
	old := s.Snapshot()
	next := &Snapshot{Workers: workers, Version: old.Version + 1, names: namesOf(workers), left: old.gone(workers)}
	for _, w := range workers {
		if w.Status == Active {
			next.Targets = w.Targets(next.Targets)
		}
	}
	s.cur.Store(next)
	if ch := s.changed.Swap(nil); ch != nil {
		close(*ch)
	}
}

// Feed is where a [Source] writes. Its methods belong to one goroutine.
type Feed struct{ store *Store }

// NewFeed returns a feed into s, for tests that write a fleet by hand.
func NewFeed(s *Store) *Feed { return &Feed{store: s} }

// Replace makes workers the whole fleet: workers not in it are gone. A source
// calls it with its first listing and with each re-listing. Of two workers with
// one ID the last counts.
func (f *Feed) Replace(workers []*Worker) {
	f.Fresh(time.Now())
	next := make([]*Worker, 0, len(workers))
	seen := make(map[string]int, len(workers))
	for _, w := range workers {
		if !f.admits(w) {
			continue
		}
		w = f.store.given.add(w)
		if i, dup := seen[w.ID]; dup {
			next[i] = w
			continue
		}
		seen[w.ID] = len(next)
		next = append(next, w)
	}
	slices.SortFunc(next, func(a, b *Worker) int { return cmp.Compare(a.ID, b.ID) })
	cur := f.store.cur.Load()
	if cur != nil && slices.EqualFunc(cur.Workers, next, Same) {
		return
	}
	f.store.publish(next)
}

// admits reports whether w may be in the fleet.
func (f *Feed) admits(w *Worker) bool {
	if f.store.admit == nil || f.store.admit(w) == nil {
		return true
	}
	f.Skip("address")
	return false
}

// Conflict counts a record that claims the ID of a worker which another record has.
// The source says in its log which.
func (f *Feed) Conflict() { f.store.conflicts.Add(1) }

// Put adds w, or replaces the worker with its ID.
func (f *Feed) Put(w *Worker) {
	f.Fresh(time.Now())
	if !f.admits(w) {
		f.Delete(w.ID)
		return
	}
	w = f.store.given.add(w)
	cur := f.store.Snapshot()
	i, found := cur.find(w.ID)
	if found && Same(cur.Workers[i], w) {
		return
	}
	next := slices.Clone(cur.Workers)
	if found {
		next[i] = w
	} else {
		next = slices.Insert(next, i, w)
	}
	f.store.publish(next)
}

// Delete removes the worker with the given ID, if there is one.
func (f *Feed) Delete(id string) {
	f.Fresh(time.Now())
	cur := f.store.Snapshot()
	if i, found := cur.find(id); found {
		f.store.publish(slices.Delete(slices.Clone(cur.Workers), i, i+1))
	}
}

// Fresh says that the source was in step at the given time, though nothing
// changed.
func (f *Feed) Fresh(at time.Time) {
	f.store.fresh.Store(at.UnixNano())
	f.store.lost.Store(false)
}

// Lost says that the source is out of touch. The last known fleet stays.
func (f *Feed) Lost() { f.store.lost.Store(true) }

// Skip counts a record that the source could not use. reason is one of a fixed
// set: it becomes a metric's label. The source says in its log which record.
func (f *Feed) Skip(reason string) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if f.store.skipped == nil {
		f.store.skipped = make(map[string]uint64)
	}
	f.store.skipped[reason]++
}

// Same reports whether two records say the same of a worker.
func Same(a, b *Worker) bool {
	return a.ID == b.ID && a.URL == b.URL && a.Host == b.Host && a.Port == b.Port &&
		a.Model == b.Model && a.Engine == b.Engine && a.Status == b.Status && a.Role == b.Role &&
		a.Protocol == b.Protocol && string(a.Params) == string(b.Params) &&
		a.KVEvents == b.KVEvents && a.KVReplay == b.KVReplay && a.BlockSize == b.BlockSize && a.DPRank == b.DPRank &&
		a.DPSize == b.DPSize && a.Transport == b.Transport && a.Endpoint == b.Endpoint &&
		a.Incarnation == b.Incarnation && a.PingSubject == b.PingSubject && slices.Equal(a.Canary, b.Canary) &&
		slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Adapters, b.Adapters)
}
