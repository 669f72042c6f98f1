package extproc

import "google.golang.org/grpc/mem"

// maxPrealloc caps what a content-length may make us reserve before a byte has
// come.
const maxPrealloc = 1 << 20

// gather collects a request body as its chunks arrive. A body that comes in one
// chunk is kept where it was received; more are copied behind each other, since
// the scanner needs contiguous bytes.
type gather struct {
	pool   *bufferPool
	buf    mem.Buffer // holds the one chunk so far; nil when there is none or all is set
	from   int        // where the chunk starts in buf
	size   int        // bytes gathered
	all    *[]byte    // the chunks in one pooled buffer; nil while buf serves
	more   []*[]byte  // what follows behind all, once that is large; see join
	expect int        // content-length, 0 when unknown
}

// Up to wholeSize a body grows by being copied to a buffer of twice its size; what
// that leaves behind is as much again, too much for larger bodies: they grow by
// pieces.
const (
	wholeSize = 4 << 20
	pieceSize = 1 << 20
)

// add takes the body of m, which keeps its own buffer.
func (g *gather) add(m *message) {
	if len(m.body) == 0 {
		return
	}
	if g.size == 0 {
		m.buf.Ref()
		g.buf, g.from, g.size = m.buf, m.bodyAt, len(m.body)
		return
	}
	if g.all == nil {
		g.all = g.pool.Get(max(g.size+len(m.body), min(g.expect, maxPrealloc)))
		*g.all = append((*g.all)[:0], g.buf.ReadOnlyData()[g.from:g.from+g.size]...)
		g.buf.Free()
		g.buf = nil
	}
	if len(g.more) > 0 || g.size+len(m.body) > max(wholeSize, cap(*g.all)) {
		g.addPiece(m.body)
		return
	}
	if need := g.size + len(m.body); need > cap(*g.all) {
		grown := g.pool.Get(max(need, 2*cap(*g.all)))
		*grown = append((*grown)[:0], *g.all...)
		g.pool.Put(g.all)
		g.all = grown
	}
	*g.all = append(*g.all, m.body...)
	g.size += len(m.body)
}

// addPiece puts b behind all that there is.
func (g *gather) addPiece(b []byte) {
	g.size += len(b)
	for len(b) > 0 {
		n := len(g.more)
		if n == 0 || len(*g.more[n-1]) == cap(*g.more[n-1]) {
			p := g.pool.Get(pieceSize)
			*p = (*p)[:0]
			g.more = append(g.more, p)
			n++
		}
		last := g.more[n-1]
		room := min(len(b), cap(*last)-len(*last))
		*last = append(*last, b[:room]...)
		b = b[room:]
	}
}

// join puts all pieces into one buffer.
func (g *gather) join() {
	if len(g.more) == 0 {
		return
	}
	whole := g.pool.Get(g.size)
	*whole = append((*whole)[:0], *g.all...)
	for _, p := range g.more {
		*whole = append(*whole, *p...)
	}
	g.drop()
	g.pool.Put(g.all)
	g.all = whole
}

// drop gives the pieces back.
func (g *gather) drop() {
	for i, p := range g.more {
		g.pool.Put(p)
		g.more[i] = nil
	}
	g.more = g.more[:0]
}

// bytes returns the body gathered so far. It is valid until the next call of
// another method.
func (g *gather) bytes() []byte {
	g.join()
	switch {
	case g.all != nil:
		return *g.all
	case g.buf != nil:
		return g.buf.ReadOnlyData()[g.from : g.from+g.size]
	}
	return nil
}

// splice replaces the body's bytes from at to end by with. Views of the body are
// invalid from then on.
func (g *gather) splice(at, end int, with []byte) {
	old := g.bytes()
	next := g.pool.Get(len(old) - (end - at) + len(with))
	*next = append(append(append((*next)[:0], old[:at]...), with...), old[end:]...)
	if g.all != nil {
		g.pool.Put(g.all)
	}
	if g.buf != nil {
		g.buf.Free()
	}
	g.buf, g.from, g.all, g.size = nil, 0, next, len(*next)
}

// take returns the body as buf[from:to] and forgets it: the caller frees buf.
func (g *gather) take() (buf mem.Buffer, from, to int) {
	g.join()
	buf, from, to = g.buf, g.from, g.from+g.size
	switch {
	case g.all != nil:
		buf, from, to = mem.NewBuffer(g.all, g.pool), 0, g.size
	case g.buf == nil:
		buf = mem.SliceBuffer(nil)
	}
	g.buf, g.all, g.size, g.from = nil, nil, 0, 0
	return buf, from, to
}

// reset gives back what is held.
func (g *gather) reset() {
	g.drop()
	if g.all != nil {
		g.size = len(*g.all)
	}
	buf, _, _ := g.take()
	buf.Free()
	g.expect = 0
}
