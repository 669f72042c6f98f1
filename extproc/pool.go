package extproc

import (
	"math/bits"
	"sync"
)

// The pool's tiers. Below the smallest, grpc-go does not hand buffers back
// (its pooling threshold is a capacity of 1 KiB); above the largest, a buffer is
// made for one use.
const (
	minTier = 11 // 2 KiB
	maxTier = 26 // 64 MiB
)

// bufferPool hands out byte slices whose capacity is a power of two. It does
// not clear them: whoever takes one must write what it reads or sends.
// (grpc-go's own pool clears the whole capacity at each Get and has nothing
// between 32 KiB and 1 MiB, which costs more than the rest of a 100 KB request.)
//
// It implements mem.BufferPool. Safe for concurrent use.
type bufferPool struct {
	tiers [maxTier - minTier + 1]sync.Pool
	dirty func([]byte) // called with each returned buffer; nil but in tests
}

// Get returns a buffer of the given length with undefined contents.
func (p *bufferPool) Get(length int) *[]byte {
	tier := max(minTier, bits.Len(uint(max(length, 1)-1)))
	if tier > maxTier {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.tiers[tier-minTier].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<tier)
	return &b
}

// Put takes back a buffer that Get returned.
func (p *bufferPool) Put(b *[]byte) {
	if p.dirty != nil {
		p.dirty((*b)[:cap(*b)])
	}
	tier := bits.Len(uint(cap(*b))) - 1
	if tier < minTier || tier > maxTier || cap(*b) != 1<<tier {
		return
	}
	p.tiers[tier-minTier].Put(b)
}
