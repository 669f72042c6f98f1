package template

import "unicode"

// testFunc is a test: v is name(args).
type testFunc func(r *run, v value, a *args) bool

func testKnown(name string) bool { return testByName(name) != nil }

// comparisonTest maps the names of comparison tests to their operator.
func comparisonTest(name string) string {
	switch name {
	case "==", "eq", "equalto":
		return "=="
	case "!=", "ne":
		return "!="
	case ">", "gt", "greaterthan":
		return ">"
	case ">=", "ge":
		return ">="
	case "<", "lt", "lessthan":
		return "<"
	case "<=", "le":
		return "<="
	}
	return ""
}

// testByName is the table of tests; nil for what Jinja does not know either.
func testByName(name string) testFunc {
	if op := comparisonTest(name); op != "" {
		return func(r *run, v value, a *args) bool { return r.compare(op, v, a.exactly(r, name, 1, 1)[0]) }
	}
	if kinds := kindTest(name); kinds != nil {
		return func(r *run, v value, a *args) bool {
			a.exactly(r, name, 0, 0)
			return kinds(v)
		}
	}
	switch name {
	case "odd":
		return func(r *run, v value, a *args) bool {
			a.exactly(r, name, 0, 0)
			return r.equal(r.binary("%", v, intValue(2)), intValue(1))
		}
	case "even":
		return func(r *run, v value, a *args) bool {
			a.exactly(r, name, 0, 0)
			return r.equal(r.binary("%", v, intValue(2)), intValue(0))
		}
	case "divisibleby":
		return func(r *run, v value, a *args) bool {
			p := a.bind(r, name, 1, "num")
			return r.equal(r.binary("%", v, p[0]), intValue(0))
		}
	case "in":
		return func(r *run, v value, a *args) bool {
			p := a.bind(r, name, 1, "seq")
			return r.contains(p[0], v)
		}
	case "sameas":
		return func(r *run, v value, a *args) bool {
			p := a.bind(r, name, 1, "other")
			return r.identical(v, p[0])
		}
	case "lower", "upper":
		return func(r *run, v value, a *args) bool {
			a.exactly(r, name, 0, 0)
			s := r.str(v)
			r.work(len(s))
			return stringIs("is"+name, s)
		}
	case "filter":
		return func(r *run, v value, a *args) bool {
			a.exactly(r, name, 0, 0)
			r.hashable(v)
			return v.k == kStr && filterByName(v.s) != nil
		}
	case "test":
		return func(r *run, v value, a *args) bool {
			a.exactly(r, name, 0, 0)
			r.hashable(v)
			return v.k == kStr && testKnown(v.s)
		}
	}
	return nil
}

// kindTest is a test of a value's type alone.
func kindTest(name string) func(value) bool {
	undef := func(v value) bool { return v.k == kUndef || v.k == kMissing }
	switch name {
	case "defined":
		return func(v value) bool { return !undef(v) }
	case "undefined":
		return undef
	case "none":
		return func(v value) bool { return v.k == kNone }
	case "boolean":
		return func(v value) bool { return v.k == kBool }
	case "true":
		return func(v value) bool { return v.k == kBool && v.n != 0 }
	case "false":
		return func(v value) bool { return v.k == kBool && v.n == 0 }
	case "integer":
		return func(v value) bool { return v.k == kInt || v.k == kBig }
	case "float":
		return func(v value) bool { return v.k == kFloat }
	case "number":
		return value.isNumber
	case "string":
		return func(v value) bool { return v.k == kStr }
	case "mapping":
		return func(v value) bool { return v.k == kDict }
	case "sequence":
		return func(v value) bool { return undef(v) || v.isSeq() || v.k == kStr || v.k == kDict || v.k == kRange }
	case "iterable":
		return func(v value) bool { return isSized(v) || v.k == kIter || v.k == kLoop }
	case "callable":
		return func(v value) bool {
			return undef(v) || v.k == kFunc || v.k == kMacro || v.k == kJoiner || v.k == kLoop
		}
	case "escaped":
		return func(value) bool { return false }
	}
	return nil
}

// identical is Python's "is", as far as it can be told: constants and small numbers
// are one object each, other values are themselves only.
func (r *run) identical(a, b value) bool {
	if a.k != b.k {
		return false
	}
	switch a.k {
	case kNone:
		return true
	case kBool:
		return a.n == b.n
	case kInt:
		return a.n == b.n && a.n >= -5 && a.n <= 256
	case kList, kTuple, kDict, kNamespace, kMacro, kLoop, kCycler, kJoiner, kIter:
		return a.o == b.o
	case kStr:
		if a.s != b.s {
			return false
		}
		if len(a.s) <= 1 && (a.s == "" || rune(a.s[0]) <= unicode.MaxASCII) {
			return true
		}
	}
	return r.unsupported("'sameas' of two equal values of type "+typeName(a)).k == kBool
}
