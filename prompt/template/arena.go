package template

import "unsafe"

// view is b as a string, without a copy. b must not change while it is in use.
func view(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // see decode and keep for why b does not change
}

// arenaBytes is the least memory that the arena grows by.
const arenaBytes = 4096

// room returns n bytes of the arena to write text to; keep makes it last.
func (r *run) room(n int) []byte {
	if cap(r.arena)-len(r.arena) < n {
		size := max(n, arenaBytes)
		r.alloc(size)
		r.arena = make([]byte, 0, size) // the former one lives on in its strings
	}
	return r.arena[len(r.arena):cap(r.arena)]
}

// keep returns the first n bytes of the last room as text, which lasts as long as
// the rendering does: a later one may write over it.
func (r *run) keep(n int) string {
	from := len(r.arena)
	r.arena = r.arena[:from+n]
	return view(r.arena[from:])
}
