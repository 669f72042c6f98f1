package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// Any sequence of listings and changes leaves what a plain map would hold, in
// order, and counts exactly the changes.
func TestAgainstAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		store := new(Store)
		feed := NewFeed(store)
		model := map[string]int{}
		version := uint64(0)
		synced := false
		id := func() string { return fmt.Sprint("w", rng.IntN(12)) }
		record := func(id string, size int) *Worker {
			return worker(id, func(w *Worker) { w.BlockSize, w.Status = size, Status(size%3) })
		}
		for range 200 {
			before := maps.Clone(model)
			published := false
			switch rng.IntN(8) {
			case 0:
				model = map[string]int{}
				var all []*Worker
				for range rng.IntN(15) {
					id, size := id(), rng.IntN(4)
					model[id] = size
					all = append(all, record(id, size))
				}
				feed.Replace(all)
				published = !synced
				synced = true
			case 1, 2, 3:
				id := id()
				delete(model, id)
				feed.Delete(id)
			default:
				id, size := id(), rng.IntN(4)
				model[id] = size
				feed.Put(record(id, size))
			}
			if published || !maps.Equal(before, model) {
				version++
				synced = true
			}
			checkAgainst(t, store.Snapshot(), model, version)
		}
	}
}

func checkAgainst(t *testing.T, s *Snapshot, model map[string]int, version uint64) {
	t.Helper()
	if s.Version != version {
		t.Fatalf("version %d, want %d", s.Version, version)
	}
	if got, want := ids(s), slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) {
		t.Fatalf("fleet %v, want %v", got, want)
	}
	active := 0
	for _, w := range s.Workers {
		if w.BlockSize != model[w.ID] {
			t.Fatalf("%s has the record %d, want %d", w.ID, w.BlockSize, model[w.ID])
		}
		if w.Status == Active {
			if s.Targets[active].Worker != w {
				t.Fatalf("target %d is %s, want %s", active, s.Targets[active].Key, w.ID)
			}
			active++
		}
	}
	if len(s.Targets) != active {
		t.Fatalf("%d targets of %d active workers", len(s.Targets), active)
	}
}

// Readers in the middle of changes always find a whole fleet.
func TestReadersFindAWholeFleet(t *testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	fleets := [2][]*Worker{{worker("a"), worker("b")}, {worker("c"), worker("d"), worker("e")}}
	feed.Replace(fleets[0])
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for last := uint64(0); ; {
				s := store.Snapshot()
				if got := fmt.Sprint(ids(s)); got != "[a b]" && got != "[c d e]" || len(s.Targets) != len(s.Workers) {
					t.Errorf("a reader found %s and %d targets", got, len(s.Targets))
					return
				}
				if s.Version < last {
					t.Errorf("version %d after %d", s.Version, last)
					return
				}
				last = s.Version
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 2000 {
		feed.Replace(fleets[i%2])
	}
	close(stop)
	readers.Wait()
}
