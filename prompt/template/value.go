package template

import (
	"math"
	"math/big"
)

// kind is a Python type, as far as templates can meet one.
type kind uint8

const (
	kMissing kind = iota // no value: reading such a variable gives an undefined
	kUndef
	kNone
	kBool
	kInt
	kBig
	kFloat
	kStr
	kList
	kTuple
	kDict
	kRange
	kView // dict.items(), keys() and values()
	kIter // a generator: consumed once
	kNamespace
	kLoop
	kMacro
	kFunc // a global function or a bound method
	kCycler
	kJoiner
)

// value is a Python value. Lists, tuples and dicts are shared and never changed,
// because the sandbox forbids it; only namespaces, loops, cyclers, joiners and
// iterators have state.
type value struct {
	k kind
	n int64  // bool, int; float bits; undef: undefCause; view: viewPart
	s string // str; undef: the name or the whole text
	o any    // *list, *dict, *big.Int, *rangeObj, iterator, …
}

type list struct {
	items []value
	group bool // groupby's tuples have the attributes grouper and list
}

type rangeObj struct{ start, stop, step int64 }

// undefCause says which text an undefined value fails with.
type undefCause int64

const (
	causeName   undefCause = iota // s is a variable's name
	causeText                     // s is the whole text
	causeUnsafe                   // s is the text of a SecurityError
	causeAttr                     // s is an attribute; causeAttr+kind tells of what
)

func undefName(name string) value { return value{k: kUndef, s: name} }
func undefText(text string) value { return value{k: kUndef, n: int64(causeText), s: text} }

func undefAttr(of value, name string) value {
	return value{k: kUndef, n: int64(causeAttr) + int64(of.k), s: name}
}

func undefItem(of, key value) value {
	if key.k == kStr {
		return undefAttr(of, key.s)
	}
	return undefText("'" + typeName(of) + " object' has no element")
}

func undefUnsafe(of value, name string) value {
	return value{
		k: kUndef, n: int64(causeUnsafe),
		s: "access to attribute '" + name + "' of '" + typeName(of) + "' object is unsafe.",
	}
}

// failUndef ends the rendering as using an undefined value does.
func (r *run) failUndef(v value) value {
	switch c := undefCause(v.n); c {
	case causeName:
		return r.fail("UndefinedError", "'%s' is undefined", v.s)
	case causeText:
		return r.fail("UndefinedError", "%s", v.s)
	case causeUnsafe:
		return r.fail("SecurityError", "%s", v.s)
	default:
		of := typeName(value{k: kind(c - causeAttr)}) //nolint:gosec // built from a kind above
		return r.fail("UndefinedError", "'%s object' has no attribute '%s'", of, v.s)
	}
}

func none() value            { return value{k: kNone} }
func intValue(n int64) value { return value{k: kInt, n: n} }
func strValue(s string) value {
	return value{k: kStr, s: s}
}

func boolValue(b bool) value {
	if b {
		return value{k: kBool, n: 1}
	}
	return value{k: kBool}
}

func floatValue(f float64) value {
	return value{k: kFloat, n: int64(math.Float64bits(f))} //nolint:gosec // the bits, not the number
}

func (v value) float() float64 { return math.Float64frombits(uint64(v.n)) } //nolint:gosec // the bits

func bigValue(b *big.Int) value {
	if b.IsInt64() {
		return intValue(b.Int64())
	}
	return value{k: kBig, o: b}
}

func listOf(items []value) value  { return value{k: kList, o: &list{items: items}} }
func tupleOf(items []value) value { return value{k: kTuple, o: &list{items: items}} }
func dictOf(d *dict) value        { return value{k: kDict, o: d} }

func (v value) items() []value { return v.o.(*list).items }
func (v value) dict() *dict    { return v.o.(*dict) }

// isInt: bool is an int in Python.
func (v value) isInt() bool { return v.k == kInt || v.k == kBool }

func (v value) isNumber() bool {
	return v.k == kInt || v.k == kBool || v.k == kFloat || v.k == kBig
}

func (v value) isSeq() bool { return v.k == kList || v.k == kTuple }

// typeName is Python's type(v).__name__.
func typeName(v value) string {
	switch v.k {
	case kMissing, kUndef:
		return "Undefined"
	case kNone:
		return "NoneType"
	case kBool:
		return "bool"
	case kInt, kBig:
		return "int"
	case kFloat:
		return "float"
	case kStr:
		return "str"
	case kList:
		return "list"
	case kTuple:
		return "tuple"
	case kDict:
		return "dict"
	case kRange:
		return "range"
	case kView:
		return viewName(v)
	case kIter:
		return "generator"
	case kNamespace:
		return "Namespace"
	case kLoop:
		return "LoopContext"
	case kMacro:
		return "Macro"
	case kCycler:
		return "Cycler"
	case kJoiner:
		return "Joiner"
	default:
		return "function"
	}
}

// truth is Python's bool(v).
func (r *run) truth(v value) bool {
	switch v.k {
	case kMissing, kUndef, kNone:
		return false
	case kBool, kInt:
		return v.n != 0
	case kFloat:
		return v.float() != 0
	case kStr:
		return v.s != ""
	case kList, kTuple:
		return len(v.items()) > 0
	case kDict, kView:
		return v.dict().len() > 0
	case kRange:
		return v.o.(*rangeObj).len() > 0
	case kLoop:
		return v.o.(*loopState).length(r) > 0
	default:
		return true
	}
}

func (g *rangeObj) len() int {
	switch {
	case g.step > 0 && g.start < g.stop:
		return int((g.stop-g.start-1)/g.step + 1)
	case g.step < 0 && g.start > g.stop:
		return int((g.start-g.stop-1)/-g.step + 1)
	}
	return 0
}

func (g *rangeObj) at(i int) value { return intValue(g.start + int64(i)*g.step) }
