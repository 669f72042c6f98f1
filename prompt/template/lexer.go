package template

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is a lexical class; operators have their own text as kind.
type tokenKind string

const (
	tokEOF      tokenKind = "end of template"
	tokData     tokenKind = "data"
	tokName     tokenKind = "name"
	tokString   tokenKind = "string"
	tokInt      tokenKind = "integer"
	tokFloat    tokenKind = "float"
	tokVarBegin tokenKind = "begin of print statement"
	tokVarEnd   tokenKind = "end of print statement"
	tokTagBegin tokenKind = "begin of statement block"
	tokTagEnd   tokenKind = "end of statement block"
)

type token struct {
	kind tokenKind
	text string
	line int
}

// lexer cuts a source as Jinja does with trim_blocks and lstrip_blocks.
type lexer struct {
	name string
	src  string
	pos  int
	line int
	toks []token

	lineStart bool     // the last match ended with a newline, so lstrip may cut
	brackets  []string // closing brackets that are due
}

// lex returns the tokens of a source, ended by tokEOF.
func lex(name, source string) (toks []token, err *Error) {
	l := &lexer{name: name, src: normalizeSource(source), line: 1, lineStart: true}
	defer func() {
		if e, ok := recover().(*Error); ok {
			toks, err = nil, e
		}
	}()
	for l.pos < len(l.src) {
		l.root()
	}
	l.emit(tokEOF, "")
	return l.toks, nil
}

// normalizeSource makes every line end "\n" and drops one at the very end.
func normalizeSource(s string) string {
	if strings.Contains(s, "\r") {
		s = strings.ReplaceAll(s, "\r\n", "\n")
		s = strings.ReplaceAll(s, "\r", "\n")
	}
	return strings.TrimSuffix(s, "\n")
}

func (l *lexer) emit(k tokenKind, text string) {
	l.toks = append(l.toks, token{k, text, l.line})
}

func (l *lexer) fail(format string) {
	panic(&Error{Template: l.name, Line: l.line, Class: "TemplateSyntaxError", Message: format, kind: ErrSyntax})
}

// advance moves over n bytes and counts lines.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
	if n > 0 {
		l.lineStart = l.src[l.pos-1] == '\n'
	}
}

// root cuts text up to the next tag, and the tag.
func (l *lexer) root() {
	rest := l.src[l.pos:]
	at := nextTag(rest)
	if at < 0 {
		l.emit(tokData, rest)
		l.advance(len(rest))
		return
	}
	kind := rest[at+1]
	sign := byte(0)
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2]
	}
	l.text(rest[:at], sign, kind)
	raw := 0
	if kind == '%' {
		raw = rawBegin(rest[at:])
	}
	n := at + 2
	if sign != 0 {
		n++
	}
	switch {
	case raw > 0:
		l.advance(at + raw)
		l.rawBody()
	case kind == '#':
		l.advance(n)
		l.comment()
	case kind == '%':
		l.advance(n)
		l.emit(tokTagBegin, "")
		l.expression(tokTagEnd)
	default:
		l.advance(n)
		l.emit(tokVarBegin, "")
		l.expression(tokVarEnd)
	}
}

// text emits the text before a tag, stripped as the tag's sign and kind ask for.
func (l *lexer) text(s string, sign, kind byte) {
	switch {
	case sign == '-':
		s = strings.TrimRightFunc(s, isSpace)
	case sign != '+' && kind != '{':
		nl := strings.LastIndexByte(s, '\n') + 1
		if (nl > 0 || l.lineStart) && strings.TrimLeftFunc(s[nl:], isSpace) == "" {
			s = s[:nl]
		}
	}
	if s != "" {
		l.emit(tokData, s)
	}
}

// nextTag is the index of the next opening delimiter, or -1.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		j := strings.IndexByte(s[i:], '{')
		if j < 0 || i+j+1 >= len(s) {
			return -1
		}
		i += j
		if c := s[i+1]; c == '{' || c == '%' || c == '#' {
			return i
		}
	}
	return -1
}

// rawBegin is the length of a raw tag at the start of s, or 0.
func rawBegin(s string) int {
	i := 2
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		i++
	}
	i += spaceLen(s[i:])
	if !strings.HasPrefix(s[i:], "raw") {
		return 0
	}
	i += 3
	i += spaceLen(s[i:])
	switch {
	case strings.HasPrefix(s[i:], "-%}"):
		return i + 3 + spaceLen(s[i+3:])
	case strings.HasPrefix(s[i:], "%}"):
		return i + 2
	}
	return 0
}

// rawBody emits the text up to endraw.
func (l *lexer) rawBody() {
	rest := l.src[l.pos:]
	for i := 0; ; {
		j := strings.Index(rest[i:], "{%")
		if j < 0 {
			l.fail("Missing end of raw directive")
		}
		i += j
		k := i + 2
		sign := byte(0)
		if k < len(rest) && (rest[k] == '-' || rest[k] == '+') {
			sign = rest[k]
			k++
		}
		k += spaceLen(rest[k:])
		if strings.HasPrefix(rest[k:], "endraw") {
			k += len("endraw")
			k += spaceLen(rest[k:])
			if n := closing(rest[k:], "%}", true); n > 0 {
				l.text(rest[:i], sign, '%')
				l.advance(k + n)
				return
			}
		}
		i += 2
	}
}

// comment skips to the end of a comment.
func (l *lexer) comment() {
	rest := l.src[l.pos:]
	for i := range len(rest) {
		if n := closing(rest[i:], "#}", true); n > 0 {
			l.advance(i + n)
			return
		}
	}
	l.fail("Missing end of comment tag")
}

// closing is the length of a closing delimiter at the start of s with its sign and
// the space it eats, or 0. Only tags and comments know '+' and eat one newline.
func closing(s, delim string, tag bool) int {
	switch {
	case strings.HasPrefix(s, delim):
		n := len(delim)
		if tag && strings.HasPrefix(s[n:], "\n") {
			n++
		}
		return n
	case s != "" && s[0] == '-' && strings.HasPrefix(s[1:], delim):
		n := 1 + len(delim)
		return n + spaceLen(s[n:])
	case tag && s != "" && s[0] == '+' && strings.HasPrefix(s[1:], delim):
		return 1 + len(delim)
	}
	return 0
}

// expression cuts tokens up to the end of a tag or print statement.
func (l *lexer) expression(end tokenKind) {
	l.brackets = l.brackets[:0]
	delim, tag := "}}", false
	if end == tokTagEnd {
		delim, tag = "%}", true
	}
	for l.pos < len(l.src) {
		rest := l.src[l.pos:]
		if len(l.brackets) == 0 {
			if n := closing(rest, delim, tag); n > 0 {
				l.emit(end, "")
				l.advance(n)
				return
			}
		}
		if n := spaceLen(rest); n > 0 {
			l.advance(n)
			continue
		}
		l.token(rest)
	}
	if n := len(l.brackets); n > 0 {
		l.fail("unexpected end of template, expected '" + l.brackets[n-1] + "'")
	}
	l.emit(tokEOF, "")
}

// token cuts one token of an expression.
func (l *lexer) token(rest string) {
	c := rest[0]
	if c >= '0' && c <= '9' {
		n, kind := numberLen(rest, l.pos > 0 && l.src[l.pos-1] == '.')
		l.emit(kind, rest[:n])
		l.advance(n)
		return
	}
	if n := nameLen(rest); n > 0 {
		l.emit(tokName, rest[:n])
		l.advance(n)
		return
	}
	if c == '"' || c == '\'' {
		l.str(rest, c)
		return
	}
	for _, op := range [...]string{"//", "**", "==", "!=", ">=", "<="} {
		if strings.HasPrefix(rest, op) {
			l.emit(tokenKind(op), "")
			l.advance(2)
			return
		}
	}
	if strings.IndexByte("+-/*%~[](){}><=.:|,;", c) < 0 {
		r, _ := utf8.DecodeRuneInString(rest)
		l.fail("unexpected char " + reprString(string(r)))
	}
	switch c {
	case '(':
		l.brackets = append(l.brackets, ")")
	case '[':
		l.brackets = append(l.brackets, "]")
	case '{':
		l.brackets = append(l.brackets, "}")
	case ')', ']', '}':
		n := len(l.brackets)
		if n == 0 || l.brackets[n-1] != string(c) {
			l.fail("unexpected '" + string(c) + "'")
		}
		l.brackets = l.brackets[:n-1]
	}
	l.emit(tokenKind(c), "")
	l.advance(1)
}

// str cuts a string literal.
func (l *lexer) str(rest string, quote byte) {
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case quote:
			l.emit(tokString, l.unescape(rest[1:i]))
			l.advance(i + 1)
			return
		}
	}
	l.fail("unexpected char '" + string(quote) + "'")
}

// nameLen is the length of an identifier at the start of s, or 0.
func nameLen(s string) int {
	n := 0
	for n < len(s) {
		c := s[n]
		if c < utf8.RuneSelf {
			if c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || n > 0 && c >= '0' && c <= '9' {
				n++
				continue
			}
			return n
		}
		r, size := utf8.DecodeRuneInString(s[n:])
		if !unicode.IsLetter(r) && (n == 0 || !unicode.In(r, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc)) {
			return n
		}
		n += size
	}
	return n
}

// numberLen is the length and kind of a number at the start of s. After a dot no
// float can start: x.1.2 is two subscripts.
func numberLen(s string, afterDot bool) (int, tokenKind) {
	digits := func(i int, ok func(byte) bool) int {
		for i < len(s) && (ok(s[i]) || s[i] == '_' && i > 0 && i+1 < len(s) && ok(s[i+1]) && s[i-1] != '_') {
			i++
		}
		return i
	}
	dec := func(c byte) bool { return c >= '0' && c <= '9' }
	if !afterDot {
		n := digits(0, dec)
		float := false
		if n+1 < len(s) && s[n] == '.' && dec(s[n+1]) {
			n, float = digits(n+1, dec), true
		}
		if n < len(s) && s[n]|0x20 == 'e' {
			m := n + 1
			if m < len(s) && (s[m] == '+' || s[m] == '-') {
				m++
			}
			if m < len(s) && dec(s[m]) {
				n, float = digits(m, dec), true
			}
		}
		if float {
			return n, tokFloat
		}
	}
	if s[0] == '0' && len(s) > 2 {
		base := map[byte]func(byte) bool{
			'b': func(c byte) bool { return c == '0' || c == '1' },
			'o': func(c byte) bool { return c >= '0' && c <= '7' },
			'x': func(c byte) bool { return dec(c) || c|0x20 >= 'a' && c|0x20 <= 'f' },
		}[s[1]|0x20]
		if base != nil {
			if n := digits(2, base); n > 2 {
				return n, tokInt
			}
		}
	}
	if s[0] == '0' {
		return digits(1, func(c byte) bool { return c == '0' }), tokInt
	}
	return digits(0, dec), tokInt
}

// spaceLen is the length of the white space at the start of s.
func spaceLen(s string) int { return len(s) - len(strings.TrimLeftFunc(s, isSpace)) }

// isSpace is Python's str.isspace for one code point, and \s of its re.
func isSpace(r rune) bool {
	switch {
	case r < 0x80:
		return r >= 9 && r <= 13 || r >= 0x1c && r <= 0x20
	case r == 0x85, r == 0xa0, r == 0x1680, r >= 0x2000 && r <= 0x200a:
		return true
	case r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}
