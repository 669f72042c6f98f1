package bench

import (
	"fmt"

	"pointsman/kvindex"
)

// lost counts, in ids, why requests did not find what some worker had, or was about to
// have, of their prompts.
type lost struct {
	ids     int
	load    int // the picker knew, and chose another worker: that one is busy
	others  int // on its way to a worker by another replica's pick, which this one does not know
	late    int // some worker had it and the index of the replica did not say so
	broken  int // the picked worker was believed to hold it, and did not when it came to it
	present [2]int
}

func (l *lost) count(ids int, best [2]int, believed, chosen, hit int) {
	l.ids += ids
	had, coming := best[0], max(best[0], best[1])
	l.present[0] += had
	l.present[1] += coming
	if hit < chosen {
		l.broken += chosen - hit
	}
	hit = max(hit, chosen)
	if miss := min(believed, coming) - hit; miss > 0 {
		l.load += miss
	}
	known := max(believed, hit)
	if miss := had - known; miss > 0 {
		l.late += miss
	}
	if miss := coming - max(had, known); miss > 0 {
		l.others += miss
	}
}

// String returns the shares of all ids.
func (l *lost) String() string {
	share := func(n int) float64 { return 100 * float64(n) / float64(max(1, l.ids)) }
	return fmt.Sprintf("  somewhere %.2f %%, or on its way %.2f %%; lost to load %.2f, unknown picks %.2f, late events %.2f, broken promises %.2f",
		share(l.present[0]), share(l.present[1]), share(l.load), share(l.others), share(l.late), share(l.broken))
}

// best returns how many leading ids the workers have at most, and how many with those
// on their way.
func (s *scaleRun) best(ids []uint64) (best [2]int) {
	for _, w := range s.workers {
		w.truth.Lock()
		n := 0
		for n < len(ids) && w.have[ids[n]] {
			n++
		}
		best[0] = max(best[0], n)
		for n < len(ids) && (w.have[ids[n]] || w.coming[ids[n]] > 0) {
			n++
		}
		best[1] = max(best[1], n)
		w.truth.Unlock()
	}
	return best
}

// expect adds a request's ids to those on their way, or takes them off.
func (w *scaleWorker) expect(ids []uint64, n int) {
	w.truth.Lock()
	defer w.truth.Unlock()
	for _, id := range ids {
		w.coming[id] += n
	}
}

// believed returns how many leading ids the replica thinks that some worker has.
func (r *scaleReplica) believed(hs []kvindex.Hash) (n int) {
	var s kvindex.Scratch
	r.index.Lookup(hs, &s)
	for id := range r.feeds {
		n = max(n, s.Depth(r.index.Instance(id)))
	}
	return n
}
