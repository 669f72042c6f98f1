package template

import (
	"math"
	"strings"
	"unicode/utf8"
)

// splitArgs binds sep and maxsplit.
func (r *run) splitArgs(fn string, a *args) (sep string, given bool, most int) {
	p := a.bind(r, fn, 0, "sep", "maxsplit")
	if p[0].k != kMissing && p[0].k != kNone {
		if p[0].k != kStr {
			r.typeError("must be str or None, not %s", typeName(p[0]))
		}
		if p[0].s == "" {
			r.fail("ValueError", "empty separator")
		}
		sep, given = p[0].s, true
	}
	most = -1
	if p[1].k != kMissing {
		most = int(max(-1, min(r.number(p[1:2], 0, -1), math.MaxInt32)))
	}
	return sep, given, most
}

func strSplit(r *run, self value, a *args) value {
	sep, given, most := r.splitArgs("split", a)
	s := self.s
	r.work(len(s))
	if !given {
		return r.list(r.fields(s, most))
	}
	n := strings.Count(s, sep)
	if most >= 0 {
		n = min(n, most)
	}
	items := r.values(n + 1)
	for i := range n {
		at := strings.Index(s, sep)
		items[i] = strValue(s[:at])
		s = s[at+len(sep):]
	}
	items[n] = strValue(s)
	return r.list(items)
}

// fields splits at white space.
func (r *run) fields(s string, most int) []value {
	var items []value
	s = strings.TrimLeftFunc(s, isSpace)
	for s != "" {
		at := -1
		if most < 0 || len(items) < most {
			at = strings.IndexFunc(s, isSpace)
		} else {
			s = strings.TrimRightFunc(s, isSpace)
		}
		if at < 0 {
			at = len(s)
		}
		r.alloc(valueSize)
		items = append(items, strValue(s[:at]))
		s = strings.TrimLeftFunc(s[at:], isSpace)
	}
	return items
}

func strRsplit(r *run, self value, a *args) value {
	sep, given, most := r.splitArgs("rsplit", a)
	s := self.s
	r.work(len(s))
	var items []value
	if !given {
		items = r.rfields(s, most)
	} else {
		for most < 0 || len(items) < most {
			at := strings.LastIndex(s, sep)
			if at < 0 {
				break
			}
			r.alloc(valueSize)
			items = append(items, strValue(s[at+len(sep):]))
			s = s[:at]
		}
		items = append(items, strValue(s))
	}
	for i, j := 0, len(items)-1; i < j; i, j = i+1, j-1 {
		items[i], items[j] = items[j], items[i]
	}
	return r.list(items)
}

func (r *run) rfields(s string, most int) []value {
	var items []value
	s = strings.TrimRightFunc(s, isSpace)
	for s != "" {
		at := -1
		if most < 0 || len(items) < most {
			at = strings.LastIndexFunc(s, isSpace)
		} else {
			s = strings.TrimLeftFunc(s, isSpace)
		}
		from := 0
		if at >= 0 {
			_, n := utf8.DecodeRuneInString(s[at:])
			from = at + n
		}
		r.alloc(valueSize)
		items = append(items, strValue(s[from:]))
		s = strings.TrimRightFunc(s[:max(at, 0)], isSpace)
	}
	return items
}

// isLineEnd is where str.splitlines cuts.
func isLineEnd(c rune) bool {
	return c >= 0x0a && c <= 0x0d || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

func strSplitlines(r *run, self value, a *args) value {
	p := a.bind(r, "splitlines", 0, "keepends")
	keep := r.truth(p[0])
	s := self.s
	r.work(len(s))
	var items []value
	for s != "" {
		at := strings.IndexFunc(s, isLineEnd)
		end, next := len(s), len(s)
		if at >= 0 {
			_, n := utf8.DecodeRuneInString(s[at:])
			if strings.HasPrefix(s[at:], "\r\n") {
				n = 2
			}
			end, next = at, at+n
		}
		if keep {
			end = next
		}
		r.alloc(valueSize)
		items = append(items, strValue(s[:end]))
		s = s[next:]
	}
	return r.list(items)
}

func partitionMethod(name string) method {
	return func(r *run, self value, a *args) value {
		sep := r.text(name+"() argument 1", a.exactly(r, name, 1, 1)[0])
		if sep == "" {
			r.fail("ValueError", "empty separator")
		}
		r.work(len(self.s))
		items := r.values(3)
		at := strings.Index(self.s, sep)
		if name[0] == 'r' {
			at = strings.LastIndex(self.s, sep)
		}
		empty := strValue("")
		switch {
		case at >= 0:
			items[0], items[1], items[2] = strValue(self.s[:at]), strValue(sep), strValue(self.s[at+len(sep):])
		case name[0] == 'r':
			items[0], items[1], items[2] = empty, empty, self
		default:
			items[0], items[1], items[2] = self, empty, empty
		}
		return r.tuple(items)
	}
}

func strJoin(r *run, self value, a *args) value {
	v := a.exactly(r, "join", 1, 1)[0]
	switch v.k {
	case kUndef, kMissing, kStr, kList, kTuple, kDict, kView, kIter, kRange:
	default:
		return r.typeError("can only join an iterable")
	}
	items := r.seq(v)
	for i, x := range items {
		if x.k != kStr {
			r.typeError("sequence item %d: expected str instance, %s found", i, typeName(x))
		}
	}
	return strValue(r.join(self.s, items))
}

// join joins strings.
func (r *run) join(sep string, items []value) string {
	n := 0
	for i := range items {
		n += len(items[i].s) + len(sep)
		if n > r.mem {
			r.limit("too much memory")
		}
	}
	r.alloc(n)
	var b strings.Builder
	b.Grow(n)
	for i := range items {
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(items[i].s)
	}
	return b.String()
}
