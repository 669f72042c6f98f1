package template

import (
	"strings"
	"unicode/utf8"
)

// strMethod returns a method of str, or nil.
func strMethod(name string) method {
	switch name {
	case "strip":
		return strStrip
	case "lstrip":
		return strLstrip
	case "rstrip":
		return strRstrip
	case "split":
		return strSplit
	case "rsplit":
		return strRsplit
	case "splitlines":
		return strSplitlines
	case "startswith":
		return strStartswith
	case "endswith":
		return strEndswith
	case "replace":
		return strReplace
	case "join":
		return strJoin
	case "upper", "lower", "title", "capitalize", "swapcase":
		return caseMethod(name)
	case "find", "rfind", "index", "rindex", "count":
		return findMethod(name)
	case "partition", "rpartition":
		return partitionMethod(name)
	case "removeprefix", "removesuffix":
		return removeMethod(name)
	case "center", "ljust", "rjust", "zfill":
		return padMethod(name)
	case "format":
		return func(r *run, self value, a *args) value { return strValue(r.format(self.s, a)) }
	case "isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isspace", "isupper", "islower", "istitle", "isascii":
		return func(r *run, self value, a *args) value {
			a.exactly(r, name, 0, 0)
			r.work(len(self.s))
			return boolValue(stringIs(name, self.s))
		}
	}
	return nil
}

// text takes a string argument.
func (r *run) text(fn string, v value) string {
	if v.k != kStr {
		r.typeError("%s arg must be str, not %s", fn, typeName(v))
	}
	return v.s
}

// number takes an integer argument; lists of arguments may be shorter.
func (r *run) number(p []value, i int, missing int64) int64 {
	if i >= len(p) {
		return missing
	}
	switch p[i].k {
	case kBool, kInt:
		return p[i].n
	case kBig:
		return r.fail("OverflowError", "Python int too large to convert to C ssize_t").n
	case kUndef, kMissing:
		return r.typeError("'Undefined' object cannot be interpreted as an integer").n
	}
	return r.typeError("'%s' object cannot be interpreted as an integer", typeName(p[i])).n
}

func strStrip(r *run, self value, a *args) value  { return r.stripped(self, a, true, true) }
func strLstrip(r *run, self value, a *args) value { return r.stripped(self, a, true, false) }
func strRstrip(r *run, self value, a *args) value { return r.stripped(self, a, false, true) }

func (r *run) stripped(self value, a *args, left, right bool) value {
	p := a.exactly(r, "strip", 0, 1)
	if len(p) == 0 || p[0].k == kNone {
		return strValue(r.strip(self.s, nil, left, right))
	}
	if p[0].k != kStr {
		r.typeError("strip arg must be None or str")
	}
	return strValue(r.strip(self.s, &p[0].s, left, right))
}

// strip cuts white space, or the code points of *set, off the ends.
func (r *run) strip(s string, set *string, left, right bool) string {
	n := len(s)
	if set != nil {
		r.work(len(*set))
		if left {
			s = strings.TrimLeft(s, *set)
		}
		if right {
			s = strings.TrimRight(s, *set)
		}
		r.work((n - len(s)) * min(len(*set)+1, workUnit))
		return s
	}
	if left {
		s = strings.TrimLeftFunc(s, isSpace)
	}
	if right {
		s = strings.TrimRightFunc(s, isSpace)
	}
	r.work(n - len(s))
	return s
}

// region is the part of a string between two code point bounds; ok is false when
// nothing, not even the empty string, can be found there. Offset is of its start.
func (r *run) region(s string, p []value) (part string, offset int, ok bool) {
	if len(p) == 0 {
		return s, 0, true
	}
	n := int64(r.length(strValue(s)))
	bound := func(i int, missing int64) int64 {
		if i >= len(p) || p[i].k == kNone {
			return missing
		}
		if p[i].k == kBig {
			return r.sliceBound(p[i], missing)
		}
		if !p[i].isInt() {
			r.typeError("slice indices must be integers or None or have an __index__ method")
		}
		b := p[i].n
		if b < 0 {
			b = max(b+n, 0)
		}
		return b
	}
	from, to := bound(0, 0), min(bound(1, n), n)
	if from > n || from > to {
		return "", 0, false
	}
	at := runeOffset(s, int(from))
	return s[at : at+runeOffset(s[at:], int(to-from))], int(from), true
}

func strStartswith(r *run, self value, a *args) value {
	return r.affix("startswith", strings.HasPrefix, self, a)
}

func strEndswith(r *run, self value, a *args) value {
	return r.affix("endswith", strings.HasSuffix, self, a)
}

func (r *run) affix(name string, has func(s, affix string) bool, self value, a *args) value {
	p := a.exactly(r, name, 1, 3)
	s, _, ok := r.region(self.s, p[1:])
	switch p[0].k {
	case kStr:
		r.work(len(p[0].s))
		return boolValue(ok && has(s, p[0].s))
	case kTuple:
		for _, x := range p[0].items() {
			r.work(16)
			if x.k != kStr {
				r.typeError("tuple for %s must only contain str, not %s", name, typeName(x))
			}
			if ok && has(s, x.s) {
				return boolValue(true)
			}
		}
		return boolValue(false)
	}
	return r.typeError("%s first arg must be str or a tuple of str, not %s", name, typeName(p[0]))
}

func strReplace(r *run, self value, a *args) value {
	p := a.exactly(r, "replace", 2, 3)
	old, to := r.text("replace() argument 1", p[0]), r.text("replace() argument 2", p[1])
	return strValue(r.replace(self.s, old, to, r.number(p, 2, -1)))
}

// replace is str.replace, charged for the result.
func (r *run) replace(s, old, to string, most int64) string {
	r.work(len(s))
	n := int64(strings.Count(s, old))
	if most >= 0 {
		n = min(n, most)
	}
	if n == 0 {
		return s
	}
	if len(to) > 0 && n > int64(r.mem/len(to)) {
		r.limit("too much memory")
	}
	r.alloc(len(s) + int(n)*len(to))
	return strings.Replace(s, old, to, int(n))
}

func caseMethod(name string) method {
	return func(r *run, self value, a *args) value {
		a.exactly(r, name, 0, 0)
		return strValue(r.toCase(name, self.s))
	}
}

func findMethod(name string) method {
	return func(r *run, self value, a *args) value {
		p := a.exactly(r, name, 1, 3)
		sub := r.text(name+"() argument 1", p[0])
		s, offset, ok := r.region(self.s, p[1:])
		r.work(len(s))
		if name == "count" {
			if !ok {
				return intValue(0)
			}
			return intValue(int64(strings.Count(s, sub)))
		}
		at := -1
		if ok {
			if name[0] == 'r' {
				at = strings.LastIndex(s, sub)
			} else {
				at = strings.Index(s, sub)
			}
		}
		if at < 0 {
			if strings.HasSuffix(name, "index") {
				return r.fail("ValueError", "substring not found")
			}
			return intValue(-1)
		}
		return intValue(int64(offset + utf8.RuneCountInString(s[:at])))
	}
}

func removeMethod(name string) method {
	return func(r *run, self value, a *args) value {
		x := r.text(name+"() argument", a.exactly(r, name, 1, 1)[0])
		if name == "removeprefix" {
			return strValue(strings.TrimPrefix(self.s, x))
		}
		return strValue(strings.TrimSuffix(self.s, x))
	}
}

func padMethod(name string) method {
	return func(r *run, self value, a *args) value {
		p := a.exactly(r, name, 1, 2)
		if name == "zfill" && len(p) == 2 {
			r.typeError("str.zfill() takes exactly one argument (2 given)")
		}
		width := r.number(p, 0, 0)
		fill := " "
		if len(p) == 2 {
			if p[1].k != kStr || utf8.RuneCountInString(p[1].s) != 1 {
				r.typeError("The fill character must be exactly one character long")
			}
			fill = p[1].s
		}
		return strValue(r.pad(name, self.s, width, fill))
	}
}

// pad is center, ljust, rjust and zfill.
func (r *run) pad(name, s string, width int64, fill string) string {
	n := width - int64(r.length(strValue(s)))
	if n <= 0 {
		return s
	}
	if n > int64(r.mem) {
		r.limit("too much memory")
	}
	r.alloc(int(n)*len(fill) + len(s))
	switch name {
	case "ljust":
		return s + strings.Repeat(fill, int(n))
	case "rjust":
		return strings.Repeat(fill, int(n)) + s
	case "zfill":
		if s != "" && (s[0] == '+' || s[0] == '-') {
			return s[:1] + strings.Repeat("0", int(n)) + s[1:]
		}
		return strings.Repeat("0", int(n)) + s
	}
	left := n/2 + n&width&1
	return strings.Repeat(fill, int(left)) + s + strings.Repeat(fill, int(n-left))
}
