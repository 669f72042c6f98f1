package template

import "errors"

// errNotConst ends the evaluation of an expression that has no value yet when the
// template is compiled.
var errNotConst = errors.New("not a constant")

// foldBudget bounds the expressions of one template that are tried to be folded.
const foldBudget = 10_000

// fold computes what Jinja computes when it compiles, as far as that shows: a slice
// is Python's own in a running template, where (1)[:2] is a TypeError, but goes
// through Jinja's lenient item access in a constant, where it is undefined. The
// largest constants are replaced by their values. (jinja2/optimizer.py, and as_const
// in jinja2/nodes.py.)
func (p *parser) fold(x expr) expr {
	if hasSlice(x) {
		p.foldAt(&x)
	}
	return x
}

// foldPrinted is fold of what is printed at once: there the value need not be one
// that Jinja can write into its compiled code.
func (p *parser) foldPrinted(x expr) expr {
	if !hasSlice(x) {
		return x
	}
	var text string
	if p.constant(func(r *run) { text = r.str(x.eval(r)) }) {
		return &constExpr{strValue(text)}
	}
	return p.fold(x)
}

func (p *parser) foldAt(x *expr) {
	var v value
	if p.constant(func(r *run) { v = (*x).eval(r) }) && hasRepr(v) {
		*x = &constExpr{v}
		return
	}
	eachOperand(*x, func(c *expr) {
		if hasSlice(*c) {
			p.foldAt(c)
		}
	})
}

// constant runs f where names and calls have no value, and reports whether it came
// to an end.
func (p *parser) constant(f func(*run)) (ok bool) {
	if p.folds++; p.folds > foldBudget {
		p.refuse(p.cur().line, "a template of so many slices")
	}
	r := &run{
		folding: true, fixedSteps: true, steps: 10_000, mem: 1 << 20, maxOut: 1 << 20, maxDepth: defaultDepth,
		frame: &frame{vars: make([]value, 1)}, // names are not resolved yet: all are here, and missing
	}
	defer func() {
		switch x := recover(); x.(type) {
		case nil, *Error:
		default:
			if x != errNotConst { //nolint:errorlint // a panic of this file
				panic(x)
			}
		}
	}()
	f(r)
	return true
}

// foldedSlice is v[from:to:step] by Jinja's item access.
func (r *run) foldedSlice(v, from, to, step value) (out value) {
	defer func() {
		x := recover()
		if e, ok := x.(*Error); ok && e.Class == "TypeError" {
			out = undefItem(v, none())
		} else if x != nil {
			panic(x)
		}
	}()
	return r.slice(v, from, to, step)
}

// foldable reports whether Jinja applies the filter to constants: not those that
// see the variables, and not the one of a filter block.
func (x *filterExpr) foldable() bool {
	switch x.name {
	case "map", "select", "reject", "selectattr", "rejectattr", "random":
		return false
	}
	return x.x != nil && x.fn != nil
}

// hasRepr reports whether Jinja can write v into its compiled code.
func hasRepr(v value) bool {
	switch v.k {
	case kNone, kBool, kInt, kBig, kFloat, kStr, kRange:
		return true
	case kList, kTuple:
		for _, x := range v.items() {
			if !hasRepr(x) {
				return false
			}
		}
		return true
	case kDict:
		for _, e := range v.dict().entries {
			if !hasRepr(e.key) || !hasRepr(e.val) {
				return false
			}
		}
		return true
	default:
		return false
	}
}

func hasSlice(x expr) bool {
	_, found := x.(*sliceExpr)
	if !found {
		eachChild(x, func(c expr) { found = found || hasSlice(c) })
	}
	return found
}
