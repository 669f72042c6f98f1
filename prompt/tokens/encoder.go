package tokens

import (
	"bytes"
	"unicode/utf8"
)

// encoder is the scratch space and the word cache of one call.
type encoder struct {
	m       *bpe
	cache   *wordCache
	lasting bool // kept by the tokenizer
	merger

	count []uint32 // of Count

	window [2][]uint32
	pair   []byte
	joined []uint32
	beside [2]uint32 // the pair that sideBySide found true last; 0, 0 is none

	norm  [2][]byte  // of the normalizer's steps
	late  []byte     // of the pre-tokenizer, where it changes text
	form  normalForm // scratch of NFC and the like
	raw   []match    // added tokens in raw text
	match []match    // added tokens in normalized text
}

// scratch returns how many bytes of scratch space e holds, without the cache.
func (e *encoder) scratch() int {
	n := 4 * (cap(e.ids) + cap(e.ranks) + cap(e.prev) + cap(e.next) + cap(e.count) + cap(e.form.run) + cap(e.form.sort))
	n += 8*cap(e.heap) + cap(e.norm[0]) + cap(e.norm[1]) + cap(e.late) + cap(e.form.ccc)
	return n + 24*(cap(e.raw)+cap(e.match))
}

// part appends the tokens of w, a whole word or, with pieceKey, a part that no
// token reaches out of.
func (e *encoder) part(dst []uint32, w []byte, piece uint64) []uint32 {
	m := e.m
	if len(w) <= m.longest {
		if id := m.word(w, m.ignoreMerges && piece == 0); id != noID {
			return append(dst, id)
		}
	}
	if piece == 0 && !m.gaps && len(w) > 2 {
		if at := e.firstCut(w); at < len(w) {
			return e.pieces(dst, w, at)
		}
	}
	if len(w) >= 2*windowBytes && !m.gaps && m.longest <= windowBytes/2 {
		return e.windows(dst, w)
	}
	return e.merge(m, dst, w)
}

// firstCut returns the first position where w may be cut, or len(w).
func (e *encoder) firstCut(w []byte) int {
	for i, c := range w {
		if c >= utf8.RuneSelf { // two ASCII bytes are never cut
			if i > 0 {
				i--
			}
			for i > 0 && w[i]&0xc0 == 0x80 {
				i--
			}
			return e.m.cuts.next(w, i)
		}
	}
	return len(w)
}

// pieces appends the tokens of w, cut at every possible position, of which at is
// the first.
func (e *encoder) pieces(dst []uint32, w []byte, at int) []uint32 {
	key := uint64(pieceKey)
	if !e.m.ignoreMerges {
		key = 0 // whole words are encoded like pieces; see piece
	}
	for from, pause := 0, stopBytes; from < len(w); {
		if from >= pause {
			if e.halt() {
				return dst
			}
			pause = from + stopBytes
		}
		dst = e.piece(dst, w, from, at, key)
		from = at
		if from < len(w) {
			at = e.m.cuts.next(w, from)
		}
	}
	return dst
}

// piece appends the tokens of a part of a word. Parts are not cut again: a cut of
// the part would be one of the word.
func (e *encoder) piece(dst []uint32, w []byte, from, to int, key uint64) []uint32 {
	if key != 0 || to-from <= wideBytes {
		return e.cached(dst, w, from, to, key)
	}
	return e.part(dst, w[from:to], pieceKey)
}

// windowBytes is the size of the windows that a long word is merged by, so that
// the work stays in the first level cache and is linear in the word's length.
const windowBytes = 2048

// windows appends the tokens of a long word. It merges windows that start at token
// boundaries, keeps three quarters of each, and accepts a joint only where the two
// tokens side by side merge to themselves.
//
// That makes the whole exact: if every two neighbours of a sequence merge to
// themselves, the sequence is what merging the text gives. For take the first
// merge that would cross one of its boundaries: until then, what happened within
// the two tokens there is what happens when they are merged alone, so it would
// have crossed there too.
func (e *encoder) windows(dst []uint32, w []byte) []uint32 {
	had := len(dst)
	pos, cur := 0, 0
	end := e.windowEnd(w, 0)
	e.window[cur] = e.merge(e.m, e.window[cur][:0], w[:end])
	for end < len(w) && !e.halt() {
		next, kept := e.joint(w, pos, cur)
		if kept == 0 {
			return e.merge(e.m, dst[:had], w) // as slow as n log n, and never seen
		}
		dst = append(dst, e.window[cur][:kept]...)
		pos, cur = next, 1-cur
		end = e.windowEnd(w, pos)
	}
	return append(dst, e.window[cur]...)
}

// joint finds how many tokens of the window at pos are kept and merges the window
// that starts after them into the other buffer.
func (e *encoder) joint(w []byte, pos, cur int) (next, kept int) {
	const tries = 16
	toks := e.window[cur]
	end := e.windowEnd(w, pos)
	next, kept = end, len(toks)
	for tried := 0; kept > 1; {
		kept--
		n, _ := e.m.textLen(toks[kept])
		next -= n
		if end-next < windowBytes/4 || !e.m.byteLevel && w[next]&0xc0 == 0x80 {
			continue
		}
		if tried++; tried > tries {
			break
		}
		other := e.windowAt(w, next, pos, cur)
		if e.sideBySide(toks[kept-1], other[0]) {
			return next, kept
		}
	}
	return 0, 0
}

// windowAt merges the window at next into the other buffer than cur, which holds
// the one at pos. A run of one thing gives the same window again and again.
func (e *encoder) windowAt(w []byte, next, pos, cur int) []uint32 {
	other := 1 - cur
	a, b := w[pos:e.windowEnd(w, pos)], w[next:e.windowEnd(w, next)]
	if bytes.Equal(a, b) {
		e.window[other] = append(e.window[other][:0], e.window[cur]...)
	} else {
		e.window[other] = e.merge(e.m, e.window[other][:0], b)
	}
	return e.window[other]
}

func (e *encoder) windowEnd(w []byte, pos int) int {
	end := pos + windowBytes
	if end >= len(w) {
		return len(w)
	}
	for !e.m.byteLevel && w[end]&0xc0 == 0x80 {
		end--
	}
	return end
}

// sideBySide reports whether the text of a and b merges to a and b.
func (e *encoder) sideBySide(a, b uint32) bool {
	_, loneA := e.m.textLen(a)
	_, loneB := e.m.textLen(b)
	if loneA || loneB {
		return true // no merge takes a byte fallback; see checkFallback
	}
	if e.beside == [2]uint32{a, b} && a|b != 0 {
		return true
	}
	e.pair = append(append(e.pair[:0], e.m.bytes(a)...), e.m.bytes(b)...)
	e.joined = e.merge(e.m, e.joined[:0], e.pair)
	if len(e.joined) != 2 || e.joined[0] != a || e.joined[1] != b {
		return false
	}
	e.beside = [2]uint32{a, b}
	return true
}
