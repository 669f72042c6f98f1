package template

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// method is a bound method's code.
type method func(r *run, self value, a *args) value

// method returns a method of a value, or nil: then getattr decides.
func (r *run) method(v value, name string) method {
	switch v.k {
	case kStr:
		return strMethod(name)
	case kDict:
		return dictMethod(name)
	case kList, kTuple:
		return listMethod(v.k, name)
	}
	return nil
}

// getattr is v.name in the sandbox: an attribute, else an item.
func (r *run) getattr(v value, name string) value {
	switch v.k {
	case kUndef, kMissing:
		if isDunder(name) {
			return undefUnsafe(v, name)
		}
		return r.failUndef(v)
	case kDict:
		d := v.dict()
		if i := d.find(name); i >= 0 && !dictHas(name) {
			return d.entries[i].val
		}
	case kNamespace:
		if x, ok := v.dict().str(name); ok {
			if strings.HasPrefix(name, "_") {
				return undefUnsafe(v, name)
			}
			return x
		}
		return undefAttr(v, name)
	case kLoop:
		if x, ok := v.o.(*loopState).attr(r, name); ok {
			return x
		}
	}
	if x, ok := r.attribute(v, name); ok {
		return x
	}
	if v.k == kDict {
		if x, ok := v.dict().str(name); ok {
			return x
		}
	}
	return undefAttr(v, name)
}

// dictHas reports whether a dict has an attribute of its own of that name, which
// then wins over a key.
func dictHas(name string) bool {
	return dictMethod(name) != nil || mutator(kDict, name) || name == "fromkeys" || isDunder(name)
}

// attribute is Python's getattr, with the sandbox's view of what is safe.
func (r *run) attribute(v value, name string) (value, bool) {
	if m := r.method(v, name); m != nil {
		return funcValue(name, func(r *run, a *args) value { return m(r, v, a) }), true
	}
	if isDunder(name) || mutator(v.k, name) {
		return undefUnsafe(v, name), true
	}
	switch v.k {
	case kBool, kInt, kBig, kFloat:
		return r.numberAttr(v, name)
	case kRange:
		g := v.o.(*rangeObj)
		switch name {
		case "start":
			return intValue(g.start), true
		case "stop":
			return intValue(g.stop), true
		case "step":
			return intValue(g.step), true
		}
	case kTuple:
		if v.o.(*list).group && name == "grouper" {
			return v.items()[0], true
		}
		if v.o.(*list).group && name == "list" {
			return v.items()[1], true
		}
	case kMacro:
		return r.macroAttr(v.o.(*macro).def, name)
	case kCycler:
		return v.o.(*cycler).attr(name)
	case kJoiner:
		return v.o.(*joiner).attr(name)
	}
	if pythonAttr(v.k, name) {
		r.unsupported("the attribute '" + name + "' of " + typeName(v))
	}
	return value{}, false
}

func (r *run) numberAttr(v value, name string) (value, bool) {
	switch name {
	case "real":
		return r.sign("+", v), true
	case "imag":
		if v.k == kFloat {
			return floatValue(0), true
		}
		return intValue(0), true
	case "is_integer":
		if v.k == kFloat {
			f := v.float()
			return funcValue(name, func(*run, *args) value {
				return boolValue(f == math.Floor(f) && !math.IsInf(f, 0))
			}), true
		}
	case "bit_length":
		if v.k != kFloat {
			n := int64(toBig(v).BitLen())
			return funcValue(name, func(*run, *args) value { return intValue(n) }), true
		}
	}
	if pythonAttr(v.k, name) {
		r.unsupported("the attribute '" + name + "' of " + typeName(v))
	}
	return value{}, false
}

func (r *run) macroAttr(d *macroDef, name string) (value, bool) {
	switch name {
	case "name":
		if d.anonymous {
			return none(), true
		}
		return strValue(d.name), true
	case "arguments":
		names := r.values(len(d.params))
		for i, p := range d.params {
			names[i] = strValue(p.name)
		}
		return r.tuple(names), true
	case "catch_kwargs":
		return boolValue(d.hasKw), true
	case "catch_varargs":
		return boolValue(d.hasVar), true
	case "caller":
		return boolValue(d.hasCaller), true
	case "explicit_caller":
		return boolValue(d.explicitCaller), true
	}
	return value{}, false
}

// mutator reports methods that the immutable sandbox hides.
func mutator(k kind, name string) bool {
	switch name {
	case "clear", "pop":
		return k == kDict || k == kList
	case "popitem", "setdefault", "update":
		return k == kDict
	case "append", "reverse", "insert", "sort", "extend", "remove":
		return k == kList
	}
	return false
}

// isDunder reports names that every Python object has and the sandbox hides.
func isDunder(name string) bool {
	if !strings.HasPrefix(name, "__") || !strings.HasSuffix(name, "__") {
		return false
	}
	switch name {
	case "__class__", "__init__", "__doc__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__",
		"__repr__", "__str__", "__dir__", "__format__", "__getattribute__", "__setattr__", "__delattr__", "__new__",
		"__reduce__", "__reduce_ex__", "__sizeof__", "__subclasshook__", "__init_subclass__":
		return true
	}
	return false
}

// pythonAttr reports attributes that Python has and this package does not build.
func pythonAttr(k kind, name string) bool {
	switch k {
	case kStr:
		return refusedMethod(name)
	case kDict:
		return name == "fromkeys"
	case kRange:
		return name == "index" || name == "count"
	case kView:
		return name == "mapping" || name == "isdisjoint"
	case kBool, kInt, kBig, kFloat:
		switch name {
		case "numerator", "denominator", "conjugate", "as_integer_ratio", "to_bytes", "from_bytes", "bit_count",
			"hex", "fromhex", "is_integer":
			return true
		}
	case kIter:
		return name == "send" || name == "throw" || name == "close" || strings.HasPrefix(name, "gi_")
	}
	return false
}

// refusedMethod reports methods of str that a template must not call: they are
// refused at load, because nothing else has methods of these names.
func refusedMethod(name string) bool {
	switch name {
	case "casefold", "encode", "expandtabs", "format_map", "isidentifier", "maketrans", "translate", "isprintable":
		return true
	}
	return false
}

// getitem is v[key] in the sandbox: an item, else an attribute.
func (r *run) getitem(v, key value) value {
	switch v.k {
	case kUndef, kMissing:
		return r.failUndef(v)
	case kDict:
		if key.k != kList && key.k != kDict {
			if x, ok := v.dict().get(r, key); ok {
				return x
			}
		}
	case kStr, kList, kTuple, kRange:
		if key.isInt() {
			if x, ok := r.index(v, key.n); ok {
				return x
			}
			return undefItem(v, key)
		}
	}
	if key.k == kStr {
		switch v.k {
		case kNamespace, kLoop:
			return r.getattr(v, key.s)
		}
		if x, ok := r.attribute(v, key.s); ok {
			return x
		}
	}
	return undefItem(v, key)
}

func (r *run) index(v value, i int64) (value, bool) {
	if v.k == kStr {
		return r.charAt(v.s, i)
	}
	n := int64(r.length(v))
	if i < 0 {
		i += n
	}
	if i < 0 || i >= n {
		return value{}, false
	}
	if v.k == kRange {
		return v.o.(*rangeObj).at(int(i)), true
	}
	return v.items()[i], true
}

// charAt is code point i of a string.
func (r *run) charAt(s string, i int64) (value, bool) {
	if i < 0 {
		for ; i < -1 && s != ""; i++ {
			_, n := utf8.DecodeLastRuneInString(s)
			s = s[:len(s)-n]
			r.work(workUnit / 64)
		}
		if s == "" {
			return value{}, false
		}
		_, n := utf8.DecodeLastRuneInString(s)
		return strValue(s[len(s)-n:]), true
	}
	for ; i > 0 && s != ""; i-- {
		_, n := utf8.DecodeRuneInString(s)
		s = s[n:]
		r.work(n)
	}
	if s == "" {
		return value{}, false
	}
	_, n := utf8.DecodeRuneInString(s)
	return strValue(s[:n]), true
}

// sliceBound reads one bound of a slice.
func (r *run) sliceBound(v value, missing int64) int64 {
	switch v.k {
	case kNone:
		return missing
	case kBool, kInt:
		return v.n
	case kBig:
		if v.o.(*big.Int).Sign() < 0 {
			return math.MinInt64 / 2
		}
		return math.MaxInt64 / 2
	}
	r.typeError("slice indices must be integers or None or have an __index__ method")
	return 0
}

// slice is v[from:to:step].
func (r *run) slice(v, from, to, step value) value {
	switch v.k {
	case kUndef, kMissing:
		return r.failUndef(v)
	case kStr, kList, kTuple, kRange:
	case kDict:
		return r.typeError("unhashable type: 'slice'")
	default:
		return r.typeError("'%s' object is not subscriptable", typeName(v))
	}
	st := r.sliceBound(step, 1)
	if st == 0 {
		return r.fail("ValueError", "slice step cannot be zero")
	}
	n := int64(r.length(v))
	lo, hi := int64(0), n
	if st < 0 {
		lo, hi = -1, n-1
	}
	clip := func(x value, missing int64) int64 {
		i := r.sliceBound(x, missing)
		if x.k == kNone {
			return i
		}
		if i < 0 {
			i += n
		}
		return max(lo, min(hi, i))
	}
	var a, b int64
	if st > 0 {
		a, b = clip(from, lo), clip(to, hi)
	} else {
		a, b = clip(from, hi), clip(to, lo)
	}
	return r.cut(v, &rangeObj{a, b, max(-n-1, min(n+1, st))})
}

// cut takes the items of v that g names, all in range.
func (r *run) cut(v value, g *rangeObj) value {
	n := g.len()
	switch v.k {
	case kStr:
		return r.cutString(v.s, g, n)
	case kRange:
		s := v.o.(*rangeObj)
		return value{k: kRange, o: &rangeObj{s.start + g.start*s.step, s.start + g.stop*s.step, s.step * g.step}}
	}
	src := v.items()
	var items []value
	if g.step == 1 && n > 0 {
		items = src[g.start:g.stop:g.stop]
	} else {
		items = r.values(n)
		for i := range items {
			items[i] = src[g.start+int64(i)*g.step]
		}
	}
	if v.k == kTuple {
		return r.tuple(items)
	}
	return r.list(items)
}

func (r *run) cutString(s string, g *rangeObj, n int) value {
	if n == 0 {
		return strValue("")
	}
	r.work(len(s))
	if g.step == 1 {
		at := runeOffset(s, int(g.start))
		return strValue(s[at : at+runeOffset(s[at:], n)])
	}
	r.alloc(len(s) * 5)
	runes := []rune(s)
	var b strings.Builder
	for i := range n {
		b.WriteRune(runes[g.start+int64(i)*g.step])
	}
	return strValue(b.String())
}

// runeOffset is the byte offset of code point n.
func runeOffset(s string, n int) int {
	at := 0
	for ; n > 0; n-- {
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return at
}
