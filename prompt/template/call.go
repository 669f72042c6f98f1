package template

// args are evaluated arguments. pos lies on the stack: what keeps it must copy.
type args struct {
	pos   []value
	named []namedArg
}

type namedArg struct {
	name string
	v    value
}

// function is a callable's code.
type function func(r *run, a *args) value

type fn struct {
	name string
	call function
}

func funcValue(name string, call function) value {
	return value{k: kFunc, o: &fn{name, call}}
}

// newArgs takes an args from the free list: one that escapes into a callee would
// cost an allocation per call.
func (r *run) newArgs() *args {
	if n := len(r.free); n > 0 {
		a := r.free[n-1]
		r.free = r.free[:n-1]
		return a
	}
	return &args{}
}

// done ends a call: its arguments leave the stack. Callees copy what they keep.
func (r *run) done(a *args, base int) {
	r.stack = r.stack[:base]
	*a = args{}
	r.free = append(r.free, a)
}

// eval0 evaluates arguments; done frees them.
func (c *callArgs) eval0(r *run) *args {
	base := len(r.stack)
	for _, x := range c.args {
		v := x.eval(r)
		r.stack = append(r.stack, v)
	}
	a := r.newArgs()
	if len(c.kwargs) > 0 {
		r.alloc(len(c.kwargs) * (valueSize + 16))
		a.named = make([]namedArg, 0, len(c.kwargs))
		for i, x := range c.kwargs {
			a.named = append(a.named, namedArg{c.names[i], x.eval(r)})
		}
	}
	if c.dynArgs != nil {
		v := c.dynArgs.eval(r)
		for _, x := range r.seq(v) {
			r.alloc(valueSize)
			r.stack = append(r.stack, x)
		}
	}
	if c.dynNamed != nil {
		a.addMapping(r, c.dynNamed.eval(r))
	}
	a.pos = r.stack[base:len(r.stack):len(r.stack)]
	return a
}

func (a *args) addMapping(r *run, v value) {
	if v.k != kDict {
		r.typeError("argument after ** must be a mapping, not %s", typeName(v))
	}
	for _, e := range v.dict().entries {
		if e.key.k != kStr {
			r.typeError("keywords must be strings")
		}
		if _, dup := a.take(e.key.s, false); dup {
			r.typeError("got multiple values for keyword argument '%s'", e.key.s)
		}
		r.alloc(valueSize + 16)
		a.named = append(a.named, namedArg{e.key.s, e.val})
	}
}

// take finds a keyword argument, and removes it if asked to.
func (a *args) take(name string, remove bool) (value, bool) {
	for i := range a.named {
		if a.named[i].name == name {
			v := a.named[i].v
			if remove {
				a.named = append(a.named[:i:i], a.named[i+1:]...)
			}
			return v, true
		}
	}
	return value{}, false
}

func (a *args) noNamed(r *run, name string) {
	if len(a.named) > 0 {
		r.typeError("%s() takes no keyword arguments", name)
	}
}

// bind matches arguments to parameter names; missing ones are kMissing. The first
// need parameters are required.
func (a *args) bind(r *run, fn string, need int, names ...string) [6]value {
	var out [6]value
	if len(a.pos) > len(names) {
		r.typeError("%s() takes at most %d arguments (%d given)", fn, len(names), len(a.pos))
	}
	copy(out[:], a.pos)
	for _, n := range a.named {
		found := false
		for i, name := range names {
			if n.name != name {
				continue
			}
			if i < len(a.pos) {
				r.typeError("%s() got multiple values for argument '%s'", fn, name)
			}
			out[i], found = n.v, true
		}
		if !found {
			r.typeError("%s() got an unexpected keyword argument '%s'", fn, n.name)
		}
	}
	for i := range need {
		if out[i].k == kMissing {
			r.typeError("%s() missing required argument: '%s'", fn, names[i])
		}
	}
	return out
}

// exactly takes positional arguments only, as most of Python's methods do.
func (a *args) exactly(r *run, fn string, least, most int) []value {
	a.noNamed(r, fn)
	if len(a.pos) < least || len(a.pos) > most {
		r.typeError("%s() takes from %d to %d arguments (%d given)", fn, least, most, len(a.pos))
	}
	return a.pos
}

func (x *callExpr) eval(r *run) value { return x.evalWith(r, value{}) }

// evalWith calls with caller as an extra keyword argument, unless it is missing.
func (x *callExpr) evalWith(r *run, caller value) value {
	if r.folding {
		panic(errNotConst)
	}
	r.step()
	base := len(r.stack)
	var f value
	if at, ok := x.fn.(*attrExpr); ok && caller.k == kMissing {
		self := at.x.eval(r)
		if m := r.method(self, at.name); m != nil {
			a := x.eval0(r)
			out := m(r, self, a)
			r.done(a, base)
			return out
		}
		f = r.getattr(self, at.name)
	} else {
		f = x.fn.eval(r)
	}
	a := x.eval0(r)
	if caller.k != kMissing {
		if _, dup := a.take("caller", false); dup {
			r.typeError("got multiple values for keyword argument 'caller'")
		}
		a.named = append(a.named, namedArg{"caller", caller})
	}
	out := r.call(f, a)
	r.done(a, base)
	return out
}

// call calls a value.
func (r *run) call(f value, a *args) value {
	switch f.k {
	case kFunc:
		return f.o.(*fn).call(r, a)
	case kMacro:
		return f.o.(*macro).call(r, a)
	case kJoiner:
		return f.o.(*joiner).call(r, a)
	case kLoop:
		return r.typeError("The loop must have the 'recursive' marker to be called recursively.")
	case kUndef, kMissing:
		return r.failUndef(f)
	}
	return r.typeError("'%s' object is not callable", typeName(f))
}

// macro is a macro with the frame it was defined in.
type macro struct {
	def   *macroDef
	frame *frame
}

func (r *run) macro(def *macroDef) value {
	r.alloc(valueSize)
	return value{k: kMacro, o: &macro{def, r.frame}}
}

// call runs the macro's body and returns what it wrote.
func (m *macro) call(r *run, a *args) value {
	d := m.def
	r.step()
	line := r.line
	caller := r.frame
	r.push(d.proc, m.frame)
	m.setParams(r, a)
	r.open(d.init)
	for i, p := range d.params {
		slot := r.at(p.ref)
		if slot.k != kMissing {
			continue
		}
		if k := i - (len(d.params) - len(d.defaults)); k >= 0 {
			*slot = d.defaults[k].eval(r)
		} else {
			*slot = undefText("parameter '" + p.name + "' was not provided")
		}
	}
	mark := len(r.out)
	r.body(d.body)
	out := r.captured(mark)
	r.pop(caller)
	r.line = line
	return out
}

// setParams fills the frame from the arguments, as Jinja's Macro.__call__ does.
func (m *macro) setParams(r *run, a *args) {
	d := m.def
	n := min(len(a.pos), len(d.params))
	foundCaller := n == len(d.params) && d.explicitCaller
	for i, p := range d.params {
		if i < n {
			*r.at(p.ref) = a.pos[i]
			continue
		}
		if v, ok := a.take(p.name, true); ok {
			*r.at(p.ref) = v
		}
		foundCaller = foundCaller || p.name == "caller"
	}
	if d.hasCaller && !foundCaller {
		v, ok := a.take("caller", true)
		if !ok || v.k == kNone {
			v = undefText("No caller defined")
		}
		*r.at(d.caller) = v
	}
	name := "'" + d.name + "'"
	if d.anonymous {
		name = "None"
	}
	switch {
	case d.hasKw:
		kw := r.newDict(len(a.named))
		for _, e := range a.named {
			kw.set(r, strValue(e.name), e.v)
		}
		*r.at(d.kwargs) = dictOf(kw)
	case len(a.named) > 0:
		if _, ok := a.take("caller", false); ok {
			r.typeError("macro %s was invoked with two values for the special caller argument. This is most likely a bug.", name)
		}
		r.typeError("macro %s takes no keyword argument '%s'", name, a.named[0].name)
	}
	switch {
	case d.hasVar:
		extra := a.pos[n:]
		*r.at(d.varargs) = r.tuple(append(r.values(len(extra))[:0], extra...))
	case len(a.pos) > n:
		r.typeError("macro %s takes not more than %d argument(s)", name, len(d.params))
	}
}
