package template

// resolve is the second pass: every scope is declared and finished, then its
// names are bound and its inner scopes are entered.
func (rs *resolver) template(body []stmt) (*procInfo, *scopeInit) {
	proc := &procInfo{}
	s := rs.newScope(nil, proc)
	rs.root = s
	rs.declare(s, body)
	rs.finish(s)
	rs.bindAll(s, body)
	return proc, s.init
}

func (rs *resolver) bindAll(s *scope, body []stmt) {
	for _, st := range body {
		rs.bindStmt(s, st)
	}
}

func (rs *resolver) bindStmt(s *scope, st stmt) {
	switch st := st.(type) {
	case *outputStmt:
		for _, p := range st.parts {
			rs.bindExpr(s, p.x)
		}
	case *setStmt:
		rs.bindExpr(s, st.x)
		rs.bindExpr(s, st.target)
	case *setBlockStmt:
		rs.bindExpr(s, st.target)
		inner := rs.inner(s, func(in *scope) {
			rs.declareOptional(in, st.filter)
			rs.declare(in, st.body)
		})
		rs.bindExpr(inner, st.filter)
		rs.bindAll(inner, st.body)
		st.scope = inner.init
	case *forStmt:
		rs.bindFor(s, st)
	case *ifStmt:
		for i := range st.tests {
			rs.bindExpr(s, st.tests[i])
			rs.bindAll(s, st.arms[i])
		}
		rs.bindAll(s, st.alt)
	case *macroStmt:
		st.name.ref = rs.bind(s, st.name.name)
		rs.bindMacro(s, st.def)
	case *callBlockStmt:
		rs.bindMacro(s, st.def)
		rs.bindExpr(s, st.call)
	case *genStmt:
		rs.bindMacro(s, st.def)
	case *filterBlockStmt:
		inner := rs.inner(s, func(in *scope) {
			rs.declare(in, st.body)
			rs.declareExpr(in, st.filter)
		})
		rs.bindExpr(inner, st.filter)
		rs.bindAll(inner, st.body)
		st.scope = inner.init
	case *withStmt:
		for _, v := range st.values {
			rs.bindExpr(s, v)
		}
		inner := rs.inner(s, func(in *scope) {
			for _, t := range st.targets {
				rs.declareTarget(in, t, true)
			}
			rs.declare(in, st.body)
		})
		for _, t := range st.targets {
			rs.bindExpr(inner, t)
		}
		rs.bindAll(inner, st.body)
		st.scope = inner.init
	case *blockStmt:
		rs.bindBlock(st)
	}
}

// inner makes a finished scope in the same frame.
func (rs *resolver) inner(s *scope, declare func(*scope)) *scope {
	in := rs.newScope(s, s.proc)
	declare(in)
	rs.finish(in)
	return in
}

func (rs *resolver) declareOptional(s *scope, x expr) {
	if x != nil {
		rs.declareExpr(s, x)
	}
}

func (rs *resolver) bindFor(s *scope, st *forStmt) {
	rs.bindExpr(s, st.iter)
	if st.test != nil {
		st.testSlots = cloneTarget(st.target)
		ts := rs.inner(s, func(in *scope) {
			rs.declareTarget(in, st.target, true)
			rs.declareExpr(in, st.test)
		})
		rs.bindExpr(ts, st.testSlots)
		rs.bindExpr(ts, st.test)
		st.testScope = ts.init
	}
	st.usesLoop = usesName(st.body, "loop")
	in := rs.inner(s, func(in *scope) {
		if st.usesLoop {
			rs.param(in, "loop")
		}
		rs.declareTarget(in, st.target, true)
		rs.declare(in, st.body)
	})
	if st.usesLoop {
		st.loopRef = rs.bind(in, "loop")
	}
	rs.bindExpr(in, st.target)
	rs.bindAll(in, st.body)
	st.scope = in.init
	if st.alt != nil {
		alt := rs.inner(s, func(in *scope) { rs.declare(in, st.alt) })
		rs.bindAll(alt, st.alt)
		st.altScope = alt.init
	}
}

func cloneTarget(t expr) expr {
	switch t := t.(type) {
	case *nameExpr:
		c := *t
		return &c
	case *tupleExpr:
		c := &tupleExpr{}
		for _, x := range t.items {
			c.items = append(c.items, cloneTarget(x))
		}
		return c
	}
	return t
}

func (rs *resolver) bindMacro(s *scope, def *macroDef) {
	def.proc = &procInfo{parent: s.proc}
	in := rs.newScope(s, def.proc)
	for _, p := range def.params {
		rs.param(in, p.name)
	}
	special := func(name string, used bool) bool {
		for _, p := range def.params {
			if p.name == name {
				return false
			}
		}
		if used {
			rs.param(in, name)
		}
		return used
	}
	def.hasCaller = special("caller", def.hasCaller)
	def.hasKw = special("kwargs", def.hasKw)
	def.hasVar = special("varargs", def.hasVar)
	for _, d := range def.defaults {
		rs.declareExpr(in, d)
	}
	rs.declare(in, def.body)
	rs.finish(in)
	for _, p := range def.params {
		p.ref = rs.bind(in, p.name)
	}
	for _, sp := range []struct {
		has  bool
		name string
		ref  *slotRef
	}{{def.hasCaller, "caller", &def.caller}, {def.hasKw, "kwargs", &def.kwargs}, {def.hasVar, "varargs", &def.varargs}} {
		if sp.has {
			*sp.ref = rs.bind(in, sp.name)
		}
	}
	for _, d := range def.defaults {
		rs.bindExpr(in, d)
	}
	rs.bindAll(in, def.body)
	def.init = in.init
}

// bindBlock: a block is no child of the template's scope; it sees the template's
// own variables as exports, and the render's.
func (rs *resolver) bindBlock(st *blockStmt) {
	if rs.blocks[st.name] {
		rs.fail(st.line, "the block '"+st.name+"' defined twice")
	}
	rs.blocks[st.name] = true
	st.proc = &procInfo{parent: rs.root.proc}
	in := rs.newScope(nil, st.proc)
	rs.declare(in, st.body)
	for name := range in.loads {
		if in.loads[name].how == loadResolve && rs.root.stores[name] {
			in.loads[name] = load{loadAlias, rs.root}
		}
	}
	rs.finish(in)
	rs.bindAll(in, st.body)
	st.init = in.init
}

func (rs *resolver) bindExpr(s *scope, x expr) {
	switch x := x.(type) {
	case nil:
		return
	case *nameExpr:
		x.ref = rs.bind(s, x.name)
		return
	case *nsTarget:
		x.ref = rs.bind(s, x.name)
		return
	case *filterExpr:
		if x.fn == nil {
			rs.fail(x.line, "the filter 'safe' other than at the end of a print statement")
		}
	}
	eachChild(x, func(c expr) { rs.bindExpr(s, c) })
}

// usesName reports whether a body reads a name, in inner scopes too.
func usesName(body []stmt, name string) bool {
	found := false
	var inExpr func(x expr)
	inExpr = func(x expr) {
		if n, ok := x.(*nameExpr); ok {
			found = found || n.name == name
			return
		}
		eachChild(x, inExpr)
	}
	eachExpr(body, inExpr)
	return found
}

// eachExpr calls f for every expression in a body that is read, not stored to.
func eachExpr(body []stmt, f func(expr)) {
	each := func(xs ...expr) {
		for _, x := range xs {
			if x != nil {
				f(x)
			}
		}
	}
	macro := func(d *macroDef) {
		each(d.defaults...)
		eachExpr(d.body, f)
	}
	for _, st := range body {
		switch st := st.(type) {
		case *outputStmt:
			for _, p := range st.parts {
				each(p.x)
			}
		case *setStmt:
			each(st.x)
		case *setBlockStmt:
			each(st.filter)
			eachExpr(st.body, f)
		case *forStmt:
			each(st.iter, st.test)
			eachExpr(st.body, f)
			eachExpr(st.alt, f)
		case *ifStmt:
			each(st.tests...)
			for _, arm := range st.arms {
				eachExpr(arm, f)
			}
			eachExpr(st.alt, f)
		case *macroStmt:
			macro(st.def)
		case *callBlockStmt:
			each(st.call)
			macro(st.def)
		case *genStmt:
			macro(st.def)
		case *filterBlockStmt:
			each(st.filter)
			eachExpr(st.body, f)
		case *withStmt:
			each(st.values...)
			eachExpr(st.body, f)
		case *blockStmt:
			eachExpr(st.body, f)
		}
	}
}
