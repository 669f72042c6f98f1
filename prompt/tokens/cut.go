//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import "unicode/utf8"

// cutTable knows where a word may be cut because no token reaches across, so that
// the two sides can be encoded, and cached, apart.
//
// It holds every pair of neighbouring code points inside a token that merging can
// make, as a bit of a hash table: a bit too many only forbids a cut. Tokens that
// start or end inside a code point have the bytes at that boundary in edges.
type cutTable struct {
	pairs []uint64 // bitmap, by pairBit
	edges [256 * 256 / 64]uint64
}

const cutBits = 23 // 1 MiB

func (c *cutTable) memory() int { return 8 * (len(c.pairs) + len(c.edges)) }

func pairBit(a, b uint32) uint32 {
	return uint32((uint64(a)<<21 | uint64(b)) * 0x9e3779b97f4a7c15 >> (64 - cutBits))
}

// add notes the pairs inside the token b. With ascii set those of two ASCII bytes
// are of no interest, as words are never cut there.
func (c *cutTable) add(b []byte) {
	i := 0
	for i < len(b) && b[i]&0xc0 == 0x80 {
		i++
	}
	partial := i > 0 // what is left of i starts inside a code point
	var left rune
	for first := true; i < len(b); first = false {
		n := runeLen(b[i])
		whole := i+n <= len(b)
		var r rune
		if whole {
			r = rune(b[i])
			if n > 1 {
				r, _ = runeAt(b, i)
			}
		}
		if !first || partial {
			if first || !whole {
				c.edge(b[i-1], b[i])
			} else if left >= utf8.RuneSelf || r >= utf8.RuneSelf {
				bit := pairBit(uint32(left), uint32(r))
				c.pairs[bit>>6] |= 1 << (bit & 63)
			}
		}
		left = r
		i += n
	}
}

func (c *cutTable) edge(a, b byte) {
	at := int(a)<<8 | int(b)
	c.edges[at>>6] |= 1 << (at & 63)
}

// between reports whether b, valid UTF-8, may be cut at i, between the code points
// left and right, which start before i and at i.
func (c *cutTable) between(b []byte, i int, left, right rune) bool {
	if left < utf8.RuneSelf && right < utf8.RuneSelf {
		return false
	}
	at := int(b[i-1])<<8 | int(b[i])
	if c.edges[at>>6]&(1<<(at&63)) != 0 {
		return false
	}
	bit := pairBit(uint32(left), uint32(right))
	return c.pairs[bit>>6]&(1<<(bit&63)) == 0
}

// next returns the first position after i where b may be cut, or len(b).
func (c *cutTable) next(b []byte, i int) int {
	left := rune(b[i])
	n := 1
	if left >= utf8.RuneSelf {
		left, n = runeAt(b, i)
	}
	for i += n; i < len(b); i += n {
		right := rune(b[i])
		n = 1
		if right >= utf8.RuneSelf {
			right, n = runeAt(b, i)
		}
		if c.between(b, i, left, right) {
			return i
		}
		left = right
	}
	return len(b)
}
