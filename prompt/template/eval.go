package template

func (x *constExpr) eval(*run) value { return x.v }

func (x *nameExpr) eval(r *run) value {
	v := r.at(x.ref)
	if v.k == kMissing {
		if r.folding {
			panic(errNotConst)
		}
		return undefName(x.name)
	}
	return *v
}

func (x *nsTarget) eval(r *run) value { return x.nameExpr.eval(r) }

// all evaluates several expressions into fresh memory.
func (r *run) all(xs []expr) []value {
	base := len(r.stack)
	for _, x := range xs {
		v := x.eval(r)
		r.stack = append(r.stack, v)
	}
	items := r.values(len(xs))
	copy(items, r.stack[base:])
	r.stack = r.stack[:base]
	return items
}

func (x *listExpr) eval(r *run) value  { return r.list(r.all(x.items)) }
func (x *tupleExpr) eval(r *run) value { return r.tuple(r.all(x.items)) }

func (x *dictExpr) eval(r *run) value {
	d := r.newDict(len(x.keys))
	for i := range x.keys {
		k := x.keys[i].eval(r)
		d.set(r, k, x.vals[i].eval(r))
	}
	return dictOf(d)
}

func (x *condExpr) eval(r *run) value {
	if r.truth(x.test.eval(r)) {
		return x.yes.eval(r)
	}
	if x.no == nil {
		if r.folding {
			panic(errNotConst)
		}
		return undefText("the inline if-expression evaluated to false and no else section was defined.")
	}
	return x.no.eval(r)
}

func (x *binExpr) eval(r *run) value {
	a := x.a.eval(r)
	return r.binary(x.op, a, x.b.eval(r))
}

func (x *addExpr) eval(r *run) value { return x.rest(r, x.terms[0].eval(r), 1) }

// rest adds the terms from i on to acc; runs of text are joined once.
func (x *addExpr) rest(r *run, acc value, i int) value {
	for i < len(x.terms) {
		if acc.k != kStr {
			acc = r.add(acc, x.terms[i].eval(r))
			i++
			continue
		}
		base := len(r.stack)
		r.stack = append(r.stack, acc)
		var odd value
		for i < len(x.terms) {
			v := x.terms[i].eval(r)
			i++
			if v.k != kStr {
				odd = v
				break
			}
			r.stack = append(r.stack, v)
		}
		acc = r.joinStack(base)
		if odd.k != kMissing {
			acc = r.add(acc, odd)
		}
	}
	return acc
}

// joinStack joins the strings on the stack from base on, and takes them off.
func (r *run) joinStack(base int) value {
	parts := r.stack[base:]
	n := 0
	for i := range parts {
		n += len(parts[i].s)
	}
	if len(parts) == 1 || n == len(parts[0].s) {
		v := parts[0]
		r.stack = r.stack[:base]
		return v
	}
	r.alloc(n)
	buf := make([]byte, 0, n)
	for i := range parts {
		buf = append(buf, parts[i].s...)
	}
	r.stack = r.stack[:base]
	return strValue(string(buf))
}

func (x *concatExpr) eval(r *run) value {
	base := len(r.stack)
	for _, t := range x.terms {
		v := t.eval(r)
		r.stack = append(r.stack, v)
	}
	for i := base; i < len(r.stack); i++ {
		r.stack[i] = strValue(r.str(r.stack[i]))
	}
	return r.joinStack(base)
}

func (x *unaryExpr) eval(r *run) value {
	v := x.x.eval(r)
	if x.op == "not" {
		return boolValue(!r.truth(v))
	}
	return r.sign(x.op, v)
}

func (x *logicExpr) eval(r *run) value {
	a := x.a.eval(r)
	if r.truth(a) == x.or {
		return a
	}
	return x.b.eval(r)
}

func (x *compareExpr) eval(r *run) value {
	a := x.first.eval(r)
	for i, op := range x.ops {
		b := x.terms[i].eval(r)
		if !r.compare(op, a, b) {
			return boolValue(false)
		}
		a = b
	}
	return boolValue(true)
}

func (x *attrExpr) eval(r *run) value { return r.getattr(x.x.eval(r), x.name) }

func (x *itemExpr) eval(r *run) value {
	v := x.x.eval(r)
	return r.getitem(v, x.key.eval(r))
}

func (x *sliceExpr) eval(r *run) value {
	v := x.x.eval(r)
	bound := func(b expr) value {
		if b == nil {
			return none()
		}
		return b.eval(r)
	}
	from := bound(x.from)
	to := bound(x.to)
	step := bound(x.step)
	if r.folding {
		return r.foldedSlice(v, from, to, step)
	}
	return r.slice(v, from, to, step)
}

func (x *filterExpr) eval(r *run) value { return x.apply(r, x.x.eval(r)) }

func (x *filterExpr) apply(r *run, v value) value {
	if r.folding && !x.foldable() {
		panic(errNotConst)
	}
	r.step()
	base := len(r.stack)
	a := x.eval0(r)
	out := x.fn(r, v, a)
	r.done(a, base)
	return out
}

func (x *testExpr) eval(r *run) value {
	v := x.x.eval(r)
	r.step()
	base := len(r.stack)
	a := x.eval0(r)
	out := x.fn(r, v, a)
	r.done(a, base)
	return boolValue(out)
}
