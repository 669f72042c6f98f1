package template

func (st *outputStmt) exec(r *run) flow {
	for i := range st.parts {
		p := &st.parts[i]
		if p.x == nil {
			r.write(p.text)
			continue
		}
		r.line = p.line
		r.step()
		r.print(p.x)
	}
	return flowNext
}

// print writes an expression's text. A chain of + that starts with text is
// written term by term: if a later term is no text, the rendering fails anyway.
func (r *run) print(x expr) {
	if a, ok := x.(*addExpr); ok {
		first := a.terms[0].eval(r)
		if first.k == kStr {
			r.printChain(a, first)
			return
		}
		r.printValue(a.rest(r, first, 1))
		return
	}
	r.printValue(x.eval(r))
}

func (r *run) printChain(a *addExpr, first value) {
	r.write(first.s)
	for _, t := range a.terms[1:] {
		v := t.eval(r)
		if v.k != kStr {
			r.add(first, v)
			return
		}
		r.write(v.s)
	}
}

func (r *run) printValue(v value) {
	switch v.k {
	case kStr:
		r.write(v.s)
	case kMissing, kUndef:
	default:
		r.write(r.str(v))
	}
}

func (st *setStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	r.checkTarget(st.target)
	r.assign(st.target, st.x.eval(r))
	return flowNext
}

// checkTarget fails on NAME.ATTR when NAME is no namespace.
func (r *run) checkTarget(t expr) {
	switch t := t.(type) {
	case *nsTarget:
		if v := r.at(t.ref); v.k != kNamespace {
			r.fail("TemplateRuntimeError", "cannot assign attribute on non-namespace object")
		}
	case *tupleExpr:
		for _, x := range t.items {
			r.checkTarget(x)
		}
	}
}

// assign stores v to a name, an attribute of a namespace, or unpacks it.
func (r *run) assign(t expr, v value) {
	switch t := t.(type) {
	case *nameExpr:
		*r.at(t.ref) = v
	case *nsTarget:
		r.at(t.ref).dict().set(r, strValue(t.attr), v)
	case *tupleExpr:
		r.unpack(t, v)
	}
}

func (r *run) unpack(t *tupleExpr, v value) {
	want := len(t.items)
	if v.isSeq() && len(v.items()) == want {
		for i, x := range v.items() {
			r.assign(t.items[i], x)
		}
		return
	}
	switch v.k {
	case kNone, kBool, kInt, kBig, kFloat, kNamespace, kMacro, kFunc, kCycler, kJoiner:
		r.typeError("cannot unpack non-iterable %s object", typeName(v))
	}
	it := r.iter(v)
	items := r.values(want)
	for i := range items {
		x, ok := it.next(r)
		if !ok {
			r.fail("ValueError", "not enough values to unpack (expected %d, got %d)", want, i)
		}
		items[i] = x
	}
	if _, ok := it.next(r); ok {
		r.fail("ValueError", "too many values to unpack (expected %d)", want)
	}
	for i, x := range items {
		r.assign(t.items[i], x)
	}
}

func (st *setBlockStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	r.checkTarget(st.target)
	r.open(st.scope)
	mark := len(r.out)
	if f := r.body(st.body); f != flowNext {
		r.out = r.out[:mark] // left by break or continue: never stored
		return f
	}
	v := r.captured(mark)
	if st.filter != nil {
		v = r.filterBlock(st.filter, v)
	}
	r.assign(st.target, v)
	return flowNext
}

func (st *filterBlockStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	r.open(st.scope)
	mark := len(r.out)
	if f := r.body(st.body); f != flowNext {
		r.out = r.out[:mark]
		return f
	}
	r.printValue(r.filterBlock(st.filter, r.captured(mark)))
	return flowNext
}

// filterBlock applies a chain of filters whose innermost operand is v.
func (r *run) filterBlock(x expr, v value) value {
	f := x.(*filterExpr)
	if f.x != nil {
		v = r.filterBlock(f.x, v)
	}
	return f.apply(r, v)
}

func (st *ifStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	for i, t := range st.tests {
		if r.truth(t.eval(r)) {
			return r.body(st.arms[i])
		}
	}
	return r.body(st.alt)
}

func (st *withStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	r.open(st.scope)
	for i, t := range st.targets {
		r.assign(t, st.values[i].eval(r))
	}
	return r.body(st.body)
}

func (*breakStmt) exec(*run) flow    { return flowBreak }
func (*continueStmt) exec(*run) flow { return flowContinue }

func (st *macroStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	*r.at(st.name.ref) = r.macro(st.def)
	return flowNext
}

func (st *blockStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	old := r.push(st.proc, r.frame)
	r.open(st.init)
	r.body(st.body)
	r.pop(old)
	return flowNext
}

func (st *genStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	m := r.macro(st.def).o.(*macro)
	r.printValue(m.call(r, &args{}))
	return flowNext
}

func (st *callBlockStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	r.printValue(st.call.evalWith(r, r.macro(st.def)))
	return flowNext
}

func (st *forStmt) exec(r *run) flow {
	r.line = st.line
	r.step()
	src := st.iter.eval(r)
	ls := &loopState{index: -1}
	if st.test != nil {
		ls.it = &filterIter{src: r.iter(src), st: st, frame: r.frame}
		ls.size = -1
	} else {
		r.loopOver(ls, src)
	}
	ran := false
	for {
		v, ok := ls.advance(r)
		if !ok {
			break
		}
		r.step()
		r.assign(st.target, v)
		if st.usesLoop {
			*r.at(st.loopRef) = value{k: kLoop, o: ls}
		}
		r.open(st.scope)
		f := r.body(st.body)
		if f == flowBreak {
			break
		}
		if f == flowNext {
			ran = true // as Jinja: a continue in every turn still runs the else
		}
	}
	if st.alt != nil && !ran {
		if st.altScope != nil {
			r.open(st.altScope)
		}
		return r.body(st.alt)
	}
	return flowNext
}

// filterIter is the source of a for loop with an if. It may be advanced from a macro
// that the loop's variable was given to.
type filterIter struct {
	src   iterator
	st    *forStmt
	frame *frame // of the loop
}

func (f *filterIter) next(r *run) (value, bool) {
	old := r.frame
	r.frame = f.frame
	v, ok := f.find(r)
	r.frame = old
	return v, ok
}

func (f *filterIter) find(r *run) (value, bool) {
	for {
		v, ok := f.src.next(r)
		if !ok {
			return value{}, false
		}
		r.step()
		r.open(f.st.testScope)
		r.assign(f.st.testSlots, v)
		if r.truth(f.st.test.eval(r)) {
			return v, true
		}
	}
}
