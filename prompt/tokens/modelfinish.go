package tokens

import (
	"fmt"
	"unicode/utf8"
)

// setSymbols fills in what a word starts from.
func (b *modelBuilder) setSymbols(opts modelOptions) error {
	m := b.m
	if opts.UnkToken != nil {
		if m.unknown = b.tokenID(*opts.UnkToken); m.unknown == noID {
			return unsupported("unk_token", "%q is not in the vocabulary", *opts.UnkToken)
		}
		if b.merges(m.unknown) {
			return unsupported("unk_token", "%q takes part in merges", *opts.UnkToken)
		}
	}
	if m.byteLevel {
		return b.setBytes()
	}
	for c := range m.asciiID {
		m.asciiID[c] = m.id([]byte{byte(c)})
	}
	if !opts.ByteFallback {
		m.gaps = true // any code point may be missing
		return nil
	}
	return b.checkFallback()
}

func (b *modelBuilder) setBytes() error {
	m := b.m
	for c := range m.byteID {
		m.byteID[c] = m.id([]byte{byte(c)})
		m.gaps = m.gaps || m.byteID[c] == noID
	}
	if m.gaps {
		return nil
	}
	m.byteRank = make([]uint32, 1<<16)
	for pair := range m.byteRank {
		m.byteRank[pair] = m.pairs.rank(m.byteID[pair>>8], m.byteID[pair&0xff])
	}
	return nil
}

// checkFallback reads the tokens that stand for bytes. They must all be there and
// take no part in merges: then text of which only bytes are known is cut off from
// what stands beside it.
func (b *modelBuilder) checkFallback() error {
	m := b.m
	m.fallback = true
	for c := range m.byteID {
		name := fmt.Sprintf("<0x%02X>", c)
		if m.byteID[c] = b.tokenID(name); m.byteID[c] == noID {
			return unsupported("byte_fallback", "no token %s", name)
		}
		if b.merges(m.byteID[c]) {
			return unsupported("byte_fallback", "%s takes part in merges", name)
		}
	}
	return nil
}

func (b *modelBuilder) merges(id uint32) bool { return int(id) < len(b.inMerge) && b.inMerge[id] }

// finish finds the tokens that merging their own bytes gives, and the places where
// words may be cut.
func (b *modelBuilder) finish() {
	m := b.m
	m.cuts.pairs = make([]uint64, 1<<cutBits/64)
	made := make([]bool, len(m.start))
	for _, id := range m.pairs.made {
		if id != noID && !made[id] {
			made[id] = true
			m.cuts.add(m.bytes(id))
		}
	}
	var s merger
	var got []uint32
	for id := range len(m.start) - 1 {
		text := m.bytes(uint32(id))
		if len(text) == 0 || !made[id] && !m.isSymbol(text) {
			continue
		}
		got = s.merge(m, got[:0], text)
		if len(got) == 1 && got[0] == uint32(id) {
			m.markSelf(text)
		}
	}
}

func (m *bpe) isSymbol(text []byte) bool {
	if m.byteLevel {
		return len(text) == 1
	}
	return utf8.RuneCount(text) == 1
}
