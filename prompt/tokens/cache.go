//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import "encoding/binary"

// wordCache remembers the tokens of short words. It is direct mapped and never
// grows; a slot holds the word itself, so a hit is never someone else's. It
// belongs to one call at a time.
type wordCache struct {
	short []shortSlot
	wide  []wideSlot
}

// shortSlot is a word of up to 15 bytes and up to 3 tokens.
type shortSlot struct {
	lo, hi uint64 // the bytes; the top byte is the key byte
	ids    [3]uint32
	n      uint32
}

// wideSlot is a word of up to 31 bytes and up to 7 tokens.
type wideSlot struct {
	key [4]uint64 // the bytes; the top byte is the key byte
	ids [7]uint32
	n   uint32
}

const (
	shortSlots = 1 << 15
	wideSlots  = 1 << 13
	shortBytes = 15
	wideBytes  = 31

	// pieceKey is added to the key byte of a part of a word where a whole word of
	// the same bytes may be encoded otherwise (ignore_merges).
	pieceKey = 0x80

	// cacheMemory is the size of one wordCache in bytes.
	cacheMemory = shortSlots*32 + wideSlots*64
)

func newWordCache() *wordCache {
	return &wordCache{short: make([]shortSlot, shortSlots), wide: make([]wideSlot, wideSlots)}
}

func (c *wordCache) clear() {
	clear(c.short)
	clear(c.wide)
}

// cached appends the tokens of b[i:j], from the cache or by calling e.part.
func (e *encoder) cached(dst []uint32, b []byte, i, j int, piece uint64) []uint32 {
	n := j - i
	if n > shortBytes {
		if n <= wideBytes {
			return e.cachedWide(dst, b[i:j], piece)
		}
		return e.part(dst, b[i:j], piece)
	}
	lo, hi := loadWord(b, i, n)
	hi |= (uint64(n) | piece) << 56
	slot := &e.cache.short[mix(lo, hi)>>16&(shortSlots-1)]
	if slot.lo == lo && slot.hi == hi {
		if slot.n == 1 {
			return append(dst, slot.ids[0])
		}
		had := len(dst)
		return append(dst, slot.ids[0], slot.ids[1], slot.ids[2])[:had+int(slot.n)]
	}
	had := len(dst)
	dst = e.part(dst, b[i:j], piece)
	if got := len(dst) - had; got <= len(slot.ids) {
		slot.lo, slot.hi, slot.n = lo, hi, uint32(got)
		copy(slot.ids[:], dst[had:])
	}
	return dst
}

func (e *encoder) cachedWide(dst []uint32, w []byte, piece uint64) []uint32 {
	n := len(w)
	var key [4]uint64
	key[0] = binary.LittleEndian.Uint64(w)
	key[1] = binary.LittleEndian.Uint64(w[8:])
	key[2], key[3] = loadWord(w, 16, n-16)
	key[3] |= (uint64(n) | piece) << 56
	h := mix(key[0]^key[2]*0x9e3779b97f4a7c15, key[1]^key[3]*0xc2b2ae3d27d4eb4f)
	slot := &e.cache.wide[h>>16&(wideSlots-1)]
	had := len(dst)
	if slot.key == key {
		return append(dst, slot.ids[:slot.n]...)
	}
	dst = e.part(dst, w, piece)
	if got := len(dst) - had; got <= len(slot.ids) {
		slot.key, slot.n = key, uint32(got)
		copy(slot.ids[:], dst[had:])
	}
	return dst
}
