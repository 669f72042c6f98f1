package template

import "strings"

// filterFunc is a filter: v | name(args).
type filterFunc func(r *run, v value, a *args) value

// filterByName is the table of filters; nil for what is not built. Not built of
// Jinja's own: escape, e, forceescape, safe (but at the end of a print statement),
// striptags, xmlattr, urlize, wordwrap, pprint, filesizeformat and random.
func filterByName(name string) filterFunc {
	switch name {
	case "abs":
		return filterAbs
	case "attr":
		return filterAttr
	case "batch":
		return filterBatch
	case "capitalize", "lower", "upper":
		return func(r *run, v value, a *args) value {
			a.bind(r, name, 0)
			return strValue(r.toCase(name, r.str(v)))
		}
	case "center":
		return filterCenter
	case "count", "length":
		return func(r *run, v value, a *args) value {
			a.bind(r, name, 0)
			return intValue(int64(r.length(v)))
		}
	case "d", "default":
		return filterDefault
	case "dictsort":
		return filterDictSort
	case "first":
		return filterFirst
	case "float":
		return filterFloat
	case "format":
		return filterFormat
	case "groupby":
		return filterGroupBy
	case "indent":
		return filterIndent
	case "int":
		return filterInt
	case "items":
		return filterItems
	case "join":
		return filterJoin
	case "last":
		return filterLast
	case "list":
		return filterList
	case "map":
		return filterMap
	case "max", "min":
		return func(r *run, v value, a *args) value { return r.extreme(name, v, a) }
	case "reject", "select", "rejectattr", "selectattr":
		return func(r *run, v value, a *args) value { return r.choose(name, v, a) }
	case "replace":
		return filterReplace
	case "reverse":
		return filterReverse
	case "round":
		return filterRound
	case "slice":
		return filterSlice
	case "sort":
		return filterSort
	case "string":
		return func(r *run, v value, a *args) value {
			a.bind(r, name, 0)
			return strValue(r.str(v))
		}
	case "sum":
		return filterSum
	case "title":
		return filterTitle
	case "tojson":
		return filterToJSON
	case "trim":
		return filterTrim
	case "truncate":
		return filterTruncate
	case "unique":
		return filterUnique
	case "urlencode":
		return filterURLEncode
	case "wordcount":
		return filterWordCount
	}
	return nil
}

func filterDefault(r *run, v value, a *args) value {
	p := a.bind(r, "default", 0, "default_value", "boolean")
	if v.k != kUndef && v.k != kMissing && (!r.truth(p[1]) || r.truth(v)) {
		return v
	}
	if p[0].k == kMissing {
		return strValue("")
	}
	return p[0]
}

func filterTrim(r *run, v value, a *args) value {
	p := a.bind(r, "trim", 0, "chars")
	s := r.str(v)
	switch p[0].k {
	case kMissing, kNone:
		return strValue(r.strip(s, nil, true, true))
	case kStr:
		return strValue(r.strip(s, &p[0].s, true, true))
	}
	return r.typeError("strip arg must be None or str")
}

func filterReplace(r *run, v value, a *args) value {
	p := a.bind(r, "replace", 2, "old", "new", "count")
	n := int64(-1)
	if p[2].k != kMissing && p[2].k != kNone {
		n = r.number(p[2:3], 0, -1)
	}
	return strValue(r.replace(r.str(v), r.str(p[0]), r.str(p[1]), n))
}

func filterCenter(r *run, v value, a *args) value {
	p := a.bind(r, "center", 0, "width")
	width := int64(80)
	if p[0].k != kMissing {
		width = r.number(p[:1], 0, 80)
	}
	return strValue(r.pad("center", r.str(v), width, " "))
}

// filterTitle has its own idea of a word, other than str.title.
func filterTitle(r *run, v value, a *args) value {
	a.bind(r, "title", 0)
	s := r.str(v)
	r.alloc(2 * len(s))
	b := make([]byte, 0, len(s))
	start := true
	for i, c := range s {
		if isSpace(c) || strings.ContainsRune("-({[<", c) {
			start = true
			b = append(b, string(c)...)
			continue
		}
		if start {
			b = appendUpper(b, c)
		} else {
			b = appendLower(b, s, i, c)
		}
		start = false
	}
	return strValue(string(b))
}

func filterIndent(r *run, v value, a *args) value {
	p := a.bind(r, "indent", 0, "width", "first", "blank")
	pad := strings.Repeat(" ", 4)
	switch p[0].k {
	case kMissing:
	case kStr:
		pad = p[0].s
	default:
		pad = r.repeat(strValue(" "), intValue(r.number(p[:1], 0, 4))).s
	}
	if v.k == kList {
		return r.fail("AttributeError", "'list' object has no attribute 'splitlines'")
	}
	s := r.add(v, strValue("\n")).s
	lines := strSplitlines(r, strValue(s), &args{}).items()
	r.alloc(len(s) + len(lines)*len(pad))
	var b strings.Builder
	if r.truth(p[1]) {
		b.WriteString(pad)
	}
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if l.s != "" || r.truth(p[2]) {
				b.WriteString(pad)
			}
		}
		b.WriteString(l.s)
	}
	return strValue(b.String())
}

func filterTruncate(r *run, v value, a *args) value {
	p := a.bind(r, "truncate", 0, "length", "killwords", "end", "leeway")
	size, end, leeway := int64(255), "...", int64(5)
	if p[0].k != kMissing {
		size = r.number(p[:1], 0, 255)
	}
	if p[2].k != kMissing {
		end = r.text("truncate end", p[2])
	}
	if p[3].k != kMissing && p[3].k != kNone {
		leeway = r.number(p[3:4], 0, 5)
	}
	endLen := int64(r.length(strValue(end)))
	if size < endLen || leeway < 0 {
		r.fail("AssertionError", "expected length >= %d, got %d", endLen, size)
	}
	if int64(r.length(v)) <= size+leeway {
		return v
	}
	cut := r.slice(v, none(), intValue(size-endLen), none())
	if r.truth(p[1]) {
		return r.add(cut, strValue(end))
	}
	if cut.k != kStr {
		r.fail("AttributeError", "'%s' object has no attribute 'rsplit'", typeName(cut))
	}
	if at := strings.LastIndexByte(cut.s, ' '); at >= 0 {
		cut.s = cut.s[:at]
	}
	return r.add(cut, strValue(end))
}

func filterWordCount(r *run, v value, a *args) value {
	a.bind(r, "wordcount", 0)
	s := r.str(v)
	r.work(len(s) * 4)
	n, in := int64(0), false
	for _, c := range s {
		word := c == '_' || runeIs("isalnum", c)
		if word && !in {
			n++
		}
		in = word
	}
	return intValue(n)
}

func filterFormat(r *run, v value, a *args) value {
	if len(a.named) > 0 {
		if len(a.pos) > 0 {
			r.fail("FilterArgumentError", "can't handle positional and keyword arguments at the same time")
		}
		d := r.newDict(len(a.named))
		for _, n := range a.named {
			d.set(r, strValue(n.name), n.v)
		}
		return strValue(r.percent(r.str(v), dictOf(d)))
	}
	return strValue(r.percent(r.str(v), r.tuple(append(r.values(len(a.pos))[:0], a.pos...))))
}

func filterURLEncode(r *run, v value, a *args) value {
	a.bind(r, "urlencode", 0)
	switch v.k {
	case kStr, kNone, kBool, kInt, kBig, kFloat, kNamespace, kMacro, kFunc:
		return strValue(r.urlQuote(r.str(v), "/"))
	}
	if v.k == kDict {
		v = viewOf(v.dict(), viewItems)
	}
	var parts []value
	for _, it := range r.seq(v) {
		kv := r.seq(it)
		if len(kv) != 2 {
			r.fail("ValueError", "not enough values to unpack (expected 2, got %d)", len(kv))
		}
		q := func(x value) string { return strings.ReplaceAll(r.urlQuote(r.str(x), ""), "%20", "+") }
		r.alloc(valueSize)
		parts = append(parts, strValue(q(kv[0])+"="+q(kv[1])))
	}
	return strValue(r.join("&", parts))
}

func (r *run) urlQuote(s, safe string) string {
	r.alloc(3 * len(s))
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		c := s[i]
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("_.-~"+safe, c) >= 0 {
			b = append(b, c)
			continue
		}
		b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
	}
	return string(b)
}
