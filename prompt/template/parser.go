package template

import (
	"slices"
	"strings"
)

// parser builds the tree of one template, by Jinja's grammar.
type parser struct {
	name   string
	toks   []token
	pos    int
	nest   int
	folds  int         // constants tried, see fold
	loops  int         // enclosing loops of this macro or template
	macros []*macroDef // being parsed: their bodies' names are watched
}

func (p *parser) cur() *token  { return &p.toks[p.pos] }
func (p *parser) next() *token { t := &p.toks[p.pos]; p.pos = min(p.pos+1, len(p.toks)-1); return t }

func (p *parser) look() *token { return &p.toks[min(p.pos+1, len(p.toks)-1)] }

func (p *parser) is(k tokenKind) bool { return p.cur().kind == k }

func (p *parser) isName(name string) bool {
	t := p.cur()
	return t.kind == tokName && t.text == name
}

func (p *parser) skip(k tokenKind) bool {
	if p.is(k) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(k tokenKind) *token {
	if !p.is(k) {
		p.fail("expected token '" + string(k) + "', got '" + p.cur().describe() + "'")
	}
	return p.next()
}

func (t *token) describe() string {
	if t.kind == tokName {
		return t.text
	}
	return string(t.kind)
}

func (p *parser) fail(msg string) {
	panic(&Error{Template: p.name, Line: p.cur().line, Class: "TemplateSyntaxError", Message: msg, kind: ErrSyntax})
}

// refuse reports what Jinja knows and this package does not build.
func (p *parser) refuse(line int, what string) {
	panic(&Error{Template: p.name, Line: line, Class: classUnsupported, Message: what + " is not supported", kind: ErrUnsupported})
}

// deeper bounds nesting, which both parser and interpreter spend Go stack on.
func (p *parser) deeper() {
	p.nest++
	if p.nest > maxNest {
		p.refuse(p.cur().line, "nesting deeper than 100 levels")
	}
}

func (p *parser) chain(n int) {
	if n > maxChain {
		p.refuse(p.cur().line, "a chain of more than 400 operators")
	}
}

// template parses the whole source.
func (p *parser) template() []stmt {
	body := p.subparse(nil)
	if !p.is(tokEOF) {
		p.fail("unexpected '" + p.cur().describe() + "'")
	}
	return body
}

// subparse parses text, prints and tags up to one of the end tags, which it leaves.
func (p *parser) subparse(ends []string) []stmt {
	var body []stmt
	var parts []outPart
	flush := func() {
		if len(parts) > 0 {
			body = append(body, &outputStmt{parts})
			parts = nil
		}
	}
	for {
		t := p.cur()
		switch t.kind {
		case tokData:
			p.next()
			parts = append(parts, outPart{text: t.text, line: t.line})
		case tokVarBegin:
			p.next()
			parts = append(parts, outPart{x: p.printed(p.tuple(tupleOpts{})), line: t.line})
			p.expect(tokVarEnd)
		case tokTagBegin:
			flush()
			p.next()
			if slices.ContainsFunc(ends, p.isName) {
				return body
			}
			body = append(body, p.statement())
			p.expect(tokTagEnd)
		case tokEOF:
			flush()
			if ends != nil {
				p.fail("Unexpected end of template. Jinja was looking for the following tags: '" +
					strings.Join(ends, "' or '") + "'.")
			}
			return body
		default:
			p.fail("unexpected '" + t.describe() + "'")
		}
	}
}

// printed lets `{{ x | safe }}` pass: printed at once, marking it safe does nothing.
func (p *parser) printed(x expr) expr {
	if f, ok := x.(*filterExpr); ok && f.name == "safe" && f.x != nil && f.empty() {
		x = f.x
	}
	return p.foldPrinted(x)
}

func (a *callArgs) empty() bool {
	return len(a.args) == 0 && len(a.kwargs) == 0 && a.dynArgs == nil && a.dynNamed == nil
}

// statements parses a tag's body; with drop it also consumes the end tag's name.
func (p *parser) statements(drop bool, ends ...string) []stmt {
	p.deeper()
	p.skip(":")
	p.expect(tokTagEnd)
	body := p.subparse(ends)
	if drop {
		p.next()
	}
	p.nest--
	return body
}

func (p *parser) statement() stmt {
	t := p.cur()
	if t.kind != tokName {
		p.fail("tag name expected")
	}
	line := t.line
	switch t.text {
	case "for":
		return p.forStatement()
	case "if":
		return p.ifStatement()
	case "set":
		return p.setStatement()
	case "macro":
		return p.macroStatement()
	case "call":
		return p.callStatement()
	case "filter":
		p.next()
		return p.filterStatement(line)
	case "with":
		p.next()
		return p.withStatement(line)
	case "block":
		return p.blockStatement()
	case "print":
		return p.printStatement()
	case "generation":
		p.next()
		def := p.macroBody(&macroDef{line: line, anonymous: true}, "endgeneration")
		return &genStmt{line: line, def: def}
	case "break", "continue":
		p.next()
		if p.loops == 0 {
			p.refuse(line, "'"+t.text+"' outside of a loop")
		}
		if t.text == "break" {
			return &breakStmt{}
		}
		return &continueStmt{}
	case "extends", "include", "import", "from", "autoescape":
		p.refuse(line, "the tag '"+t.text+"'")
	}
	p.fail("Encountered unknown tag '" + t.text + "'.")
	return nil
}

func (p *parser) forStatement() stmt {
	f := &forStmt{line: p.next().line}
	f.target = p.target(tupleOpts{endName: "in"}, false)
	p.noLoopTarget(f.target)
	if !p.skipName("in") {
		p.fail("expected token 'in', got '" + p.cur().describe() + "'")
	}
	f.iter = p.fold(p.tuple(tupleOpts{noCond: true, endName: "recursive"}))
	if p.skipName("if") {
		f.test = p.fold(p.expression())
	}
	if p.isName("recursive") {
		p.refuse(f.line, "a recursive loop")
	}
	p.loops++
	f.body = p.statements(false, "endfor", "else")
	p.loops--
	if p.next().text == "else" {
		f.alt = p.statements(true, "endfor")
	}
	return f
}

func (p *parser) noLoopTarget(t expr) {
	switch x := t.(type) {
	case *nameExpr:
		if x.name == "loop" {
			p.fail("Can't assign to special loop variable in for-loop target")
		}
	case *tupleExpr:
		for _, it := range x.items {
			p.noLoopTarget(it)
		}
	}
}

func (p *parser) ifStatement() stmt {
	f := &ifStmt{line: p.next().line}
	for n := 0; ; n++ {
		f.tests = append(f.tests, p.fold(p.tuple(tupleOpts{noCond: true})))
		f.arms = append(f.arms, p.statements(false, "elif", "else", "endif"))
		switch p.next().text {
		case "elif":
			continue
		case "else":
			f.alt = p.statements(true, "endif")
		}
		return f
	}
}

func (p *parser) setStatement() stmt {
	line := p.next().line
	target := p.target(tupleOpts{}, true)
	if p.skip("=") {
		return &setStmt{line: line, target: target, x: p.fold(p.tuple(tupleOpts{}))}
	}
	s := &setBlockStmt{line: line, target: target}
	if p.is("|") {
		s.filter = p.filters(nil)
	}
	s.body = p.statements(true, "endset")
	return s
}

func (p *parser) macroStatement() stmt {
	line := p.next().line
	name := p.nameTarget()
	def := &macroDef{name: name.name, line: line}
	p.signature(def)
	return &macroStmt{line: line, name: *name, def: p.macroBody(def, "endmacro")}
}

// macroBody parses a body that runs in a frame of its own.
func (p *parser) macroBody(def *macroDef, end string) *macroDef {
	loops := p.loops
	p.loops = 0
	p.macros = append(p.macros, def)
	def.body = p.statements(true, end)
	p.macros = p.macros[:len(p.macros)-1]
	p.loops = loops
	if def.hasCaller && def.explicitCaller {
		for i, param := range def.params {
			if param.name == "caller" && i < len(def.params)-len(def.defaults) {
				p.fail("When defining macros or call blocks the special \"caller\" argument must be omitted or be given a default.")
			}
		}
	}
	return def
}

func (p *parser) signature(def *macroDef) {
	p.expect("(")
	for !p.is(")") {
		if len(def.params) > 0 {
			p.expect(",")
		}
		arg := p.nameTarget()
		for _, other := range def.params {
			if other.name == arg.name {
				p.fail("duplicate argument '" + arg.name + "' in function definition")
			}
		}
		if arg.name == "caller" {
			def.explicitCaller = true
		}
		def.params = append(def.params, arg)
		if p.skip("=") {
			def.defaults = append(def.defaults, p.fold(p.expression()))
		} else if len(def.defaults) > 0 {
			p.fail("non-default argument follows default argument")
		}
	}
	p.expect(")")
}

func (p *parser) callStatement() stmt {
	c := &callBlockStmt{line: p.next().line}
	c.def = &macroDef{name: "caller", line: c.line, anonymous: true}
	if p.is("(") {
		p.signature(c.def)
	}
	call, ok := p.fold(p.expression()).(*callExpr)
	if !ok {
		p.fail("expected call")
	}
	c.call = call
	p.macroBody(c.def, "endcall")
	return c
}

func (p *parser) filterStatement(line int) stmt {
	f := &filterBlockStmt{line: line}
	f.filter = p.filter(nil)
	if p.is("|") {
		f.filter = p.filters(f.filter)
	}
	f.filter = p.fold(f.filter)
	f.body = p.statements(true, "endfilter")
	return f
}

func (p *parser) withStatement(line int) stmt {
	w := &withStmt{line: line}
	for !p.is(tokTagEnd) && !p.is(tokEOF) {
		if len(w.targets) > 0 {
			p.expect(",")
		}
		w.targets = append(w.targets, p.target(tupleOpts{}, false))
		p.expect("=")
		w.values = append(w.values, p.fold(p.expression()))
	}
	w.body = p.statements(true, "endwith")
	return w
}

func (p *parser) blockStatement() stmt {
	b := &blockStmt{line: p.next().line}
	b.name = p.expect(tokName).text
	if p.isName("scoped") || p.isName("required") {
		p.refuse(b.line, "a scoped or required block")
	}
	if len(p.macros) > 0 || p.loops > 0 {
		p.refuse(b.line, "a block inside of a loop or macro")
	}
	b.body = p.statements(false, "endblock")
	p.next()
	p.skipName(b.name)
	return b
}

func (p *parser) printStatement() stmt {
	line := p.next().line
	out := &outputStmt{}
	for !p.is(tokTagEnd) && !p.is(tokEOF) {
		if len(out.parts) > 0 {
			p.expect(",")
		}
		out.parts = append(out.parts, outPart{x: p.foldPrinted(p.expression()), line: line})
	}
	return out
}
