package template

import "strings"

// tupleOpts says where a tuple without parentheses ends.
type tupleOpts struct {
	names      bool   // only names and literals: an assignment's left side
	namespaces bool   // with names: NAME.ATTR is allowed
	noCond     bool   // no inline if
	parens     bool   // in parentheses: may be empty
	endName    string // a name that ends it
}

func (p *parser) tupleEnd(o tupleOpts) bool {
	switch p.cur().kind {
	case tokVarEnd, tokTagEnd, ")":
		return true
	}
	return o.endName != "" && p.isName(o.endName)
}

// tuple parses an expression, or several with commas between.
func (p *parser) tuple(o tupleOpts) expr {
	p.deeper()
	defer func() { p.nest-- }()
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 {
			p.expect(",")
		}
		if p.tupleEnd(o) {
			break
		}
		switch {
		case o.names:
			items = append(items, p.primary(o.namespaces))
		case o.noCond:
			items = append(items, p.or())
		default:
			items = append(items, p.expression())
		}
		if !p.is(",") {
			break
		}
		isTuple = true
	}
	if isTuple {
		return &tupleExpr{items}
	}
	if len(items) > 0 {
		return items[0]
	}
	if !o.parens {
		p.fail("Expected an expression, got '" + p.cur().describe() + "'")
	}
	return &tupleExpr{}
}

// target parses the left side of an assignment.
func (p *parser) target(o tupleOpts, namespaces bool) expr {
	o.names, o.namespaces = true, namespaces
	x := p.tuple(o)
	p.assignable(x)
	return x
}

func (p *parser) assignable(x expr) {
	switch t := x.(type) {
	case *nameExpr, *nsTarget:
	case *tupleExpr:
		for _, it := range t.items {
			p.assignable(it)
		}
	default:
		p.fail("can't assign to this expression")
	}
}

func (p *parser) nameTarget() *nameExpr {
	t := p.expect(tokName)
	switch t.text {
	case "true", "false", "none", "True", "False", "None":
		p.fail("can't assign to 'const'")
	}
	return &nameExpr{name: t.text}
}

func (p *parser) expression() expr {
	p.deeper()
	x := p.or()
	for n := 0; p.isName("if"); n++ {
		p.chain(n)
		line := p.next().line
		c := &condExpr{yes: x, test: p.or(), line: line}
		if p.skipName("else") {
			c.no = p.expression()
		}
		x = c
	}
	p.nest--
	return x
}

func (p *parser) or() expr {
	x := p.and()
	for n := 0; p.skipName("or"); n++ {
		p.chain(n)
		x = &logicExpr{or: true, a: x, b: p.and()}
	}
	return x
}

func (p *parser) and() expr {
	x := p.not()
	for n := 0; p.skipName("and"); n++ {
		p.chain(n)
		x = &logicExpr{a: x, b: p.not()}
	}
	return x
}

func (p *parser) not() expr {
	if p.skipName("not") {
		p.deeper()
		x := &unaryExpr{"not", p.not()}
		p.nest--
		return x
	}
	return p.compare()
}

func (p *parser) compare() expr {
	x := p.add()
	c := &compareExpr{first: x}
	for {
		op := ""
		switch t := p.cur(); t.kind {
		case "==", "!=", "<", "<=", ">", ">=":
			op = string(t.kind)
			p.next()
		case tokName:
			switch {
			case t.text == "in":
				op = "in"
				p.next()
			case t.text == "not" && p.look().kind == tokName && p.look().text == "in":
				op = "not in"
				p.next()
				p.next()
			}
		}
		if op == "" {
			break
		}
		p.chain(len(c.ops))
		c.ops = append(c.ops, op)
		c.terms = append(c.terms, p.add())
	}
	if len(c.ops) == 0 {
		return x
	}
	return c
}

// add parses + and -, keeping a chain of + flat.
func (p *parser) add() expr {
	x := p.tilde()
	for n := 0; p.is("+") || p.is("-"); n++ {
		p.chain(n)
		if p.next().kind == "-" {
			x = &binExpr{"-", x, p.tilde()}
			continue
		}
		y := p.tilde()
		if a, ok := x.(*addExpr); ok && n > 0 {
			a.terms = append(a.terms, y)
			continue
		}
		x = &addExpr{[]expr{x, y}}
	}
	return x
}

func (p *parser) tilde() expr {
	x := p.mul()
	if !p.is("~") {
		return x
	}
	c := &concatExpr{[]expr{x}}
	for p.skip("~") {
		p.chain(len(c.terms))
		c.terms = append(c.terms, p.mul())
	}
	return c
}

func (p *parser) mul() expr {
	x := p.pow()
	for n := 0; p.is("*") || p.is("/") || p.is("//") || p.is("%"); n++ {
		p.chain(n)
		op := string(p.next().kind)
		x = &binExpr{op, x, p.pow()}
	}
	return x
}

func (p *parser) pow() expr {
	x := p.unary(true)
	for n := 0; p.skip("**"); n++ {
		p.chain(n)
		x = &binExpr{"**", x, p.unary(true)}
	}
	return x
}

func (p *parser) unary(filters bool) expr {
	var x expr
	switch {
	case p.is("-") || p.is("+"):
		p.deeper()
		op := string(p.next().kind)
		x = &unaryExpr{op, p.unary(false)}
		p.nest--
	default:
		x = p.primary(false)
	}
	x = p.postfix(x)
	if filters {
		x = p.filterTail(x)
	}
	return x
}

func (p *parser) primary(namespaces bool) expr {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		return p.nameOrConst(t, namespaces)
	case tokString:
		p.next()
		text := t.text
		if p.is(tokString) {
			var b strings.Builder
			b.WriteString(text)
			for p.is(tokString) {
				b.WriteString(p.next().text)
			}
			text = b.String()
		}
		return &constExpr{strValue(text)}
	case tokInt, tokFloat:
		p.next()
		return &constExpr{p.number(t)}
	case "(":
		p.next()
		x := p.tuple(tupleOpts{parens: true})
		p.expect(")")
		return x
	case "[":
		return p.list()
	case "{":
		return p.dict()
	}
	p.fail("unexpected '" + t.describe() + "'")
	return nil
}

func (p *parser) number(t *token) value {
	read := intLiteral
	if t.kind == tokFloat {
		read = floatLiteral
	}
	v, ok := read(t.text)
	if !ok {
		p.refuse(t.line, "the number "+t.text)
	}
	return v
}

func (p *parser) nameOrConst(t *token, namespaces bool) expr {
	switch t.text {
	case "true", "True":
		return &constExpr{boolValue(true)}
	case "false", "False":
		return &constExpr{boolValue(false)}
	case "none", "None":
		return &constExpr{none()}
	}
	if namespaces && p.skip(".") {
		return &nsTarget{nameExpr{name: t.text}, p.expect(tokName).text}
	}
	for _, m := range p.macros {
		switch t.text {
		case "caller":
			m.hasCaller = true
		case "kwargs":
			m.hasKw = true
		case "varargs":
			m.hasVar = true
		}
	}
	return &nameExpr{name: t.text}
}

func (p *parser) list() expr {
	p.deeper()
	p.next()
	l := &listExpr{}
	for !p.is("]") {
		if len(l.items) > 0 {
			p.expect(",")
		}
		if p.is("]") {
			break
		}
		l.items = append(l.items, p.expression())
	}
	p.expect("]")
	p.nest--
	return l
}

func (p *parser) dict() expr {
	p.deeper()
	p.next()
	d := &dictExpr{}
	for !p.is("}") {
		if len(d.keys) > 0 {
			p.expect(",")
		}
		if p.is("}") {
			break
		}
		d.keys = append(d.keys, p.expression())
		p.expect(":")
		d.vals = append(d.vals, p.expression())
	}
	p.expect("}")
	p.nest--
	return d
}

func (p *parser) postfix(x expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch p.cur().kind {
		case ".", "[":
			x = p.subscript(x)
		case "(":
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) filterTail(x expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.is("|"):
			x = p.filters(x)
		case p.isName("is"):
			x = p.test(x)
		case p.is("("):
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) subscript(x expr) expr {
	if p.next().kind == "." {
		t := p.next()
		switch t.kind {
		case tokName:
			return &attrExpr{x, t.text}
		case tokInt:
			return &itemExpr{x, &constExpr{p.number(t)}}
		}
		p.fail("expected name or number")
	}
	p.deeper()
	var keys []expr
	slices := false
	for !p.is("]") {
		if len(keys) > 0 {
			p.expect(",")
		}
		k := p.subscribed(x)
		_, sl := k.(*sliceExpr)
		slices = slices || sl
		keys = append(keys, k)
	}
	p.expect("]")
	p.nest--
	if len(keys) == 1 {
		if slices {
			return keys[0]
		}
		return &itemExpr{x, keys[0]}
	}
	if slices {
		p.refuse(p.cur().line, "a tuple of slices")
	}
	return &itemExpr{x, &tupleExpr{keys}}
}

// subscribed parses a key, or a slice of x.
func (p *parser) subscribed(x expr) expr {
	s := &sliceExpr{x: x}
	if !p.is(":") {
		k := p.expression()
		if !p.is(":") {
			return k
		}
		s.from = k
	}
	p.next()
	if !p.is(":") && !p.is("]") && !p.is(",") {
		s.to = p.expression()
	}
	if p.skip(":") && !p.is("]") && !p.is(",") {
		s.step = p.expression()
	}
	return s
}

func (p *parser) call(fn expr) expr {
	line := p.cur().line
	c := &callExpr{fn: fn, callArgs: p.arguments()}
	if a, ok := fn.(*attrExpr); ok && refusedMethod(a.name) {
		p.refuse(line, "the method '"+a.name+"'")
	}
	return c
}

func (p *parser) arguments() callArgs {
	p.deeper()
	p.expect("(")
	var a callArgs
	bad := func(is bool) {
		if is {
			p.fail("invalid syntax for function call expression")
		}
	}
	for first := true; !p.is(")"); first = false {
		if !first {
			p.expect(",")
			if p.is(")") {
				break
			}
		}
		switch {
		case p.skip("*"):
			bad(a.dynArgs != nil || a.dynNamed != nil)
			a.dynArgs = p.expression()
		case p.skip("**"):
			bad(a.dynNamed != nil)
			a.dynNamed = p.expression()
		case p.is(tokName) && p.look().kind == "=":
			bad(a.dynNamed != nil)
			name := p.next().text
			p.next()
			for _, other := range a.names {
				bad(other == name)
			}
			a.names = append(a.names, name)
			a.kwargs = append(a.kwargs, p.expression())
		default:
			bad(a.dynArgs != nil || a.dynNamed != nil || len(a.kwargs) > 0)
			a.args = append(a.args, p.expression())
		}
	}
	p.expect(")")
	p.nest--
	return a
}

// filters parses one or more filters of x; nil x is a block's text.
func (p *parser) filters(x expr) expr {
	for n := 0; p.skip("|"); n++ {
		p.chain(n)
		x = p.filter(x)
	}
	return x
}

func (p *parser) filter(x expr) expr {
	t := p.expect(tokName)
	f := &filterExpr{x: x, name: p.dotted(t.text), line: t.line}
	if p.is("(") {
		f.callArgs = p.arguments()
	}
	f.fn = filterByName(f.name)
	if f.fn == nil && f.name != "safe" {
		p.refuse(t.line, "the filter '"+f.name+"'")
	}
	p.checkNamed(f, t.line)
	return f
}

// checkNamed refuses an unknown filter or test that is named in a string.
func (p *parser) checkNamed(f *filterExpr, line int) {
	at, find := 0, testKnown
	switch f.name {
	case "map":
		find = func(name string) bool { return filterByName(name) != nil }
	case "select", "reject":
	case "selectattr", "rejectattr":
		at = 1
	default:
		return
	}
	if len(f.args) <= at {
		return
	}
	c, ok := f.args[at].(*constExpr)
	if ok && c.v.k == kStr && !find(c.v.s) {
		p.refuse(line, "the filter or test '"+c.v.s+"'")
	}
}

func (p *parser) dotted(name string) string {
	parts := []string{name}
	for p.skip(".") {
		parts = append(parts, p.expect(tokName).text)
	}
	return strings.Join(parts, ".")
}

func (p *parser) test(x expr) expr {
	line := p.next().line
	negated := p.skipName("not")
	t := &testExpr{x: x}
	t.name = p.dotted(p.expect(tokName).text)
	switch p.cur().kind {
	case "(":
		t.callArgs = p.arguments()
	case tokName:
		if p.isName("else") || p.isName("or") || p.isName("and") {
			break
		}
		if p.isName("is") {
			p.fail("You cannot chain multiple tests with is")
		}
		t.args = []expr{p.postfix(p.primary(false))}
	case tokString, tokInt, tokFloat, "[", "{":
		t.args = []expr{p.postfix(p.primary(false))}
	}
	t.fn = testByName(t.name)
	if t.fn == nil {
		p.refuse(line, "the test '"+t.name+"'")
	}
	if negated {
		return &unaryExpr{"not", t}
	}
	return t
}
