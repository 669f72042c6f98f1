package template

import (
	"cmp"
	"math"
	"math/big"
	"strings"
)

// compare is Python's comparison operators.
func (r *run) compare(op string, a, b value) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	return r.order(op, a, b)
}

// equal is a == b, which never fails.
func (r *run) equal(a, b value) bool {
	if a.isNumber() && b.isNumber() {
		c, ok := numberOrder(a, b)
		return ok && c == 0
	}
	if a.k != b.k {
		return (a.k == kMissing || a.k == kUndef) && (b.k == kMissing || b.k == kUndef)
	}
	switch a.k {
	case kMissing, kUndef, kNone:
		return true
	case kStr:
		if len(a.s) != len(b.s) {
			return false
		}
		r.work(len(a.s))
		return a.s == b.s
	case kList, kTuple:
		x, y := a.items(), b.items()
		return len(x) == len(y) && r.equalItems(x, y)
	case kDict:
		return r.equalDicts(a.dict(), b.dict())
	case kRange:
		return equalRanges(a.o.(*rangeObj), b.o.(*rangeObj))
	case kView:
		if a.n != b.n || viewPart(a.n) == viewValues {
			return a.n == b.n && a.o == b.o
		}
		return r.unsupported("comparing views of dicts").k == kBool
	}
	return a.o == b.o
}

func (r *run) equalItems(x, y []value) bool {
	r.enter()
	defer r.leave()
	for i := range x {
		r.work(workUnit / 16)
		if !r.equal(x[i], y[i]) {
			return false
		}
	}
	return true
}

func (r *run) equalDicts(x, y *dict) bool {
	if len(x.entries) != len(y.entries) {
		return false
	}
	r.enter()
	defer r.leave()
	for i := range x.entries {
		e := &x.entries[i]
		r.work(workUnit / 16)
		v, ok := y.get(r, e.key)
		if !ok || !r.equal(e.val, v) {
			return false
		}
	}
	return true
}

func equalRanges(x, y *rangeObj) bool {
	n := x.len()
	switch {
	case n != y.len():
		return false
	case n == 0:
		return true
	case n == 1:
		return x.start == y.start
	}
	return x.start == y.start && x.step == y.step
}

// numberOrder compares numbers exactly; false when one is not a number.
func numberOrder(a, b value) (int, bool) {
	if a.k != kFloat && b.k != kFloat {
		if a.k != kBig && b.k != kBig {
			return cmp.Compare(a.n, b.n), true
		}
		return toBig(a).Cmp(toBig(b)), true
	}
	if a.k == kFloat && b.k == kFloat {
		x, y := a.float(), b.float()
		if math.IsNaN(x) || math.IsNaN(y) {
			return 0, false
		}
		return cmp.Compare(x, y), true
	}
	if a.k == kFloat {
		c, ok := numberOrder(b, a)
		return -c, ok
	}
	f := b.float()
	switch {
	case math.IsNaN(f):
		return 0, false
	case math.IsInf(f, 1):
		return -1, true
	case math.IsInf(f, -1):
		return 1, true
	}
	return new(big.Float).SetInt(toBig(a)).Cmp(big.NewFloat(f)), true
}

// order is <, <=, > or >=.
func (r *run) order(op string, a, b value) bool {
	c, ok, comparable := r.threeWay(op, a, b)
	if !comparable {
		r.typeError("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	}
	if !ok {
		return false // with a NaN
	}
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	default:
		return c >= 0
	}
}

// threeWay orders two values. ok is false for NaN; comparable for other types.
func (r *run) threeWay(op string, a, b value) (c int, ok, comparable bool) {
	if a.k == kUndef || a.k == kMissing {
		r.failUndef(a)
	}
	if b.k == kUndef || b.k == kMissing {
		r.failUndef(b)
	}
	switch {
	case a.isNumber() && b.isNumber():
		c, ok = numberOrder(a, b)
		return c, ok, true
	case a.k == kStr && b.k == kStr:
		r.work(min(len(a.s), len(b.s)))
		return strings.Compare(a.s, b.s), true, true // UTF-8 keeps the order of code points
	case a.isSeq() && a.k == b.k:
		return r.orderItems(op, a.items(), b.items())
	case a.k == kView && b.k == kView:
		r.unsupported("comparing views of dicts")
	}
	return 0, false, false
}

func (r *run) orderItems(op string, x, y []value) (c int, ok, comparable bool) {
	r.enter()
	defer r.leave()
	for i := range min(len(x), len(y)) {
		r.work(workUnit / 16)
		if r.equal(x[i], y[i]) {
			continue
		}
		c, ok, comparable = r.threeWay(op, x[i], y[i])
		if !comparable {
			r.typeError("'%s' not supported between instances of '%s' and '%s'", op, typeName(x[i]), typeName(y[i]))
		}
		return c, ok, true
	}
	return cmp.Compare(len(x), len(y)), true, true
}

// contains is x in box.
func (r *run) contains(box, x value) bool {
	switch box.k {
	case kStr:
		if x.k != kStr {
			r.typeError("'in <string>' requires string as left operand, not %s", typeName(x))
		}
		r.work(len(box.s))
		return strings.Contains(box.s, x.s)
	case kDict:
		_, ok := box.dict().get(r, x)
		return ok
	case kList, kTuple:
		for _, v := range box.items() {
			r.work(workUnit / 16)
			if r.same(v, x) {
				return true
			}
		}
		return false
	case kView:
		if viewPart(box.n) == viewKeys {
			_, ok := box.dict().get(r, x)
			return ok
		}
	case kNamespace, kMacro, kFunc, kJoiner, kNone, kBool, kInt, kBig, kFloat:
		r.typeError("argument of type '%s' is not iterable", typeName(box))
	}
	it := r.iter(box)
	for {
		v, ok := it.next(r)
		if !ok {
			return false
		}
		r.step()
		if r.same(v, x) {
			return true
		}
	}
}

// same is Python's "is or ==", which differ for NaN.
func (r *run) same(a, b value) bool {
	return a.k == kFloat && b.k == kFloat && a.n == b.n || r.equal(a, b)
}
