package kvindex

import "fmt"

// audit checks what must be true of the tree between any two operations.
func (x *Index) audit() error {
	tr := &x.tree
	free := map[uint32]bool{}
	for _, id := range tr.freeRuns {
		free[id] = true
	}
	for _, w := range tr.waiting {
		if w.kind == retiredRun {
			free[w.a] = true
		}
	}
	runs, guesses := 0, 0
	seen := map[Hash]uint32{}
	exact, predicted := map[uint32]int{}, map[uint32]int{}
	for id := uint32(1); int(id) < len(tr.side); id++ {
		if free[id] {
			continue
		}
		runs++
		n, err := tr.auditRun(id, seen)
		if err != nil {
			return fmt.Errorf("run %d: %w", id, err)
		}
		g, err := tr.auditRecords(id, n, exact, predicted)
		if err != nil {
			return fmt.Errorf("run %d: %w", id, err)
		}
		guesses += g
	}
	if runs != tr.headsLive {
		return fmt.Errorf("%d runs, %d heads", runs, tr.headsLive)
	}
	if guesses != len(tr.guesses.heap) {
		return fmt.Errorf("%d guesses in runs, %d in the heap", guesses, len(tr.guesses.heap))
	}
	for _, t := range *x.table.Load() {
		if t == nil {
			continue
		}
		if got := exact[t.exactHolding()]; int64(got) != t.blocks.Load() {
			return fmt.Errorf("%s holds %d blocks, counts %d", t.key, got, t.blocks.Load())
		}
		if got := predicted[t.predictedHolding()]; int64(got) != t.predicted.Load() {
			return fmt.Errorf("%s has %d predicted blocks, counts %d", t.key, got, t.predicted.Load())
		}
	}
	return nil
}

func (t *tree) auditRun(id uint32, seen map[Hash]uint32) (n int, err error) {
	w0 := t.run(id).w0.Load()
	n = lenOf(w0)
	if n < 1 || n > roomOf(w0) {
		return n, fmt.Errorf("%d blocks in room for %d", n, roomOf(w0))
	}
	for _, h := range t.arena.words(baseOf(w0), n) {
		if other, dup := seen[h]; dup {
			return n, fmt.Errorf("hash %x is in run %d too", h, other)
		}
		seen[h] = id
	}
	if got := t.find(*t.arena.word(baseOf(w0))); got != id {
		return n, fmt.Errorf("its head leads to run %d", got)
	}
	return n, nil
}

func (t *tree) auditRecords(id uint32, n int, exact, predicted map[uint32]int) (guesses int, err error) {
	live, tail := uint32(0), uint32(0)
	holders := map[uint32]bool{}
	for _, w := range t.records(t.run(id)) {
		rec := record(w)
		if rec.empty() {
			continue
		}
		h := rec.holding()
		if holders[h] {
			return 0, fmt.Errorf("holding %d has two records", h)
		}
		holders[h] = true
		live++
		if t.end(rec) == n {
			tail++
		}
		switch {
		case t.end(rec) > n || rec.depth() > n:
			return 0, fmt.Errorf("holding %d holds %d of %d blocks", h, t.end(rec), n)
		case isPredicted(h):
			predicted[h] += rec.depth()
			g, err := t.auditStair(rec)
			if err != nil {
				return 0, err
			}
			guesses += g
		case rec.ext() != 0:
			b := &t.holes.all[rec.ext()]
			if b.depth() != rec.depth() || b.end() == b.depth() {
				return 0, fmt.Errorf("holding %d: bitmap of depth %d, end %d, record of depth %d", h, b.depth(), b.end(), rec.depth())
			}
			exact[h] += b.count()
		default:
			exact[h] += rec.depth()
		}
	}
	if s := t.side[id]; s.live != live || s.tail != tail || live == 0 || tail == 0 {
		return 0, fmt.Errorf("live %d, tail %d, counted %d and %d", live, tail, s.live, s.tail)
	}
	return guesses, nil
}

func (t *tree) auditStair(rec record) (steps int, err error) {
	all := t.guesses.all
	if int(all[rec.ext()].depth) != rec.depth() {
		return 0, fmt.Errorf("record of depth %d, first guess of depth %d", rec.depth(), all[rec.ext()].depth)
	}
	for g := rec.ext(); g != 0; g = all[g].next {
		steps++
		if n := all[g].next; n != 0 && (all[n].depth >= all[g].depth || all[n].until <= all[g].until) {
			return 0, fmt.Errorf("guesses out of order: %+v before %+v", all[g], all[n])
		}
	}
	return steps, nil
}
