//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import (
	"slices"
	"unicode/utf8"
)

// Hangul syllables compose and decompose by arithmetic (Unicode 3.12).
const (
	hangulL, hangulLCount = 0x1100, 19
	hangulV, hangulVCount = 0x1161, 21
	hangulT, hangulTCount = 0x11a7, 28
	hangulS, hangulSCount = 0xac00, hangulLCount * hangulVCount * hangulTCount
)

// normalForm is one of NFC, NFD, NFKC and NFKD, as the reference computes it:
// with its older combining classes and, unlike golang.org/x/text, without the
// stream-safe U+034F after 30 marks.
type normalForm struct {
	tables  *unicodeTables
	compat  bool
	compose bool

	run  []rune  // of one stretch
	ccc  []uint8 // of run
	sort []rune
}

// flagged is the class of the code points this form may change.
func (f *normalForm) flagged() class {
	switch {
	case f.compose && !f.compat:
		return unNFC
	case f.compose:
		return unNFC | unNFD
	}
	return unNFD
}

// append appends the normal form of src to dst and reports true, or reports false
// and appends nothing when src is in normal form already.
func (f *normalForm) append(dst, src []byte) ([]byte, bool) {
	flags := f.flagged()
	done, changed := 0, false
	for i := 0; i < len(src); {
		i = f.skip(src, i, flags)
		if i == len(src) {
			break
		}
		// A stretch is a code point that what stands before it cannot change,
		// and the flagged ones after it.
		start := i
		if start > done {
			start = lastRune(src, start)
		}
		end := f.stretchEnd(src, i, flags)
		dst = append(dst, src[done:start]...)
		dst = f.normalize(dst, src[start:end])
		changed = true
		done, i = end, end
	}
	if !changed {
		return dst, false
	}
	return append(dst, src[done:]...), true
}

// skip returns the first position from i on of a flagged code point.
func (f *normalForm) skip(b []byte, i int, flags class) int {
	for i < len(b) {
		// No code point below U+0300 takes part in NFC; other forms ask the table.
		if c := b[i]; c < utf8.RuneSelf || c < 0xcc && flags == unNFC && c >= 0xc0 {
			i++
			if c >= utf8.RuneSelf {
				i++
			}
			continue
		}
		r, n := runeAt(b, i)
		if f.tables.of(r)&flags != 0 {
			return i
		}
		i += n
	}
	return i
}

// stretchEnd returns where the flagged code points from i on end. The code point
// there starts the next stretch: it neither moves nor joins what stands before it.
func (f *normalForm) stretchEnd(b []byte, i int, flags class) int {
	for i < len(b) {
		c, n := f.tables.at(b, i)
		if c&flags == 0 {
			return i
		}
		i += n
	}
	return i
}

// normalize appends the normal form of one stretch.
func (f *normalForm) normalize(dst, src []byte) []byte {
	f.run, f.ccc = f.run[:0], f.ccc[:0]
	for i := 0; i < len(src); {
		r, n := rune(src[i]), 1
		if r >= utf8.RuneSelf {
			r, n = runeAt(src, i)
		}
		f.decompose(r)
		i += n
	}
	f.reorder()
	if f.compose {
		f.recompose()
	}
	for _, r := range f.run {
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

func (f *normalForm) decompose(r rune) {
	if s := r - hangulS; s >= 0 && s < hangulSCount {
		f.push(hangulL + s/(hangulVCount*hangulTCount))
		f.push(hangulV + s%(hangulVCount*hangulTCount)/hangulTCount)
		if s%hangulTCount != 0 {
			f.push(hangulT + s%hangulTCount)
		}
		return
	}
	s, ok := "", false
	if f.compat {
		s, ok = f.tables.compat[r]
	}
	if !ok {
		s, ok = f.tables.canon[r]
	}
	if !ok {
		f.push(r)
		return
	}
	for _, part := range s {
		f.push(part)
	}
}

func (f *normalForm) push(r rune) {
	f.run = append(f.run, r)
	f.ccc = append(f.ccc, f.tables.ccc[r])
}

// reorder sorts each sequence of marks by combining class, keeping the order of
// equal ones. Long sequences are sorted by counting, so that a prompt of nothing
// but marks stays linear.
func (f *normalForm) reorder() {
	for i := 0; i < len(f.run); {
		if f.ccc[i] == 0 {
			i++
			continue
		}
		j := i
		for j < len(f.run) && f.ccc[j] != 0 {
			j++
		}
		if !slices.IsSorted(f.ccc[i:j]) {
			f.sortMarks(i, j)
		}
		i = j
	}
}

func (f *normalForm) sortMarks(i, j int) {
	var first [257]int
	for _, c := range f.ccc[i:j] {
		first[int(c)+1]++
	}
	for c := 1; c < len(first); c++ {
		first[c] += first[c-1]
	}
	f.sort = append(f.sort[:0], f.run[i:j]...)
	for k, r := range f.sort {
		c := f.ccc[i+k]
		f.run[i+first[c]] = r
		first[c]++
	}
	slices.Sort(f.ccc[i:j])
}

// recompose joins marks to the starter before them (Unicode 3.11, D117).
func (f *normalForm) recompose() {
	starter, out, last := -1, 0, -1 // last: class of the latest mark kept after starter
	for i, r := range f.run {
		ccc := int(f.ccc[i])
		if starter >= 0 && last < ccc && (last >= 0 || out == starter+1) {
			if joined, ok := f.pair(f.run[starter], r); ok {
				f.run[starter] = joined
				continue
			}
		}
		if ccc == 0 {
			starter, last = out, -1
		} else {
			last = ccc
		}
		f.run[out], f.ccc[out] = r, uint8(ccc)
		out++
	}
	f.run = f.run[:out]
}

func (f *normalForm) pair(a, b rune) (rune, bool) {
	if l := a - hangulL; l >= 0 && l < hangulLCount {
		if v := b - hangulV; v >= 0 && v < hangulVCount {
			return hangulS + (l*hangulVCount+v)*hangulTCount, true
		}
	}
	if s := a - hangulS; s >= 0 && s < hangulSCount && s%hangulTCount == 0 {
		if t := b - hangulT; t > 0 && t < hangulTCount {
			return a + t, true
		}
	}
	r, ok := f.tables.compose[[2]rune{a, b}]
	return r, ok
}
