//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

const (
	idBits   = 20 // token ids are below 2^20, so that a pair and a rank fit in 8 bytes
	rankBits = 24
	maxIDs   = 1 << idBits
	maxRanks = 1<<rankBits - 2
	noID     = ^uint32(0)
	noRank   = ^uint32(0)
)

// vocab maps tokens to ids and back. Immutable once built.
type vocab struct {
	arena []byte
	start []uint32 // token id is arena[start[id]:start[id+1]]
	count int      // of tokens

	// Open addressing; tag of the hash in the upper half, then selfBit, then id+1.
	slots []uint64
}

// selfBit marks a token that merging its own bytes gives. Others are in the
// vocabulary but merging never ends there, so they stand only for whole words.
const selfBit = 1 << 31

func (v *vocab) bytes(id uint32) []byte {
	if int(id)+1 >= len(v.start) {
		return nil
	}
	return v.arena[v.start[id]:v.start[id+1]]
}

// find returns the slot of token b; ok is false when there is none.
func (v *vocab) find(b []byte) (at int, ok bool) {
	h := hashBytes(b)
	mask := len(v.slots) - 1
	for at = int(h) & mask; ; at = (at + 1) & mask {
		s := v.slots[at]
		if s == 0 {
			return at, false
		}
		if s>>32 == h>>32 && bytes.Equal(v.bytes(uint32(s)&^selfBit-1), b) {
			return at, true
		}
	}
}

// id returns the id of token b, or noID.
func (v *vocab) id(b []byte) uint32 {
	at, ok := v.find(b)
	if !ok {
		return noID
	}
	return uint32(v.slots[at])&^selfBit - 1
}

// word returns the id of token b if it may stand for all of b: when merging gives
// it, or with whole set.
func (v *vocab) word(b []byte, whole bool) uint32 {
	at, ok := v.find(b)
	if !ok {
		return noID
	}
	s := uint32(v.slots[at])
	if s&selfBit == 0 && !whole {
		return noID
	}
	return s&^selfBit - 1
}

// insert adds token b as id; false when b is there already.
func (v *vocab) insert(b []byte, id uint32) bool {
	at, ok := v.find(b)
	if ok {
		return false
	}
	v.slots[at] = hashBytes(b)>>32<<32 | uint64(id+1)
	return true
}

func (v *vocab) markSelf(b []byte) {
	if at, ok := v.find(b); ok {
		v.slots[at] |= selfBit
	}
}

func (v *vocab) memory() int { return cap(v.arena) + 4*cap(v.start) + 8*len(v.slots) }

// hashBytes hashes short tokens by two loads, longer ones by XXH3.
func hashBytes(b []byte) uint64 {
	if len(b) < 16 {
		lo, hi := loadWord(b, 0, len(b))
		return mix(lo, hi|uint64(len(b))<<56)
	}
	return xxh3.Hash(b)
}

func mix(lo, hi uint64) uint64 {
	a, b := bits.Mul64(lo^0x9e3779b97f4a7c15, hi^0xd6e8feb86659fd93)
	a ^= b
	return a ^ a>>29
}

// loadWord returns the n < 16 bytes of b from i on in two words, zero padded.
func loadWord(b []byte, i, n int) (lo, hi uint64) {
	if i+16 <= len(b) {
		w := b[i : i+16]
		lo, hi = binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		if n < 8 {
			return lo & (1<<(8*uint(n)&63) - 1), 0
		}
		return lo, hi & (1<<(8*uint(n-8)&63) - 1)
	}
	var w [16]byte
	copy(w[:], b[i:i+n])
	return binary.LittleEndian.Uint64(w[:]), binary.LittleEndian.Uint64(w[8:])
}

// pairTable maps a pair of ids to its rank. Immutable once built.
type pairTable struct {
	slots []uint64 // both ids, then rank+1
	made  []uint32 // the id that the merge of a rank makes
}

func newPairTable(n int) pairTable {
	size := 1 << bits.Len(uint(n+n/2+1))
	return pairTable{slots: make([]uint64, size), made: make([]uint32, 0, n)}
}

// rank returns the rank of the merge of a and b, or noRank.
func (p *pairTable) rank(a, b uint32) uint32 {
	key := uint64(a)<<idBits | uint64(b)
	mask := uint64(len(p.slots) - 1)
	for at := pairHash(key) & mask; ; at = (at + 1) & mask {
		s := p.slots[at]
		if s>>rankBits == key {
			if s == 0 {
				return noRank
			}
			return uint32(s&(1<<rankBits-1)) - 1
		}
		if s == 0 {
			return noRank
		}
	}
}

// set gives the pair the rank; a pair named twice keeps the later rank, as in the
// reference (tokenizers models/bpe/model.rs collects them into a map).
func (p *pairTable) set(a, b, rank uint32) {
	key := uint64(a)<<idBits | uint64(b)
	mask := uint64(len(p.slots) - 1)
	for at := pairHash(key) & mask; ; at = (at + 1) & mask {
		if s := p.slots[at]; s == 0 || s>>rankBits == key {
			p.slots[at] = key<<rankBits | uint64(rank+1)
			return
		}
	}
}

func pairHash(key uint64) uint64 {
	key *= 0x9e3779b97f4a7c15
	return key>>32 ^ key>>15
}

func (p *pairTable) memory() int { return 8*len(p.slots) + 4*cap(p.made) }
