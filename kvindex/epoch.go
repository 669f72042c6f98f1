package kvindex

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// What a reader may still look at is not reused until every reader that was in a
// lookup when it was taken out has left. A reader shows the epoch in which it
// entered; the writer retires things with the current epoch, and recycles those
// older than all readers. A stalled reader delays recycling, nothing else.

// slot is one reader's epoch: 0 outside of a lookup. Padded, so that readers do
// not share cache lines.
type slot struct {
	_     [64]byte
	epoch atomic.Uint64
	_     [56]byte
}

// ticket owns a slot. Its slot is handed to the next reader once the garbage
// collector finds it gone.
type ticket struct{ slot *slot }

type readers struct {
	epoch atomic.Uint64
	mu    sync.Mutex
	slots atomic.Pointer[[]*slot]
	spare []*slot // guarded by mu
}

func (r *readers) init() {
	r.epoch.Store(1)
	r.slots.Store(&[]*slot{})
}

func (r *readers) join() *ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s *slot
	if n := len(r.spare); n > 0 {
		s, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		s = new(slot)
		old := *r.slots.Load()
		next := append(slices.Clip(old), s)
		r.slots.Store(&next)
	}
	t := &ticket{slot: s}
	runtime.AddCleanup(t, r.leave, s)
	return t
}

func (r *readers) leave(s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spare = append(r.spare, s)
}

// oldest returns the epoch of the reader that entered first, MaxUint64 for none.
func (r *readers) oldest() uint64 {
	first := uint64(math.MaxUint64)
	for _, s := range *r.slots.Load() {
		if e := s.epoch.Load(); e != 0 {
			first = min(first, e)
		}
	}
	return first
}

type retiredKind uint8

const (
	retiredExtent   retiredKind = iota // a: base word, b: groups
	retiredHolders                     // a: base record, b: log2 of the size
	retiredRun                         // a: run id
	retiredInstance                    // a: target slot
)

type retired struct {
	epoch uint64
	a, b  uint32
	kind  retiredKind
}

const collectAt = 64

// retire queues something that no new reader can reach.
func (t *tree) retire(kind retiredKind, a, b uint32) {
	t.waiting = append(t.waiting, retired{epoch: t.readers.epoch.Load(), a: a, b: b, kind: kind})
}

// collect recycles what no reader can see any more, when enough is waiting.
func (t *tree) collect() {
	if len(t.waiting) < t.collectAt {
		return
	}
	t.readers.epoch.Add(1)
	oldest := t.readers.oldest()
	n := 0
	for n < len(t.waiting) && t.waiting[n].epoch < oldest {
		t.recycle(t.waiting[n])
		n++
	}
	t.waiting = append(t.waiting[:0], t.waiting[n:]...)
	t.collectAt = len(t.waiting) + collectAt
}

func (t *tree) recycle(r retired) {
	switch r.kind {
	case retiredExtent:
		t.arena.release(r.a, int(r.b))
	case retiredHolders:
		t.holders.release(r.a, int(r.b))
	case retiredRun:
		t.freeRuns = append(t.freeRuns, r.a)
	case retiredInstance:
		t.freeSlots = append(t.freeSlots, r.a)
	}
}
