package template

import (
	"math"
	"strings"
	"unicode"
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

// stringIs is str.isdigit and its relatives.
func stringIs(name, s string) bool {
	switch name {
	case "isascii":
		for i := range len(s) {
			if s[i] >= utf8.RuneSelf {
				return false
			}
		}
		return true
	case "isupper":
		return casedAs(s, unicode.IsUpper, unicode.IsLower)
	case "islower":
		return casedAs(s, isLower, unicode.IsUpper)
	case "istitle":
		return isTitle(s)
	}
	for _, c := range s {
		if !runeIs(name, c) {
			return false
		}
	}
	return s != ""
}

// isLower is Unicode's Lowercase, which has more than the letters of class Ll.
func isLower(c rune) bool { return unicode.IsLower(c) || unicode.Is(unicode.Other_Lowercase, c) }

func runeIs(name string, c rune) bool {
	switch name {
	case "isspace":
		return isSpace(c)
	case "isalpha":
		return unicode.IsLetter(c)
	case "isdecimal":
		return unicode.Is(unicode.Nd, c)
	case "isdigit":
		return unicode.Is(unicode.Nd, c) || isSuperDigit(c)
	case "isnumeric":
		return unicode.IsNumber(c)
	default:
		return unicode.IsLetter(c) || unicode.IsNumber(c)
	}
}

// isSuperDigit: Numeric_Type=Digit of the superscripts and circled digits in use.
func isSuperDigit(c rune) bool {
	switch {
	case c == 0xb2, c == 0xb3, c == 0xb9, c == 0x2070, c >= 0x2074 && c <= 0x2079, c >= 0x2080 && c <= 0x2089:
		return true
	case c >= 0x2460 && c <= 0x2468, c >= 0x2474 && c <= 0x247c, c >= 0x2488 && c <= 0x2490, c == 0x24ea:
		return true
	case c >= 0x24f5 && c <= 0x24fd, c == 0x24ff, c >= 0x2776 && c <= 0x277e, c >= 0x2780 && c <= 0x2788, c >= 0x278a && c <= 0x2792:
		return true
	case c >= 0x1369 && c <= 0x1371, c == 0x19da, c >= 0x10a40 && c <= 0x10a43, c >= 0x10e60 && c <= 0x10e68:
		return true
	case c >= 0x11052 && c <= 0x1105a, c >= 0x1f100 && c <= 0x1f10a:
		return true
	}
	return false
}

func casedAs(s string, want, other func(rune) bool) bool {
	seen := false
	for _, c := range s {
		if other(c) || unicode.IsTitle(c) {
			return false
		}
		seen = seen || want(c)
	}
	return seen
}

func isTitle(s string) bool {
	seen, inWord := false, false
	for _, c := range s {
		switch {
		case unicode.IsUpper(c) || unicode.IsTitle(c):
			if inWord {
				return false
			}
			seen, inWord = true, true
		case isLower(c):
			if !inWord {
				return false
			}
			seen = true
		default:
			inWord = false
		}
	}
	return seen
}
