//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// headTable finds a run by its first hash: open addressing, one word per run,
// the hash's lower half in its upper half and the run id (never 0) in its lower.
// Readers probe it without a lock; the writer replaces it to grow.
type headTable struct {
	slots []uint64 // accessed atomically; len is a power of two
	shift uint     // 64 - log2(len)
}

const (
	golden    = 0x9e3779b97f4a7c15
	tombstone = 1 << 32 // a tag with run 0: never matches, never ends a probe
	minHeads  = 64
)

func newHeadTable(runs int) *headTable {
	size := max(minHeads, 1<<bits.Len(uint(runs*2)))
	return &headTable{slots: make([]uint64, size), shift: uint(64 - bits.TrailingZeros(uint(size)))}
}

func (h *headTable) home(hash Hash) uint64 { return hash * golden >> h.shift }

func headEntry(hash Hash, run uint32) uint64 { return hash<<32 | uint64(run) }

// put stores an entry for a hash that is not in the table, and reports whether
// it took an empty slot rather than a tombstone.
func (h *headTable) put(hash Hash, run uint32) (fresh bool) {
	mask := uint64(len(h.slots) - 1)
	for i := h.home(hash); ; i = (i + 1) & mask {
		e := atomic.LoadUint64(&h.slots[i])
		if uint32(e) == 0 {
			atomic.StoreUint64(&h.slots[i], headEntry(hash, run))
			return e == 0
		}
	}
}

// drop makes the entry of a run a tombstone.
func (h *headTable) drop(hash Hash, run uint32) {
	mask := uint64(len(h.slots) - 1)
	want := headEntry(hash, run)
	for i := h.home(hash); ; i = (i + 1) & mask {
		switch atomic.LoadUint64(&h.slots[i]) {
		case want:
			atomic.StoreUint64(&h.slots[i], tombstone)
			return
		case 0:
			return
		}
	}
}

// find returns the run that starts with hash, or 0.
func (t *tree) find(hash Hash) uint32 {
	h := t.heads.Load()
	mask := uint64(len(h.slots) - 1)
	for i := h.home(hash); ; i = (i + 1) & mask {
		e := atomic.LoadUint64(&h.slots[i&mask])
		if e == 0 {
			return 0
		}
		if uint32(e>>32) == uint32(hash) && uint32(e) != 0 {
			base := baseOf(t.run(uint32(e)).w0.Load())
			if *t.arena.word(base) == hash {
				return uint32(e)
			}
		}
	}
}

// addHead enters a run under its first hash.
func (t *tree) addHead(hash Hash, run uint32) {
	h := t.heads.Load()
	if (t.headsUsed+1)*8 > len(h.slots)*5 {
		h = t.rebuildHeads(h)
	}
	if h.put(hash, run) {
		t.headsUsed++
	}
	t.headsLive++
}

// rebuildHeads publishes a copy without tombstones, sized for what lives.
func (t *tree) rebuildHeads(old *headTable) *headTable {
	next := newHeadTable(t.headsLive + t.headsLive/2)
	for _, e := range old.slots {
		if id := uint32(e); id != 0 {
			next.put(*t.arena.word(baseOf(t.run(id).w0.Load())), id)
		}
	}
	t.headsUsed = t.headsLive
	t.heads.Store(next)
	return next
}

func (t *tree) dropHead(hash Hash, run uint32) {
	t.heads.Load().drop(hash, run)
	t.headsLive--
}
