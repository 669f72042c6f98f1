package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func worker(id string, edit ...func(*Worker)) *Worker {
	w := &Worker{ID: id, URL: "http://" + id, Host: id, Port: 1, Model: "m", DPRank: -1}
	for _, e := range edit {
		e(w)
	}
	return w
}

func ids(s *Snapshot) []string {
	var out []string
	for _, w := range s.Workers {
		out = append(out, w.ID)
	}
	return out
}

func TestTheStory(t *testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	draining := func(w *Worker) { w.Status = Draining }
	for _, step := range []struct {
		name    string
		do      func()
		want    []string
		version uint64
	}{
		{"at first there is nothing", func() {}, nil, 0},
		{"a listing is the whole fleet, in order", func() { feed.Replace([]*Worker{worker("c"), worker("a")}) }, []string{"a", "c"}, 1},
		{"the same listing changes nothing", func() { feed.Replace([]*Worker{worker("a"), worker("c")}) }, []string{"a", "c"}, 1},
		{"a worker appears in its place", func() { feed.Put(worker("b")) }, []string{"a", "b", "c"}, 2},
		{"the same record changes nothing", func() { feed.Put(worker("b")) }, []string{"a", "b", "c"}, 2},
		{"a changed record is a change", func() { feed.Put(worker("b", draining)) }, []string{"a", "b", "c"}, 3},
		{"a worker goes", func() { feed.Delete("a") }, []string{"b", "c"}, 4},
		{"one that is not there cannot go", func() { feed.Delete("a") }, []string{"b", "c"}, 4},
		{"of two records with one ID the last counts", func() { feed.Replace([]*Worker{worker("b"), worker("c"), worker("b", draining)}) }, []string{"b", "c"}, 4},
		{"a listing without a worker removes it", func() { feed.Replace([]*Worker{worker("d")}) }, []string{"d"}, 5},
		{"an empty listing empties the fleet", func() { feed.Replace(nil) }, nil, 6},
	} {
		step.do()
		s := store.Snapshot()
		if got := ids(s); !slices.Equal(got, step.want) || s.Version != step.version {
			t.Fatalf("%s: %v, version %d, want %v, version %d", step.name, got, s.Version, step.want, step.version)
		}
	}
}

func TestAnEmptyFirstListingCounts(t *testing.T) {
	store := new(Store)
	if store.Synced() {
		t.Error("synced before any listing")
	}
	changed := store.Changed()
	NewFeed(store).Replace(nil)
	if !store.Synced() {
		t.Error("not synced after an empty listing")
	}
	select {
	case <-changed:
	default:
		t.Error("the first listing was no change")
	}
}

func TestASnapshotNeverChanges(t *testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	feed.Replace([]*Worker{worker("a"), worker("b")})
	old := store.Snapshot()
	feed.Delete("a")
	feed.Put(worker("c"))
	if got := ids(old); !slices.Equal(got, []string{"a", "b"}) || len(old.Targets) != 2 {
		t.Errorf("the old snapshot became %v", got)
	}
}

func TestLookupsInASnapshot(t *testing.T) {
	store := new(Store)
	NewFeed(store).Replace([]*Worker{
		worker("b", func(w *Worker) { w.Model = "y" }),
		worker("a"),
		worker("c", func(w *Worker) { w.Model, w.Status = "z", Dead }),
		worker("d", func(w *Worker) { w.Model = "" }),
	})
	s := store.Snapshot()
	if w := s.Worker("b"); w == nil || w.ID != "b" {
		t.Errorf("Worker(b) = %+v", w)
	}
	if w := s.Worker("bb"); w != nil {
		t.Errorf("Worker(bb) = %+v", w)
	}
	if got := s.Models(); !slices.Equal(got, []string{"m", "y"}) {
		t.Errorf("models %v: want those of active workers", got)
	}
}

func TestTargetsAreActiveRanks(t *testing.T) {
	store := new(Store)
	NewFeed(store).Replace([]*Worker{
		worker("a", func(w *Worker) { w.DPSize = 2 }),
		worker("b", func(w *Worker) { w.DPSize, w.DPRank = 2, 1 }),
		worker("c", func(w *Worker) { w.DPSize, w.Status = 2, Draining }),
		worker("d", func(w *Worker) { w.DPSize = 1 }),
	})
	var got []string
	for _, target := range store.Snapshot().Targets {
		got = append(got, fmt.Sprintf("%s %s %d", target.Worker.ID, target.Key, target.Rank))
	}
	want := []string{"a a#dp0 0", "a a#dp1 1", "b b -1", "d d -1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestChangedIsClosedAtTheNextChangeOnly(t *testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	feed.Replace([]*Worker{worker("a")})
	changed := store.Changed()
	if again := store.Changed(); again != changed {
		t.Error("two channels for one change")
	}
	feed.Put(worker("a"))
	feed.Fresh(time.Now())
	select {
	case <-changed:
		t.Fatal("closed without a change")
	default:
	}
	feed.Put(worker("b"))
	select {
	case <-changed:
	default:
		t.Fatal("open after a change")
	}
	if store.Changed() == changed {
		t.Error("the closed channel was handed out again")
	}
}

// A reader that takes Changed before Snapshot misses no change.
func TestReadersSeeTheLastChange(*testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	const changes = 500
	last := fmt.Sprint(changes - 1)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				changed := store.Changed()
				if store.Snapshot().Worker(last) != nil {
					return
				}
				<-changed
			}
		})
	}
	for i := range changes {
		feed.Put(worker(fmt.Sprint(i)))
	}
	readers.Wait()
}

func TestStaleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(Store)
		feed := NewFeed(store)
		if _, ok := store.Staleness(time.Now()); ok || store.Connected() {
			t.Error("in step before the source said so")
		}
		feed.Lost()
		if store.Connected() {
			t.Error("connected though the source is lost")
		}
		feed.Replace([]*Worker{worker("a")})
		time.Sleep(3 * time.Second)
		if age, ok := store.Staleness(time.Now()); !ok || age != 3*time.Second || !store.Connected() {
			t.Errorf("staleness %v, %v, connected %v", age, ok, store.Connected())
		}
		if age, _ := store.Staleness(time.Now().Add(-time.Hour)); age != 0 {
			t.Errorf("staleness %v before the proof", age)
		}
		feed.Lost()
		time.Sleep(time.Second)
		if age, _ := store.Staleness(time.Now()); age != 4*time.Second || store.Connected() {
			t.Errorf("lost: staleness %v, connected %v", age, store.Connected())
		}
		if len(store.Snapshot().Workers) != 1 {
			t.Error("the last known fleet went with the source")
		}
		feed.Fresh(time.Now())
		if age, _ := store.Staleness(time.Now()); age != 0 || !store.Connected() {
			t.Errorf("back: staleness %v, connected %v", age, store.Connected())
		}
	})
}

type sourceFunc func(context.Context, *Feed) error

func (f sourceFunc) Watch(ctx context.Context, feed *Feed) error { return f(ctx, feed) }

func TestRunHandsTheSourceAFeedAndReturnsItsError(t *testing.T) {
	store := new(Store)
	final := errors.New("cannot go on")
	err := store.Run(t.Context(), sourceFunc(func(_ context.Context, feed *Feed) error {
		feed.Replace([]*Worker{worker("a")})
		return final
	}))
	if !errors.Is(err, final) || len(store.Snapshot().Workers) != 1 {
		t.Errorf("got %v, %v", err, ids(store.Snapshot()))
	}
}

func BenchmarkPutInAFleetOf1000(b *testing.B) {
	store := new(Store)
	feed := NewFeed(store)
	var all []*Worker
	for i := range 1000 {
		all = append(all, worker(fmt.Sprintf("10.0.%d.%d:30000", i/256, i%256)))
	}
	feed.Replace(all)
	flip := [2]*Worker{worker("10.0.1.1:30000"), worker("10.0.1.1:30000", func(w *Worker) { w.BlockSize = 16 })}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		feed.Put(flip[i%2])
	}
}

func TestWhoLeftIsRememberedUntilItComesBack(t *testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	feed.Replace([]*Worker{{ID: "a"}, {ID: "b"}})
	if s := store.Snapshot(); s.Left("a") || s.Left("never") {
		t.Error("somebody left a new fleet")
	}
	feed.Delete("a")
	if s := store.Snapshot(); !s.Left("a") || s.Left("b") || s.Left("never") {
		t.Error("a left, b did not, and nobody else was there")
	}
	feed.Put(&Worker{ID: "a"})
	if store.Snapshot().Left("a") {
		t.Error("a is back and counts as gone")
	}
	for i := range 2 * keptLeft {
		feed.Put(&Worker{ID: fmt.Sprint("w", i)})
		feed.Delete(fmt.Sprint("w", i))
	}
	if s := store.Snapshot(); s.Left("w0") || !s.Left(fmt.Sprint("w", 2*keptLeft-1)) || len(s.left) != keptLeft {
		t.Errorf("%d that left are remembered", len(s.left))
	}
}
