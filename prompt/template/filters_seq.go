package template

import (
	"slices"
	"strconv"
	"strings"
)

// isSized reports values that reversed() and indexing know.
func isSized(v value) bool {
	switch v.k {
	case kStr, kList, kTuple, kDict, kView, kRange, kUndef, kMissing:
		return true
	}
	return false
}

func filterFirst(r *run, v value, a *args) value {
	a.bind(r, "first", 0)
	if x, ok := r.iter(v).next(r); ok {
		return x
	}
	return undefText("No first item, sequence was empty.")
}

func filterLast(r *run, v value, a *args) value {
	a.bind(r, "last", 0)
	if !isSized(v) {
		return r.typeError("'%s' object is not reversible", typeName(v))
	}
	if x, ok := r.reversed(v).next(r); ok {
		return x
	}
	return undefText("No last item, sequence was empty.")
}

// reversed is Python's reversed(v) of a sized value.
func (r *run) reversed(v value) iterator {
	switch v.k {
	case kList, kTuple:
		return &sliceIter{items: v.items(), back: true}
	case kStr:
		s := v.s
		return funcIter(func(r *run) (value, bool) {
			x, ok := r.charAt(s, -1)
			s = s[:len(s)-len(x.s)]
			return x, ok
		})
	case kDict:
		v = viewOf(v.dict(), viewKeys)
	}
	n := r.length(v)
	if v.k == kView {
		return &indexIter{n: n, at: func(r *run, i int) value { return r.viewAt(v, n-1-i) }}
	}
	return &indexIter{n: n, at: func(r *run, i int) value {
		x, _ := r.index(v, int64(n-1-i))
		return x
	}}
}

func filterReverse(r *run, v value, a *args) value {
	a.bind(r, "reverse", 0)
	if v.k == kStr {
		return r.slice(v, none(), none(), intValue(-1))
	}
	if isSized(v) {
		return iterValue(r.reversed(v))
	}
	if v.k != kIter {
		r.fail("FilterArgumentError", "argument must be iterable")
	}
	items := r.seq(v)
	slices.Reverse(items)
	return r.list(items)
}

func filterList(r *run, v value, a *args) value {
	a.bind(r, "list", 0)
	if v.k == kList {
		return v // never changed, so it needs no copy
	}
	return r.list(r.seq(v))
}

func filterItems(r *run, v value, a *args) value {
	a.bind(r, "items", 0)
	it := funcIter(func(r *run) (value, bool) {
		if v.k == kUndef || v.k == kMissing {
			return value{}, false
		}
		r.typeError("Can only get item pairs from a mapping.")
		return value{}, false
	})
	if v.k == kDict {
		return iterValue(r.iter(viewOf(v.dict(), viewItems)))
	}
	return iterValue(it)
}

func filterJoin(r *run, v value, a *args) value {
	p := a.bind(r, "join", 0, "d", "attribute")
	get := r.getter(p[1], none())
	var parts []value
	it := r.iter(v)
	for {
		x, ok := it.next(r)
		if !ok {
			break
		}
		r.step()
		r.alloc(valueSize)
		parts = append(parts, strValue(r.str(get(x))))
	}
	return strValue(r.join(r.str(p[0]), parts))
}

// getter reads an attribute path such as "function.name" or "items.0".
func (r *run) getter(attr, def value) func(value) value {
	var path []value
	switch attr.k {
	case kMissing, kNone:
		return func(v value) value { return v }
	case kStr:
		for part := range strings.SplitSeq(attr.s, ".") {
			path = append(path, pathPart(part))
		}
	default:
		path = []value{attr}
	}
	return func(v value) value {
		for _, p := range path {
			r.step()
			v = r.getitem(v, p)
			if (v.k == kUndef || v.k == kMissing) && def.k != kMissing && def.k != kNone {
				v = def
			}
		}
		return v
	}
}

func pathPart(s string) value {
	if s != "" && stringIs("isdigit", s) {
		if n, err := strconv.ParseInt(asciiDigits(s), 10, 64); err == nil {
			return intValue(n)
		}
	}
	return strValue(s)
}

func (r *run) ignoreCase(v value) value {
	if v.k == kStr {
		return strValue(r.toCase("lower", v.s))
	}
	return v
}

// keyGetter is getter with lower case unless case counts.
func (r *run) keyGetter(attr, def, caseSensitive value) func(value) value {
	get := r.getter(attr, def)
	if r.truth(caseSensitive) {
		return get
	}
	return func(v value) value { return r.ignoreCase(get(v)) }
}

// sortOrder is the order of sorted(): by < alone.
func (r *run) sortOrder(a, b value) int {
	r.step()
	c, _, comparable := r.threeWay("<", a, b)
	if !comparable {
		r.typeError("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
	}
	return c
}

type keyed struct{ key, v value }

func (r *run) sorted(items []value, key func(value) value, reverse bool) []value {
	r.alloc(len(items) * 2 * valueSize)
	ks := make([]keyed, len(items))
	for i, v := range items {
		ks[i] = keyed{key(v), v}
	}
	slices.SortStableFunc(ks, func(x, y keyed) int {
		if reverse {
			return r.sortOrder(y.key, x.key)
		}
		return r.sortOrder(x.key, y.key)
	})
	out := r.values(len(items))
	for i := range ks {
		out[i] = ks[i].v
	}
	return out
}

func filterSort(r *run, v value, a *args) value {
	p := a.bind(r, "sort", 0, "reverse", "case_sensitive", "attribute")
	key := r.keyGetter(p[2], none(), p[1])
	if p[2].k == kStr && strings.Contains(p[2].s, ",") {
		var gets []func(value) value
		for attr := range strings.SplitSeq(p[2].s, ",") {
			gets = append(gets, r.keyGetter(strValue(attr), none(), p[1]))
		}
		key = func(v value) value {
			keys := r.values(len(gets))
			for i, g := range gets {
				keys[i] = g(v)
			}
			return r.list(keys)
		}
	}
	return r.list(r.sorted(r.seq(v), key, r.truth(p[0])))
}

func filterDictSort(r *run, v value, a *args) value {
	p := a.bind(r, "dictsort", 0, "case_sensitive", "by", "reverse")
	at := 0
	if p[1].k != kMissing && (p[1].k != kStr || p[1].s != "key") {
		if p[1].k != kStr || p[1].s != "value" {
			r.fail("FilterArgumentError", "You can only sort by either \"key\" or \"value\"")
		}
		at = 1
	}
	if v.k != kDict {
		if v.k == kUndef || v.k == kMissing {
			return r.failUndef(v)
		}
		return r.fail("AttributeError", "'%s' object has no attribute 'items'", typeName(v))
	}
	key := func(pair value) value {
		if r.truth(p[0]) {
			return pair.items()[at]
		}
		return r.ignoreCase(pair.items()[at])
	}
	return r.list(r.sorted(r.seq(viewOf(v.dict(), viewItems)), key, r.truth(p[2])))
}

func filterUnique(r *run, v value, a *args) value {
	p := a.bind(r, "unique", 0, "case_sensitive", "attribute")
	key := r.keyGetter(p[1], none(), p[0])
	seen := r.newDict(0)
	var it iterator
	return iterValue(funcIter(func(r *run) (value, bool) {
		if it == nil {
			it = r.iter(v)
		}
		for {
			x, ok := it.next(r)
			if !ok {
				return value{}, false
			}
			r.step()
			k := key(x)
			if _, dup := seen.get(r, k); !dup {
				seen.set(r, k, none())
				return x, true
			}
		}
	}))
}

func (r *run) extreme(name string, v value, a *args) value {
	p := a.bind(r, name, 0, "case_sensitive", "attribute")
	it := r.iter(v)
	best, ok := it.next(r)
	if !ok {
		return undefText("No aggregated item, sequence was empty.")
	}
	key := r.keyGetter(p[1], none(), p[0])
	bestKey := key(best)
	for {
		x, more := it.next(r)
		if !more {
			return best
		}
		r.step()
		k := key(x)
		if name == "max" && r.order(">", k, bestKey) || name == "min" && r.order("<", k, bestKey) {
			best, bestKey = x, k
		}
	}
}

func filterSum(r *run, v value, a *args) value {
	p := a.bind(r, "sum", 0, "attribute", "start")
	get := r.getter(p[0], none())
	acc := p[1]
	if acc.k == kMissing {
		acc = intValue(0)
	}
	it := r.iter(v)
	if acc.k == kStr {
		return r.typeError("sum() can't sum strings [use ''.join(seq) instead]")
	}
	for {
		x, ok := it.next(r)
		if !ok {
			return acc
		}
		r.step()
		acc = r.binary("+", acc, get(x))
	}
}

func filterBatch(r *run, v value, a *args) value {
	p := a.bind(r, "batch", 1, "linecount", "fill_with")
	var it iterator
	var pending []value
	return iterValue(funcIter(func(r *run) (value, bool) {
		if it == nil {
			it = r.iter(v)
		}
		for {
			x, ok := it.next(r)
			if !ok {
				break
			}
			r.step()
			full := r.equal(intValue(int64(len(pending))), p[0])
			r.alloc(valueSize)
			if full {
				row := pending
				pending = []value{x}
				return r.list(row), true
			}
			pending = append(pending, x)
		}
		if len(pending) == 0 {
			return value{}, false
		}
		row := pending
		pending = nil
		if p[1].k != kMissing && p[1].k != kNone {
			for int64(len(row)) < r.number(p[:1], 0, 0) {
				r.alloc(valueSize)
				row = append(row, p[1])
			}
		}
		return r.list(row), true
	}))
}

func filterSlice(r *run, v value, a *args) value {
	p := a.bind(r, "slice", 1, "slices", "fill_with")
	var seq []value
	i, offset, started := int64(0), int64(0), false
	return iterValue(funcIter(func(r *run) (value, bool) {
		if !started {
			seq, started = r.seq(v), true
		}
		n := r.number(p[:1], 0, 0)
		if n == 0 {
			r.fail("ZeroDivisionError", "integer division or modulo by zero")
		}
		if i >= n {
			return value{}, false
		}
		r.step()
		per, extra := int64(len(seq))/n, int64(len(seq))%n
		start := offset + i*per
		if i < extra {
			offset++
		}
		end := offset + (i+1)*per
		row := append(r.values(int(end-start) + 1)[:0], seq[start:end]...)
		if p[1].k != kMissing && p[1].k != kNone && i >= extra {
			row = append(row, p[1])
		}
		i++
		return r.list(row), true
	}))
}

func filterGroupBy(r *run, v value, a *args) value {
	p := a.bind(r, "groupby", 1, "attribute", "default", "case_sensitive")
	key := r.keyGetter(p[0], p[1], p[2])
	real := r.getter(p[0], p[1])
	items := r.sorted(r.seq(v), key, false)
	var groups []value
	for i := 0; i < len(items); {
		k := key(items[i])
		j := i + 1
		for j < len(items) && r.equal(key(items[j]), k) {
			j++
		}
		pair := r.values(2)
		pair[0], pair[1] = real(items[i]), r.list(items[i:j:j])
		r.alloc(valueSize)
		groups = append(groups, value{k: kTuple, o: &list{items: pair, group: true}})
		i = j
	}
	return r.list(groups)
}

func filterAttr(r *run, v value, a *args) value {
	p := a.bind(r, "attr", 1, "name")
	name := r.text("attribute name", p[0])
	switch v.k {
	case kUndef, kMissing:
		return r.failUndef(v)
	case kNamespace, kLoop:
		return r.getattr(v, name)
	}
	if x, ok := r.attribute(v, name); ok {
		return x
	}
	return undefAttr(v, name)
}

// filterMap applies an attribute path or a filter to each item, lazily.
func filterMap(r *run, v value, a *args) value {
	pos := append(r.values(len(a.pos))[:0], a.pos...)
	own := args{pos: pos, named: slices.Clone(a.named)}
	if !r.truth(v) {
		return iterValue(&sliceIter{})
	}
	var it iterator
	var apply func(value) value
	return iterValue(funcIter(func(r *run) (value, bool) {
		if it == nil {
			apply = r.mapper(&own)
			it = r.iter(v)
		}
		x, ok := it.next(r)
		if !ok {
			return value{}, false
		}
		r.step()
		return apply(x), true
	}))
}

func (r *run) mapper(a *args) func(value) value {
	if attr, ok := a.take("attribute", false); ok && len(a.pos) == 0 {
		def, _ := a.take("default", false)
		for _, n := range a.named {
			if n.name != "attribute" && n.name != "default" {
				r.fail("FilterArgumentError", "Unexpected keyword argument '%s'", n.name)
			}
		}
		return r.getter(attr, def)
	}
	if len(a.pos) == 0 {
		r.fail("FilterArgumentError", "map requires a filter argument")
	}
	f := filterFunc(nil)
	if a.pos[0].k == kStr {
		f = filterByName(a.pos[0].s)
	}
	if f == nil {
		r.noSuch("filter", a.pos[0])
	}
	rest := args{pos: a.pos[1:], named: a.named}
	return func(v value) value {
		call := rest
		return f(r, v, &call)
	}
}

// noSuch fails for a filter or test that is named at run time.
func (r *run) noSuch(what string, name value) {
	switch r.str(name) {
	case "e", "escape", "forceescape", "safe", "striptags", "xmlattr", "urlize", "wordwrap", "pprint", "filesizeformat", "random":
		r.unsupported("the filter " + r.str(name))
	}
	r.fail("TemplateRuntimeError", "No %s named %s.", what, r.repr(name))
}

// choose is select, reject, selectattr and rejectattr, lazily.
func (r *run) choose(name string, v value, a *args) value {
	pos := append(r.values(len(a.pos))[:0], a.pos...)
	own := args{pos: pos, named: slices.Clone(a.named)}
	if !r.truth(v) {
		return iterValue(&sliceIter{})
	}
	want := strings.HasPrefix(name, "select")
	var it iterator
	var keep func(value) bool
	return iterValue(funcIter(func(r *run) (value, bool) {
		if it == nil {
			keep = r.chooser(&own, strings.HasSuffix(name, "attr"))
			it = r.iter(v)
		}
		for {
			x, ok := it.next(r)
			if !ok {
				return value{}, false
			}
			r.step()
			if keep(x) == want {
				return x, true
			}
		}
	}))
}

func (r *run) chooser(a *args, byAttr bool) func(value) bool {
	get := func(v value) value { return v }
	pos := a.pos
	if byAttr {
		if len(pos) == 0 {
			r.fail("FilterArgumentError", "Missing parameter for attribute name")
		}
		get, pos = r.getter(pos[0], none()), pos[1:]
	}
	if len(pos) == 0 {
		return func(v value) bool { return r.truth(get(v)) }
	}
	t := testFunc(nil)
	if pos[0].k == kStr {
		t = testByName(pos[0].s)
	}
	if t == nil {
		r.noSuch("test", pos[0])
	}
	rest := args{pos: pos[1:], named: a.named}
	return func(v value) bool {
		call := rest
		return t(r, get(v), &call)
	}
}
