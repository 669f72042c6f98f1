//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"slices"
	"sync/atomic"
)

// maxRun is the longest run in blocks: what a bitmap of one cache line covers.
const maxRun = 512

// run is a contiguous piece of one chain, stored once for all holdings. Its words
// are published with one atomic store each:
//
//	w0  base of its hashes 32 | number of blocks 16 | room for 16
//	w1  base of its records 32 | records in use 24 | log2 of room 8; 0 means inline
type run struct {
	w0, w1 atomic.Uint64
	inline [inlineHolders]uint64 // accessed atomically
}

func makeW0(base uint32, n, room int) uint64 {
	return uint64(base)<<32 | uint64(n)<<16 | uint64(room)
}
func baseOf(w0 uint64) uint32 { return uint32(w0 >> 32) }
func lenOf(w0 uint64) int     { return int(w0 >> 16 & 0xffff) }
func roomOf(w0 uint64) int    { return int(w0 & 0xffff) }

func makeW1(base uint32, n, log int) uint64 {
	return uint64(base)<<32 | uint64(n)<<8 | uint64(log)
}
func usedOf(w1 uint64) int { return int(w1 >> 8 & 0xffffff) }
func logOf(w1 uint64) int  { return int(w1 & 0xff) }

// runSide is what only the writer needs of a run.
type runSide struct {
	live    uint32 // records that hold something; 0 means the run is free
	tail    uint32 // of them, those that hold the last block
	trimmed bool   // words past the end may still be read: never append
}

const runChunkLen = 1 << 12

type runChunk [runChunkLen]run

// How far the numbers go: refs and bases are 32-bit word indexes (34 GB of hashes),
// run ids 31 bits, holdings 22 bits, blocks of a run at most maxRun.

// tree is the index without targets: runs and who holds how much of them. The
// invariants:
//
//   - A hash is in it at most once: as the head of a run, or behind its only
//     predecessor.
//   - A run lives while at least one record of it holds something.
//   - Words below the published length never change until the extent is recycled.
//   - A record's depth is at most the run's length; without a bitmap it says all.
type tree struct {
	// Read by readers without a lock.
	arena   arena
	holders holderArena
	runs    atomic.Pointer[[]*runChunk] // copied to grow
	heads   atomic.Pointer[headTable]
	readers readers

	// Only the writer's.
	side                 []runSide
	freeRuns             []uint32
	freeSlots            []uint32 // target slots that may be given out again
	headsUsed, headsLive int      // slots not empty, entries
	holes                bitmaps
	waiting              []retired
	collectAt            int
	guesses              guesses
}

func (t *tree) init() {
	t.arena.init()
	t.holders.init()
	t.runs.Store(&[]*runChunk{new(runChunk)})
	t.heads.Store(newHeadTable(0))
	t.readers.init()
	t.side = make([]runSide, 1) // run 0 does not exist
	t.collectAt = collectAt
	t.guesses.init()
}

func (t *tree) run(id uint32) *run {
	return &(*t.runs.Load())[id/runChunkLen][id%runChunkLen]
}

// records returns the run's records. They must be accessed atomically.
func (t *tree) records(r *run) []uint64 {
	w1 := r.w1.Load()
	if logOf(w1) == 0 {
		return r.inline[:usedOf(w1)]
	}
	return t.holders.block(baseOf(w1), usedOf(w1))
}

// runAt returns the run of a live block and the block's place in it.
func (t *tree) runAt(ref uint32) (id uint32, off int) {
	id = t.arena.owner[ref/groupWords]
	return id, int(ref - baseOf(t.run(id).w0.Load()))
}

// cursor is a place in the tree after which a chain goes on. The zero value is
// the start of a prompt.
type cursor struct {
	run uint32
	off int
}

// place finds or makes room for the next blocks of a chain: m of hs, at least
// one, are then at off and after in run id. hs must not be empty.
func (t *tree) place(at cursor, hs []Hash) (id uint32, off, m int) {
	reserve := 0
	if at.run != 0 {
		r := t.run(at.run)
		w0 := r.w0.Load()
		n := lenOf(w0)
		if at.off < n {
			if m = match(t.arena.words(baseOf(w0)+uint32(at.off), n-at.off), hs); m > 0 {
				return at.run, at.off, m
			}
		} else {
			if n < roomOf(w0) && !t.side[at.run].trimmed && t.find(hs[0]) == 0 {
				return at.run, n, t.extend(at.run, r, w0, hs)
			}
			reserve = 2 * roomOf(w0)
		}
	}
	if id = t.find(hs[0]); id != 0 {
		w0 := t.run(id).w0.Load()
		return id, 0, match(t.arena.words(baseOf(w0), lenOf(w0)), hs)
	}
	return t.newRun(hs, reserve)
}

// match returns how many leading hashes of both are equal. Equal hashes at one
// place of two chains mean that all before them are equal too.
func match(words, hs []Hash) int {
	m := min(len(words), len(hs))
	if m == 0 || words[0] != hs[0] {
		return 0
	}
	if words[m-1] == hs[m-1] {
		return m
	}
	return divergence(words[:m], hs[:m])
}

// divergence returns the first place where two chains differ, given that they
// agree at the first and differ at the last: it gallops, then bisects.
func divergence(words, hs []Hash) int {
	lo, hi := 0, len(words)-1 // equal at lo, different at hi
	for step := 32; lo+step < hi; step *= 2 {
		if words[lo+step] != hs[lo+step] {
			hi = lo + step
			break
		}
		lo += step
	}
	for lo+1 < hi {
		mid := int(uint(lo+hi) / 2)
		if words[mid] == hs[mid] {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// upToHead returns how many of the first limit hashes can follow each other in
// one run: a hash that is already a head, left by a parent that was removed,
// must not be stored twice.
func (t *tree) upToHead(hs []Hash, limit int) int {
	limit = min(limit, len(hs))
	for i := 1; i < limit; i++ {
		if t.find(hs[i]) != 0 {
			return i
		}
	}
	return limit
}

// extend appends blocks to a run that has room.
func (t *tree) extend(id uint32, r *run, w0 uint64, hs []Hash) int {
	base, n, room := baseOf(w0), lenOf(w0), roomOf(w0)
	m := t.upToHead(hs, room-n)
	copy(t.arena.words(base+uint32(n), m), hs)
	r.w0.Store(makeW0(base, n+m, room))
	t.side[id].tail = 0
	return m
}

// shortPiece is the most blocks that count as a run growing bit by bit, as
// decoding does; the run then gets room for more.
const shortPiece = 8

func (t *tree) newRun(hs []Hash, reserve int) (id uint32, off, m int) {
	m = t.upToHead(hs, maxRun)
	room := m
	if m <= shortPiece && len(hs) <= shortPiece {
		room = min(max(m, reserve), maxRun)
	}
	id = t.newRunID()
	n := groups(room)
	base := t.arena.alloc(n, id)
	copy(t.arena.words(base, m), hs)
	r := t.run(id)
	r.w1.Store(0)
	r.w0.Store(makeW0(base, m, n*groupWords))
	t.side[id] = runSide{}
	t.addHead(hs[0], id)
	return id, 0, m
}

func (t *tree) newRunID() uint32 {
	if n := len(t.freeRuns); n > 0 {
		id := t.freeRuns[n-1]
		t.freeRuns = t.freeRuns[:n-1]
		return id
	}
	id := uint32(len(t.side))
	t.side = append(t.side, runSide{})
	if chunks := *t.runs.Load(); int(id/runChunkLen) == len(chunks) {
		next := append(slices.Clip(chunks), new(runChunk))
		t.runs.Store(&next)
	}
	return id
}

// freeRun takes a run out that nothing holds.
func (t *tree) freeRun(id uint32) {
	r := t.run(id)
	w0, w1 := r.w0.Load(), r.w1.Load()
	t.dropHead(*t.arena.word(baseOf(w0)), id)
	t.retire(retiredExtent, baseOf(w0), uint32(roomOf(w0)/groupWords))
	if k := logOf(w1); k != 0 {
		t.retire(retiredHolders, baseOf(w1), uint32(k))
	}
	r.w1.Store(0)
	t.retire(retiredRun, id, 0)
}

// trim shortens a run whose last block nothing holds, and gives back the end of
// its extent once that is at least half: giving back each group would cut the
// arena into pieces that nothing fits.
func (t *tree) trim(id uint32) {
	r := t.run(id)
	end := 0
	for _, w := range t.records(r) {
		end = max(end, t.end(record(w)))
	}
	w0 := r.w0.Load()
	base, room := baseOf(w0), roomOf(w0)
	if keep := groups(end) * groupWords; keep*2 <= room {
		t.retire(retiredExtent, base+uint32(keep), uint32((room-keep)/groupWords))
		room = keep
	}
	r.w0.Store(makeW0(base, end, room))
	s := &t.side[id]
	s.trimmed, s.tail = true, 0
	for _, w := range t.records(r) {
		if t.end(record(w)) == end {
			s.tail++
		}
	}
}

// end returns one past the last block of the run that a record holds.
func (t *tree) end(rec record) int {
	if ext := rec.ext(); ext != 0 && !isPredicted(rec.holding()) {
		return t.holes.all[ext].end()
	}
	return rec.depth()
}
