package template

import "maps"

// resolver gives every name its variable, by the rules of Jinja's compiler
// (idtracking.py): a scope's names are known before its code runs; a name that is
// stored there starts as a copy of the outer one, a name that is only read is the
// outer one itself, and a name found nowhere is asked from the render's variables.
type resolver struct {
	name   string
	names  map[string]int32 // of render variables, to their index
	list   []string
	blocks map[string]bool
	vars   int
	root   *scope
}

// scope is one region of names: the template, a loop body, a macro, a block.
type scope struct {
	parent *scope
	proc   *procInfo
	ids    map[string]int32 // slots by name, shared with branches
	refs   map[string]bool  // names defined in this scope
	loads  map[string]load
	stores map[string]bool
	init   *scopeInit
}

// load is how a variable starts.
type load struct {
	how   loadHow
	outer *scope // loadAlias: the scope that has the name
}

type loadHow uint8

const (
	loadUndefined loadHow = iota
	loadParam
	loadAlias
	loadResolve
)

func (rs *resolver) fail(line int, what string) {
	panic(&Error{Template: rs.name, Line: line, Class: classUnsupported, Message: what + " is not supported", kind: ErrUnsupported})
}

func (rs *resolver) newScope(parent *scope, proc *procInfo) *scope {
	return &scope{
		parent: parent, proc: proc,
		ids: map[string]int32{}, refs: map[string]bool{}, loads: map[string]load{}, stores: map[string]bool{},
		init: &scopeInit{},
	}
}

func (s *scope) branch() *scope {
	b := *s
	b.refs, b.loads, b.stores = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)
	return &b
}

// find returns the scope that defines name.
func (s *scope) find(name string) *scope {
	for ; s != nil; s = s.parent {
		if s.refs[name] {
			return s
		}
	}
	return nil
}

func (rs *resolver) define(s *scope, name string, l load) {
	if _, ok := s.ids[name]; !ok {
		rs.vars++
		if rs.vars > maxNames {
			rs.fail(0, "more than 4096 variables")
		}
		s.ids[name] = s.proc.slots
		s.proc.slots++
	}
	s.refs[name] = true
	s.loads[name] = l
}

func (rs *resolver) param(s *scope, name string) {
	s.stores[name] = true
	rs.define(s, name, load{how: loadParam})
}

func (rs *resolver) store(s *scope, name string) {
	s.stores[name] = true
	if s.refs[name] {
		return
	}
	if s.parent != nil {
		if outer := s.parent.find(name); outer != nil {
			rs.define(s, name, load{loadAlias, outer})
			return
		}
	}
	rs.define(s, name, load{how: loadUndefined})
}

func (rs *resolver) load(s *scope, name string) {
	if name == "self" || name == "super" {
		rs.fail(0, "the name '"+name+"'")
	}
	if s.find(name) == nil {
		rs.define(s, name, load{how: loadResolve})
	}
}

// merge takes over what the branches of an if did.
func (rs *resolver) merge(s *scope, branches []*scope) {
	stored := map[string]bool{}
	for _, b := range branches {
		for name := range b.stores {
			if !s.stores[name] {
				stored[name] = true
			}
		}
	}
	for _, b := range branches {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.loads, b.loads)
		maps.Copy(s.stores, b.stores)
	}
	for name := range stored {
		s.loads[name] = load{how: loadResolve}
		if s.parent != nil {
			if outer := s.parent.find(name); outer != nil {
				s.loads[name] = load{loadAlias, outer}
			}
		}
	}
}

// finish writes down how the scope's variables start. Call it once the scope has
// seen all its names.
func (rs *resolver) finish(s *scope) {
	for name, l := range s.loads {
		op := initOp{slot: s.ids[name]}
		switch l.how {
		case loadParam:
			continue
		case loadAlias:
			op.how, op.src = initAlias, s.refTo(l.outer, name)
		case loadResolve:
			op.how, op.name = initResolve, rs.nameIndex(name)
		case loadUndefined:
			op.how = initMissing
		}
		s.init.ops = append(s.init.ops, op)
	}
}

func (rs *resolver) nameIndex(name string) int32 {
	i, ok := rs.names[name]
	if !ok {
		i = int32(len(rs.list)) //nolint:gosec // at most maxNames
		rs.names[name] = i
		rs.list = append(rs.list, name)
	}
	return i
}

// refTo is the reference from code in s to a variable of outer.
func (s *scope) refTo(outer *scope, name string) slotRef {
	up := int32(0)
	for p := s.proc; p != outer.proc; p = p.parent {
		up++
	}
	return slotRef{up, outer.ids[name]}
}

// bind is the reference of a name in finished scope s.
func (rs *resolver) bind(s *scope, name string) slotRef {
	return s.refTo(s.find(name), name)
}

// declare is the first pass over a scope's own statements: it notes the names and
// does not enter inner scopes.
func (rs *resolver) declare(s *scope, body []stmt) {
	for _, st := range body {
		rs.declareStmt(s, st)
	}
}

func (rs *resolver) declareStmt(s *scope, st stmt) {
	loads := func(x expr) { rs.declareExpr(s, x) }
	switch st := st.(type) {
	case *outputStmt:
		for _, p := range st.parts {
			loads(p.x)
		}
	case *setStmt:
		loads(st.x)
		rs.declareTarget(s, st.target, false)
	case *setBlockStmt:
		rs.declareTarget(s, st.target, false)
	case *forStmt:
		loads(st.iter)
	case *ifStmt:
		rs.declareIf(s, st)
	case *macroStmt:
		rs.store(s, st.name.name)
	case *callBlockStmt:
		loads(st.call)
	case *filterBlockStmt:
		loads(st.filter)
	case *withStmt:
		for _, v := range st.values {
			loads(v)
		}
	}
}

// declareIf: Jinja analyses elif arms as ifs of their own, all against the names
// known before the first arm.
func (rs *resolver) declareIf(s *scope, st *ifStmt) {
	rs.declareExpr(s, st.tests[0])
	body := s.branch()
	rs.declare(body, st.arms[0])
	elifs := s.branch()
	for i := 1; i < len(st.arms); i++ {
		rs.declareExpr(elifs, st.tests[i])
		arm, none1, none2 := elifs.branch(), elifs.branch(), elifs.branch()
		rs.declare(arm, st.arms[i])
		rs.merge(elifs, []*scope{arm, none1, none2})
	}
	alt := s.branch()
	rs.declare(alt, st.alt)
	rs.merge(s, []*scope{body, elifs, alt})
}

func (rs *resolver) declareTarget(s *scope, t expr, param bool) {
	switch t := t.(type) {
	case *nameExpr:
		if param {
			rs.param(s, t.name)
		} else {
			rs.store(s, t.name)
		}
	case *nsTarget:
		rs.load(s, t.name)
	case *tupleExpr:
		for _, x := range t.items {
			rs.declareTarget(s, x, param)
		}
	}
}

func (rs *resolver) declareExpr(s *scope, x expr) {
	if n, ok := x.(*nameExpr); ok {
		rs.load(s, n.name)
		return
	}
	eachChild(x, func(c expr) { rs.declareExpr(s, c) })
}

// eachChild calls f for every operand of x, in the order of evaluation.
func eachChild(x expr, f func(expr)) {
	eachOperand(x, func(c *expr) { f(*c) })
}

// eachOperand is eachChild with the places of the operands, so that f may replace
// them.
func eachOperand(x expr, f func(*expr)) {
	one := func(places ...*expr) {
		for _, c := range places {
			if *c != nil {
				f(c)
			}
		}
	}
	all := func(xs []expr) {
		for i := range xs {
			one(&xs[i])
		}
	}
	args := func(a *callArgs) {
		all(a.args)
		all(a.kwargs)
		one(&a.dynArgs, &a.dynNamed)
	}
	switch x := x.(type) {
	case *listExpr:
		all(x.items)
	case *tupleExpr:
		all(x.items)
	case *dictExpr:
		for i := range x.keys {
			one(&x.keys[i], &x.vals[i])
		}
	case *condExpr:
		one(&x.test, &x.yes, &x.no)
	case *binExpr:
		one(&x.a, &x.b)
	case *addExpr:
		all(x.terms)
	case *concatExpr:
		all(x.terms)
	case *unaryExpr:
		one(&x.x)
	case *logicExpr:
		one(&x.a, &x.b)
	case *compareExpr:
		one(&x.first)
		all(x.terms)
	case *attrExpr:
		one(&x.x)
	case *itemExpr:
		one(&x.x, &x.key)
	case *sliceExpr:
		one(&x.x, &x.from, &x.to, &x.step)
	case *callExpr:
		one(&x.fn)
		args(&x.callArgs)
	case *filterExpr:
		one(&x.x)
		args(&x.callArgs)
	case *testExpr:
		one(&x.x)
		args(&x.callArgs)
	}
}
