package tokens

import "unicode/utf8"

// bpe is the model: vocabulary, merges, and what a word starts from. Immutable
// once built.
type bpe struct {
	vocab
	pairs pairTable
	cuts  cutTable

	byteLevel    bool // symbols are bytes; else code points, and bytes for those not in the vocabulary
	ignoreMerges bool // a whole word that is in the vocabulary is taken as it is
	fallback     bool // byteID holds the <0x00> tokens
	unknown      uint32
	fuseUnknown  bool
	gaps         bool // some text has no symbol: it is dropped or unknown, so words may not be cut

	byteID   [256]uint32           // of a byte: its token (byteLevel) or its fallback token
	asciiID  [utf8.RuneSelf]uint32 // of a code point, not byteLevel
	byteRank []uint32              // byteLevel without gaps: rank of two bytes, by first<<8|second
	longest  int                   // bytes of the longest token
}

// symbols appends the ids that b starts from.
func (m *bpe) symbols(dst []uint32, b []byte) []uint32 {
	if m.byteLevel && !m.gaps {
		for _, c := range b {
			dst = append(dst, m.byteID[c])
		}
		return dst
	}
	unknowns := 0 // pending ones; an unknown is added when what follows is known
	for i := 0; i < len(b); {
		id, n := m.symbol(b, i)
		if id != noID {
			dst = m.flushUnknown(dst, &unknowns)
			dst = append(dst, id)
			i += n
			continue
		}
		if m.fallback {
			for ; n > 0; n-- {
				dst = append(dst, m.byteID[b[i]])
				i++
			}
			continue
		}
		if m.unknown != noID {
			if !m.fuseUnknown {
				dst = m.flushUnknown(dst, &unknowns)
			}
			unknowns = 1
		}
		i += n
	}
	return m.flushUnknown(dst, &unknowns)
}

func (m *bpe) flushUnknown(dst []uint32, pending *int) []uint32 {
	if *pending > 0 {
		*pending = 0
		return append(dst, m.unknown)
	}
	return dst
}

// symbol returns the id of the byte or code point at b[i], noID if it has none,
// and its length.
func (m *bpe) symbol(b []byte, i int) (uint32, int) {
	c := b[i]
	if m.byteLevel {
		return m.byteID[c], 1
	}
	if c < utf8.RuneSelf {
		return m.asciiID[c], 1
	}
	n := runeLen(c)
	if i+n > len(b) {
		return noID, len(b) - i
	}
	return m.id(b[i : i+n]), n
}

// runeLen returns the length of the code point whose first byte is c.
func runeLen(c byte) int {
	switch {
	case c < utf8.RuneSelf:
		return 1
	case c < 0xe0:
		return 2
	case c < 0xf0:
		return 3
	}
	return 4
}

// textLen returns how many bytes of text the token stands for, and whether it is
// a byte fallback.
func (m *bpe) textLen(id uint32) (n int, isFallback bool) {
	b := m.bytes(id)
	if m.fallback && len(b) == 6 && b[0] == '<' && b[1] == '0' && b[2] == 'x' && m.isByteID(id) {
		return 1, true
	}
	return len(b), false
}

func (m *bpe) isByteID(id uint32) bool {
	for _, known := range m.byteID {
		if known == id {
			return true
		}
	}
	return false
}

func (m *bpe) memory() int {
	return m.vocab.memory() + m.pairs.memory() + m.cuts.memory() + 4*len(m.byteRank) + 4*(256+utf8.RuneSelf)
}
