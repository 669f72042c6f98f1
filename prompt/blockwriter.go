package prompt

import (
	"encoding/binary"
	"math/bits"

	"pointsman/kvindex"
)

// chunkBytes is how much text is gathered before it is hashed, about: it stays in
// the first-level cache, and the whole text is never copied.
const chunkBytes = 4096

// blockWriter hashes a stream of text in blocks of size bytes. The text is cut
// into chunks of a fixed number of blocks, each chunk's chain starting from the
// last hash of the one before, so equal beginnings have equal hashes however the
// text arrives.
type blockWriter struct {
	size  int // bytes per block
	chunk int // bytes per chunk, a multiple of size
	total int // bytes written
	h     kvindex.Hash
	out   []kvindex.Hash
	buf   []byte // less than a chunk, with room for slack more; kept between requests

	scratch [8]byte
}

func (w *blockWriter) reset(size int, seed kvindex.Hash, out []kvindex.Hash) {
	w.size = size
	w.chunk = max(1, chunkBytes/size) * size
	w.total, w.h, w.out = 0, seed, out
	if cap(w.buf) < w.chunk+slack {
		w.buf = make([]byte, 0, w.chunk+slack)
	}
	w.buf = w.buf[:0]
}

func (w *blockWriter) write(p []byte) {
	w.total += len(p)
	if len(w.buf) > 0 || len(p) < w.chunk {
		n := copy(w.buf[len(w.buf):w.chunk], p)
		w.buf = w.buf[:len(w.buf)+n]
		p = p[n:]
		if len(w.buf) < w.chunk {
			return
		}
		w.hash(w.buf)
		w.buf = w.buf[:0]
	}
	for len(p) >= w.chunk {
		w.hash(p[:w.chunk])
		p = p[w.chunk:]
	}
	w.buf = append(w.buf, p...)
}

func (w *blockWriter) hash(text []byte) {
	n := len(w.out)
	w.out = kvindex.HashBytes(w.out, w.h, text, w.size)
	if len(w.out) > n {
		w.h = w.out[len(w.out)-1]
	}
}

// finish hashes the full blocks of the last chunk. Nothing may be written after.
func (w *blockWriter) finish() []kvindex.Hash {
	w.hash(w.buf)
	w.buf = w.buf[:0]
	return w.out
}

func (w *blockWriter) byte(c byte) {
	one := [1]byte{c}
	w.write(one[:])
}

// text writes t decoded.
func (w *blockWriter) text(t Text) {
	if !t.escaped {
		w.write(t.raw)
		return
	}
	for rest := t.raw; len(rest) > 0; {
		n, used := decode(w.buf[len(w.buf):w.chunk+slack], rest)
		rest = rest[used:]
		w.buf = w.buf[:len(w.buf)+n]
		w.total += n
		if len(w.buf) >= w.chunk {
			w.hash(w.buf[:w.chunk])
			w.buf = w.buf[:copy(w.buf, w.buf[w.chunk:])]
		}
	}
}

// slack is the room behind a chunk that decode may write into.
const slack = 40

// decode decodes the front of raw, which has been validated, into dst, and
// returns how many bytes it wrote and how many of raw it used. It stops when all
// is used or when less than slack bytes of dst are left, and never within an
// escape. len(dst) is at least slack.
func decode(dst, raw []byte) (n, used int) {
	for used < len(raw) && len(dst)-n >= slack {
		run := copyPlain(dst[n:], raw[used:])
		n, used = n+run, used+run
		if used == len(raw) || raw[used] != '\\' {
			continue
		}
		if c := plainEscape(raw[used+1]); c != 0 {
			dst[n] = c
			n, used = n+1, used+2
			continue
		}
		r, tail := unescapeUnicode(raw[used:])
		n += len(appendRune(dst[n:n], r))
		used = len(raw) - len(tail)
	}
	return n, used
}

// copyPlain copies the bytes before the first backslash of src, as far as dst has
// room, and returns how many. It may write up to 8 bytes more.
func copyPlain(dst, src []byte) int {
	end := min(len(src), len(dst)-slack/2)
	i := 0
	for ; end-i >= 8; i += 8 {
		x := binary.LittleEndian.Uint64(src[i:])
		binary.LittleEndian.PutUint64(dst[i:], x)
		if m := backslash(x); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		if i&24 != 24 {
			continue
		}
		// A long run: wider steps pay.
		for end-i >= 40 && backslash4((*[32]byte)(src[i+8:])) == 0 {
			*(*[32]byte)(dst[i+8:]) = *(*[32]byte)(src[i+8:])
			i += 32
		}
	}
	for ; i < end && src[i] != '\\'; i++ {
		dst[i] = src[i]
	}
	return i
}

func backslash4(b *[32]byte) uint64 {
	return backslash(binary.LittleEndian.Uint64(b[:])) | backslash(binary.LittleEndian.Uint64(b[8:])) |
		backslash(binary.LittleEndian.Uint64(b[16:])) | backslash(binary.LittleEndian.Uint64(b[24:]))
}

// backslash marks each backslash in x; the lowest mark is exact.
func backslash(x uint64) uint64 {
	const ones = 0x0101010101010101
	x ^= '\\' * ones
	return (x - ones) & ^x & (0x80 * ones)
}

// json writes a valid JSON value without its white space and with its strings
// decoded, so that two spellings of one value are the same text.
func (w *blockWriter) json(raw []byte) {
	s := scanner{b: raw}
	start := 0
	for s.i < len(raw) {
		switch raw[s.i] {
		case ' ', '\n', '\t', '\r':
			w.write(raw[start:s.i])
			s.space()
			start = s.i
		case '"':
			w.write(raw[start : s.i+1])
			t, _ := s.str()
			w.text(t)
			start = s.i - 1 // the closing quote
		default:
			s.i++
		}
	}
	w.write(raw[start:])
}
