//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// The arena holds the hashes of all runs. It is cut into groups of 8 words, one
// cache line each; an extent is a row of groups within one chunk. Chunks never
// move, so a block's word index, its ref, is its name for as long as it lives.
const (
	chunkWords  = 1 << 16
	groupWords  = 8
	chunkGroups = chunkWords / groupWords

	// freeTag marks, in arena.owner, both ends of a free extent; its length in
	// groups is in the other bits.
	freeTag = 1 << 31

	exactBins = maxRun / groupWords // one bin per length up to the longest run
	numBins   = exactBins + 7       // and one per power of two up to a chunk
)

type chunk [chunkWords]uint64

// arena is a first-fit allocator with boundary tags: neighbours of a freed
// extent are merged with it, without which churn would leak. Only the writer
// allocates and frees; readers only follow chunks.
type arena struct {
	chunks atomic.Pointer[[]*chunk] // copied to grow
	owner  []uint32                 // per group: the run whose extent it is in, or freeTag
	bins   [numBins]uint32          // first free extent of each bin, as group + 1; 0 for none
	filled [2]uint64                // bit b: bins[b] is not empty
	free   int                      // free groups
}

func (a *arena) init() { a.chunks.Store(&[]*chunk{}) }

// words returns the n words from ref on. They must not straddle a chunk.
func (a *arena) words(ref uint32, n int) []uint64 {
	c := (*a.chunks.Load())[ref/chunkWords]
	off := ref % chunkWords
	return c[off : int(off)+n]
}

func (a *arena) word(ref uint32) *uint64 {
	return &(*a.chunks.Load())[ref/chunkWords][ref%chunkWords]
}

// alloc returns the first word of an extent of n groups, 0 < n <= exactBins,
// whose groups belong to run from then on.
func (a *arena) alloc(n int, run uint32) uint32 {
	b := a.binFrom(n - 1)
	if b < 0 {
		a.grow()
		b = a.binFrom(n - 1)
	}
	g := a.bins[b] - 1
	size := a.owner[g] &^ freeTag
	a.unlink(g, size)
	if rest := size - uint32(n); rest > 0 {
		a.link(g+uint32(n), rest)
	}
	own := a.owner[g : g+uint32(n)]
	for i := range own {
		own[i] = run
	}
	return g * groupWords
}

// release frees n groups from the word base on, and merges them with free
// neighbours in the same chunk.
func (a *arena) release(base uint32, n int) {
	g, size := base/groupWords, uint32(n)
	if g%chunkGroups != 0 {
		if t := a.owner[g-1]; t&freeTag != 0 {
			left := t &^ freeTag
			a.unlink(g-left, left)
			g, size = g-left, size+left
		}
	}
	if next := g + size; next%chunkGroups != 0 {
		if t := a.owner[next]; t&freeTag != 0 {
			a.unlink(next, t&^freeTag)
			size += t &^ freeTag
		}
	}
	a.link(g, size)
}

func (a *arena) grow() {
	old := *a.chunks.Load()
	next := append(slices.Clip(old), new(chunk))
	a.chunks.Store(&next)
	a.owner = append(a.owner, make([]uint32, chunkGroups)...)
	a.link(uint32(len(old))*chunkGroups, chunkGroups)
}

// bin returns the bin of free extents of the given length.
func bin(size uint32) int {
	if size <= exactBins {
		return int(size) - 1
	}
	return exactBins + bits.Len32((size-1)/exactBins) - 1
}

// binFrom returns the first filled bin from b on, or -1.
func (a *arena) binFrom(b int) int {
	w := b / 64
	if m := a.filled[w] &^ (1<<(b%64) - 1); m != 0 {
		return w*64 + bits.TrailingZeros64(m)
	}
	if w == 0 && a.filled[1] != 0 {
		return 64 + bits.TrailingZeros64(a.filled[1])
	}
	return -1
}

// The first word of a free extent links it in its bin: the next extent in the
// upper half, the one before in the lower, as group + 1.

func (a *arena) link(g, size uint32) {
	a.owner[g] = freeTag | size
	a.owner[g+size-1] = freeTag | size
	b := bin(size)
	head := a.bins[b]
	*a.word(g * groupWords) = uint64(head) << 32
	if head != 0 {
		w := a.word((head - 1) * groupWords)
		*w = *w&^0xffffffff | uint64(g+1)
	}
	a.bins[b] = g + 1
	a.filled[b/64] |= 1 << (b % 64)
	a.free += int(size)
}

func (a *arena) unlink(g, size uint32) {
	// Inner tags of the extent are stale, never read: only ends are looked at.
	b := bin(size)
	w := *a.word(g * groupWords)
	next, prev := uint32(w>>32), uint32(w)
	if next != 0 {
		n := a.word((next - 1) * groupWords)
		*n = *n&^0xffffffff | uint64(prev)
	}
	if prev != 0 {
		p := a.word((prev - 1) * groupWords)
		*p = *p&0xffffffff | uint64(next)<<32
	} else {
		a.bins[b] = next
		if next == 0 {
			a.filled[b/64] &^= 1 << (b % 64)
		}
	}
	// The far end must not look free once the extent is cut or given away.
	a.owner[g] = 0
	a.owner[g+size-1] = 0
	a.free -= int(size)
}

// groups returns how many groups hold n words.
func groups(n int) int { return (n + groupWords - 1) / groupWords }
