//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// A record says how much of a run one holding holds:
//
//	bits 42-63  holding + 1; the whole record is 0 when its slot is empty
//	bits 32-41  depth: leading blocks of the run that are held without a hole
//	bits  0-31  ext: for an exact holding the bitmap of a holding with holes, 0
//	            without; for a predicted one its first guess
//
// A holding is an instance's slot times two, plus one for the predicted half.
type record uint64

func makeRecord(holding uint32, depth int, ext uint32) record {
	return record(uint64(holding+1)<<42 | uint64(depth)<<32 | uint64(ext))
}

func (r record) holding() uint32 { return uint32(r>>42) - 1 }
func (r record) depth() int      { return int(r >> 32 & 0x3ff) }
func (r record) ext() uint32     { return uint32(r) }
func (r record) empty() bool     { return r == 0 }

func isPredicted(holding uint32) bool { return holding&1 != 0 }

const (
	inlineHolders = 2 // records that fit in the run itself
	minHolderLog  = 2 // the smallest block outside of it: 4 records
	holderChunk   = 1 << 16
)

// holderArena gives out blocks of 2^k records for runs with many holders.
type holderArena struct {
	chunks atomic.Pointer[[][]uint64] // copied to grow; records accessed atomically
	next   uint32                     // first unused record of the last chunk, as a base
	left   uint32                     // records unused there
	free   [32][]uint32               // bases of free blocks, by k
}

func (a *holderArena) init() { a.chunks.Store(&[][]uint64{}) }

// block returns the n records at base.
func (a *holderArena) block(base uint32, n int) []uint64 {
	c := (*a.chunks.Load())[base/holderChunk]
	off := base % holderChunk
	return c[off : int(off)+n]
}

// alloc returns the base of an empty block of 2^k records.
func (a *holderArena) alloc(k int) uint32 {
	if n := len(a.free[k]); n > 0 {
		base := a.free[k][n-1]
		a.free[k] = a.free[k][:n-1]
		for i, b := 0, a.block(base, 1<<k); i < len(b); i++ {
			atomic.StoreUint64(&b[i], 0)
		}
		return base
	}
	size := uint32(1) << k
	if size > holderChunk { // a chunk of its own, spread over several chunk numbers
		return a.addChunks(int(size/holderChunk), make([]uint64, size))
	}
	if a.left < size {
		a.splitRest()
		a.next, a.left = a.addChunks(1, make([]uint64, holderChunk)), holderChunk
	}
	base := a.next
	a.next += size
	a.left -= size
	return base
}

func (a *holderArena) addChunks(numbers int, mem []uint64) (base uint32) {
	old := *a.chunks.Load()
	next := slices.Clip(old)
	for range numbers {
		next = append(next, mem)
	}
	a.chunks.Store(&next)
	return uint32(len(old)) * holderChunk
}

// splitRest frees what is left of the last chunk in blocks that fit.
func (a *holderArena) splitRest() {
	for a.left >= 1<<minHolderLog {
		k := bits.Len32(a.left) - 1
		a.free[k] = append(a.free[k], a.next)
		a.next += 1 << k
		a.left -= 1 << k
	}
}

func (a *holderArena) release(base uint32, k int) { a.free[k] = append(a.free[k], base) }

// bitmap is which blocks of a run a holding with holes holds. Only the writer
// looks at bitmaps.
type bitmap [maxRun / 64]uint64

func (b *bitmap) set(from, to int) {
	for i := from; i < to; {
		w, off := i/64, i%64
		n := min(64-off, to-i)
		b[w] |= (^uint64(0) >> (64 - n)) << off
		i += n
	}
}

func (b *bitmap) clear(i int)    { b[i/64] &^= 1 << (i % 64) }
func (b *bitmap) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

// depth returns how many leading bits are set.
func (b *bitmap) depth() int {
	for w, v := range b {
		if v != ^uint64(0) {
			return w*64 + bits.TrailingZeros64(^v)
		}
	}
	return maxRun
}

func (b *bitmap) count() (n int) {
	for _, v := range b {
		n += bits.OnesCount64(v)
	}
	return n
}

// end returns one past the last bit that is set.
func (b *bitmap) end() int {
	for w := len(b) - 1; w >= 0; w-- {
		if b[w] != 0 {
			return w*64 + bits.Len64(b[w])
		}
	}
	return 0
}

// bitmaps is the slab of bitmaps; index 0 is never given out.
type bitmaps struct {
	all  []bitmap
	free []uint32
}

func (s *bitmaps) alloc() uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.all[i] = bitmap{}
		return i
	}
	if len(s.all) == 0 {
		s.all = append(s.all, bitmap{})
	}
	s.all = append(s.all, bitmap{})
	return uint32(len(s.all) - 1)
}

func (s *bitmaps) release(i uint32) { s.free = append(s.free, i) }

func (s *bitmaps) live() int { return max(0, len(s.all)-1) - len(s.free) }
