package prompt

import "pointsman/kvindex"

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
	buf   []byte // less than a chunk, kept between requests

	scratch [8]byte
}

func (w *blockWriter) reset(size int, seed kvindex.Hash, out []kvindex.Hash) {
	w.size = size
	w.chunk = max(1, chunkBytes/size) * size
	w.total, w.h, w.out = 0, seed, out
	if cap(w.buf) < w.chunk {
		w.buf = make([]byte, 0, w.chunk)
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
	var buf [4]byte
	for rest := t.raw; len(rest) > 0; {
		run, tail := nextRun(rest)
		w.write(run)
		if len(tail) == 0 {
			return
		}
		var r rune
		r, rest = unescape(tail)
		w.write(appendRune(buf[:0], r))
	}
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
