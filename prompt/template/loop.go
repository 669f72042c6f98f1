package template

import "unicode/utf8"

// iterator yields values once.
type iterator interface {
	next(r *run) (value, bool)
}

// loopState is the variable loop.
type loopState struct {
	items []value // when the source is a list
	it    iterator
	size  int // -1: not known yet
	index int

	cur, prev, after value
	hasAfter         bool
	changedLast      value
	changedSet       bool
}

// loopOver sets a loop's source.
func (r *run) loopOver(ls *loopState, src value) {
	switch src.k {
	case kList, kTuple:
		ls.items = src.items()
		ls.size = len(ls.items)
	case kIter:
		ls.it, ls.size = r.iter(src), -1
	default:
		ls.it = r.iter(src)
		ls.size = r.length(src)
	}
}

func (l *loopState) advance(r *run) (value, bool) {
	var v value
	switch {
	case l.hasAfter:
		v, l.hasAfter = l.after, false
	case l.it == nil:
		if l.index+1 >= len(l.items) {
			return value{}, false
		}
		v = l.items[l.index+1]
	default:
		var ok bool
		if v, ok = l.it.next(r); !ok {
			return value{}, false
		}
	}
	l.index++
	l.prev, l.cur = l.cur, v
	return v, true
}

// peek is the next item, which stays due.
func (l *loopState) peek(r *run) (value, bool) {
	switch {
	case l.hasAfter:
		return l.after, true
	case l.it == nil:
		if l.index+1 < len(l.items) {
			return l.items[l.index+1], true
		}
		return value{}, false
	}
	v, ok := l.it.next(r)
	l.after, l.hasAfter = v, ok
	return v, ok
}

// length drains a generator to count it, as Jinja does.
func (l *loopState) length(r *run) int {
	if l.size < 0 {
		rest := r.collect(l.it)
		l.size = len(rest) + l.index + 1
		if l.hasAfter {
			l.size++
		}
		l.it = &sliceIter{items: rest}
	}
	return l.size
}

// attr is loop.NAME.
func (l *loopState) attr(r *run, name string) (value, bool) {
	switch name {
	case "index":
		return intValue(int64(l.index + 1)), true
	case "index0":
		return intValue(int64(l.index)), true
	case "first":
		return boolValue(l.index == 0), true
	case "last":
		_, more := l.peek(r)
		return boolValue(!more), true
	case "length":
		return intValue(int64(l.length(r))), true
	case "revindex":
		return intValue(int64(l.length(r) - l.index)), true
	case "revindex0":
		return intValue(int64(l.length(r) - l.index - 1)), true
	case "depth":
		return intValue(1), true
	case "depth0":
		return intValue(0), true
	case "previtem":
		if l.index == 0 {
			return undefText("there is no previous item"), true
		}
		return l.prev, true
	case "nextitem":
		if v, ok := l.peek(r); ok {
			return v, true
		}
		return undefText("there is no next item"), true
	case "cycle":
		return funcValue("cycle", l.cycle), true
	case "changed":
		return funcValue("changed", l.changed), true
	}
	return value{}, false
}

func (l *loopState) cycle(r *run, a *args) value {
	a.noNamed(r, "cycle")
	if len(a.pos) == 0 {
		return r.typeError("no items for cycling given")
	}
	return a.pos[l.index%len(a.pos)]
}

func (l *loopState) changed(r *run, a *args) value {
	a.noNamed(r, "changed")
	now := r.tuple(append(r.values(len(a.pos))[:0], a.pos...))
	if l.changedSet && r.equal(now, l.changedLast) {
		return boolValue(false)
	}
	l.changedLast, l.changedSet = now, true
	return boolValue(true)
}

// sliceIter yields a slice.
type sliceIter struct {
	items []value
	back  bool
}

func (s *sliceIter) next(*run) (value, bool) {
	n := len(s.items)
	if n == 0 {
		return value{}, false
	}
	if s.back {
		v := s.items[n-1]
		s.items = s.items[:n-1]
		return v, true
	}
	v := s.items[0]
	s.items = s.items[1:]
	return v, true
}

// textIter yields a string's code points.
type textIter struct{ s string }

func (t *textIter) next(*run) (value, bool) {
	if t.s == "" {
		return value{}, false
	}
	_, n := utf8.DecodeRuneInString(t.s)
	v := strValue(t.s[:n])
	t.s = t.s[n:]
	return v, true
}

// indexIter yields at(0), at(1), … at(n-1).
type indexIter struct {
	i, n int
	at   func(r *run, i int) value
}

func (x *indexIter) next(r *run) (value, bool) {
	if x.i >= x.n {
		return value{}, false
	}
	x.i++
	return x.at(r, x.i-1), true
}

// funcIter yields what a function returns until it says no.
type funcIter func(r *run) (value, bool)

func (f funcIter) next(r *run) (value, bool) { return f(r) }

func iterValue(it iterator) value { return value{k: kIter, o: it} }

// iter is Python's iter(v).
func (r *run) iter(v value) iterator {
	switch v.k {
	case kMissing, kUndef:
		return &sliceIter{}
	case kStr:
		return &textIter{v.s}
	case kList, kTuple:
		return &sliceIter{items: v.items()}
	case kDict:
		return r.iter(viewOf(v.dict(), viewKeys))
	case kView:
		return &indexIter{n: v.dict().len(), at: func(r *run, i int) value { return r.viewAt(v, i) }}
	case kRange:
		g := v.o.(*rangeObj)
		return &indexIter{n: g.len(), at: func(_ *run, i int) value { return g.at(i) }}
	case kIter:
		return v.o.(iterator)
	case kCycler:
		r.unsupported("iterating over a cycler")
	case kLoop:
		r.unsupported("iterating over loop")
	}
	r.typeError("'%s' object is not iterable", typeName(v))
	return nil
}

// collect drains an iterator.
func (r *run) collect(it iterator) []value {
	if s, ok := it.(*sliceIter); ok && !s.back {
		items := r.values(len(s.items))
		copy(items, s.items)
		s.items = nil
		return items
	}
	var items []value
	for {
		v, ok := it.next(r)
		if !ok {
			return items
		}
		r.step()
		if len(items) == cap(items) {
			grown := r.values(max(8, 2*len(items)))
			items = append(grown[:0], items...)
		}
		items = append(items, v)
	}
}

// seq is Python's list(v) without the list.
func (r *run) seq(v value) []value {
	if v.isSeq() {
		return v.items()
	}
	return r.collect(r.iter(v))
}

// length is Python's len(v).
func (r *run) length(v value) int {
	switch v.k {
	case kMissing, kUndef:
		return 0
	case kStr:
		r.work(len(v.s))
		return utf8.RuneCountInString(v.s)
	case kList, kTuple:
		return len(v.items())
	case kDict, kView:
		return v.dict().len()
	case kRange:
		return v.o.(*rangeObj).len()
	case kLoop:
		return v.o.(*loopState).length(r)
	}
	r.typeError("object of type '%s' has no len()", typeName(v))
	return 0
}
