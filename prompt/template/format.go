package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatter is one str.format call: automatic and explicit field numbers do not mix.
type formatter struct {
	r    *run
	a    *args
	auto int // next automatic field; -1 after an explicit one
}

// format is the sandbox's str.format.
func (r *run) format(s string, a *args) string {
	f := &formatter{r: r, a: a}
	return f.text(s, 2)
}

func (f *formatter) text(s string, depth int) string {
	if depth < 0 {
		f.r.fail("ValueError", "Max string recursion exceeded")
	}
	var b []byte
	for s != "" {
		at := strings.IndexAny(s, "{}")
		if at < 0 {
			at = len(s)
		}
		f.r.alloc(at)
		b = append(b, s[:at]...)
		if s = s[at:]; s == "" {
			break
		}
		if len(s) > 1 && s[1] == s[0] {
			b = append(b, s[0])
			s = s[2:]
			continue
		}
		if s[0] == '}' {
			f.r.fail("ValueError", "Single '}' encountered in format string")
		}
		end := f.fieldEnd(s)
		text := f.field(s[1:end], depth)
		f.r.alloc(len(text))
		b = append(b, text...)
		s = s[end+1:]
	}
	return string(b)
}

// fieldEnd is the index of the brace that closes the field at the start of s.
func (f *formatter) fieldEnd(s string) int {
	depth, inBrackets := 0, false
	for i := range len(s) {
		switch s[i] {
		case '[':
			inBrackets = depth == 1 || inBrackets
		case ']':
			inBrackets = false
		case '{':
			depth++
		case '}':
			if inBrackets {
				continue
			}
			if depth--; depth == 0 {
				return i
			}
		}
	}
	if len(s) == 1 {
		f.r.fail("ValueError", "Single '{' encountered in format string")
	}
	f.r.fail("ValueError", "expected '}' before end of string")
	return 0
}

func (f *formatter) field(s string, depth int) string {
	f.r.step()
	name, rest := s, ""
	for i, in := 0, false; i < len(s); i++ {
		switch s[i] {
		case '[':
			in = true
		case ']':
			in = false
		}
		if !in && (s[i] == '!' || s[i] == ':') {
			name, rest = s[:i], s[i:]
			break
		}
	}
	conversion := byte(0)
	if strings.HasPrefix(rest, "!") {
		if len(rest) < 2 {
			f.r.fail("ValueError", "unmatched '{' in format spec")
		}
		conversion = rest[1]
		if rest = rest[2:]; rest != "" && rest[0] != ':' {
			f.r.fail("ValueError", "expected ':' after conversion specifier")
		}
	}
	spec := strings.TrimPrefix(rest, ":")
	v := f.lookup(name)
	switch conversion {
	case 0:
	case 's':
		v = strValue(f.r.str(v))
	case 'r':
		v = strValue(f.r.repr(v))
	case 'a':
		v = strValue(asciiRepr(f.r.repr(v)))
	default:
		f.r.fail("ValueError", "Unknown conversion specifier %c", conversion)
	}
	return f.r.formatSpec(v, f.text(spec, depth-1))
}

// lookup reads NAME.attr[item] in the arguments.
func (f *formatter) lookup(name string) value {
	r := f.r
	at := strings.IndexAny(name, ".[")
	first, rest := name, ""
	if at >= 0 {
		first, rest = name[:at], name[at:]
	}
	v := f.first(first)
	for rest != "" {
		if rest[0] == '.' {
			rest = rest[1:]
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			if end == 0 {
				r.fail("ValueError", "Empty attribute in format string")
			}
			v = r.getattr(v, rest[:end])
			rest = rest[end:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			r.fail("ValueError", "Missing ']' in format string")
		}
		key := rest[1:end]
		if key == "" {
			r.fail("ValueError", "Empty attribute in format string")
		}
		v = r.getitem(v, formatIndex(key))
		rest = rest[end+1:]
		if rest != "" && rest[0] != '.' && rest[0] != '[' {
			r.fail("ValueError", "Only '.' or '[' may follow ']' in format field specifier")
		}
	}
	return v
}

func formatIndex(s string) value {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && s[0] != '-' && s[0] != '+' {
		return intValue(n)
	}
	return strValue(s)
}

func (f *formatter) first(name string) value {
	r := f.r
	var key value
	switch name {
	case "":
		if f.auto < 0 {
			r.fail("ValueError", "cannot switch from manual field specification to automatic field numbering")
		}
		key = intValue(int64(f.auto))
		f.auto++
	default:
		key = formatIndex(name)
		if key.k == kInt {
			if f.auto > 0 {
				r.fail("ValueError", "cannot switch from manual field specification to automatic field numbering")
			}
			f.auto = -1
		}
	}
	if key.k == kInt {
		if key.n >= int64(len(f.a.pos)) {
			r.fail("IndexError", "Replacement index %d out of range for positional args tuple", key.n)
		}
		return f.a.pos[key.n]
	}
	v, ok := f.a.take(name, false)
	if !ok {
		r.fail("KeyError", "%s", reprString(name))
	}
	return v
}

// spec is a parsed format specification.
type spec struct {
	fill        string
	align, sign byte
	alt, zero   bool
	width, prec int
	group, verb byte
}

// formatSpec is Python's format(v, spec).
func (r *run) formatSpec(v value, s string) string {
	if s == "" {
		return r.str(v)
	}
	switch v.k {
	case kStr, kBool, kInt, kBig, kFloat:
	default:
		r.typeError("unsupported format string passed to %s.__format__", typeName(v))
	}
	sp := r.parseSpec(s)
	r.alloc(sp.width*len(sp.fill) + max(sp.prec, 0))
	switch v.k {
	case kStr:
		return r.specString(v.s, &sp)
	case kFloat:
		return r.specFloat(v.float(), &sp)
	}
	switch sp.verb {
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		return r.specFloat(r.toFloat(v), &sp)
	}
	if v.k == kBool && sp.verb == 0 {
		return r.specInt(big.NewInt(v.n), &sp)
	}
	return r.specInt(toBig(v), &sp)
}

func (r *run) parseSpec(s string) spec {
	sp := spec{fill: " ", prec: -1}
	whole := s
	if c, n := utf8.DecodeRuneInString(s); len(s) > n && strings.IndexByte("<>=^", s[n]) >= 0 {
		sp.fill, sp.align = string(c), s[n]
		s = s[n+1:]
	} else if strings.IndexByte("<>=^", s[0]) >= 0 {
		sp.align = s[0]
		s = s[1:]
	}
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		sp.sign, s = s[0], s[1:]
	}
	if strings.HasPrefix(s, "#") {
		sp.alt, s = true, s[1:]
	}
	if strings.HasPrefix(s, "0") {
		sp.zero = true
		if sp.align == 0 {
			sp.fill, sp.align = "0", '='
		}
		s = s[1:]
	}
	sp.width, s = r.formatNumber(strings.TrimPrefix(s, "*"), nil)
	if s != "" && (s[0] == ',' || s[0] == '_') {
		sp.group, s = s[0], s[1:]
	}
	if strings.HasPrefix(s, ".") {
		n := len(s)
		sp.prec, s = r.formatNumber(strings.TrimPrefix(s[1:], "*"), nil)
		if len(s) == n-1 {
			r.fail("ValueError", "Format specifier missing precision")
		}
	}
	if len(s) > 1 {
		r.fail("ValueError", "Invalid format specifier '%s'", whole)
	}
	if s != "" {
		sp.verb = s[0]
	}
	return sp
}

func (r *run) specString(s string, sp *spec) string {
	switch {
	case sp.verb != 0 && sp.verb != 's':
		r.fail("ValueError", "Unknown format code '%c' for object of type 'str'", sp.verb)
	case sp.sign != 0:
		r.fail("ValueError", "Sign not allowed in string format specifier")
	case sp.align == '=' && !sp.zero, sp.alt, sp.group != 0:
		r.fail("ValueError", "'=' alignment not allowed in string format specifier")
	}
	if sp.zero && sp.align == '=' {
		sp.align = '<'
	}
	if sp.prec >= 0 && utf8.RuneCountInString(s) > sp.prec {
		s = s[:runeOffset(s, sp.prec)]
	}
	return sp.pad(s, '<')
}

func (r *run) specInt(n *big.Int, sp *spec) string {
	if sp.prec >= 0 {
		r.fail("ValueError", "Precision not allowed in integer format specifier")
	}
	base, prefix := 10, ""
	switch sp.verb {
	case 0, 'd', 'n':
		r.appendBig(nil, n)
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	case 'c':
		if sp.sign != 0 || sp.alt {
			r.fail("ValueError", "Sign not allowed with integer format specifier 'c'")
		}
		return sp.pad(r.formatChar(bigValue(n)), '>')
	default:
		r.fail("ValueError", "Unknown format code '%c' for object of type 'int'", sp.verb)
	}
	digits := new(big.Int).Abs(n).Text(base)
	if sp.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	every := 3
	if base != 10 {
		every = 4
		if sp.group == ',' {
			r.fail("ValueError", "Cannot specify ',' with '%c'.", sp.verb)
		}
	}
	if !sp.alt {
		prefix = ""
	}
	return sp.number(n.Sign() < 0, prefix, digits, "", every)
}

func (r *run) specFloat(f float64, sp *spec) string {
	verb, prec := sp.verb, sp.prec
	tail := ""
	var s string
	neg := math.Signbit(f) && !math.IsNaN(f)
	f = math.Abs(f)
	switch verb {
	case 0:
		if prec < 0 {
			s = string(appendFloat(nil, f))
		} else {
			s = formatGeneral17(f, prec)
		}
	case 'e', 'E', 'f', 'F', 'g', 'G', 'n', '%':
		if verb == 'n' {
			verb = 'g'
		}
		if verb == '%' {
			verb, tail, f = 'f', "%", f*100
		}
		if prec < 0 {
			prec = 6
		}
		s = formatFloat(f, verb, prec, sp.alt)
	default:
		r.fail("ValueError", "Unknown format code '%c' for object of type 'float'", sp.verb)
	}
	whole, frac := s, ""
	if at := strings.IndexAny(s, ".eE"); at >= 0 {
		whole, frac = s[:at], s[at:]
	}
	return sp.number(neg, "", whole, frac+tail, 3)
}

// formatGeneral17 is format(f, ".N"): like g, but a whole number keeps ".0".
func formatGeneral17(f float64, prec int) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return formatFloat(f, 'g', prec, false)
	}
	p := max(prec, 1)
	e := strconv.FormatFloat(f, 'e', p-1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	if exp >= -4 && exp < p-1 {
		s := formatGeneral(f, p, false)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	if exp == p-1 { // here Python prefers the exponent
		mant, tail := e[:strings.IndexByte(e, 'e')], e[strings.IndexByte(e, 'e'):]
		if strings.Contains(mant, ".") {
			mant = strings.TrimRight(strings.TrimRight(mant, "0"), ".")
		}
		return mant + tail
	}
	return formatGeneral(f, p, false)
}

// number assembles sign, prefix, grouped digits and the rest, and pads.
func (sp *spec) number(neg bool, prefix, digits, rest string, every int) string {
	sign := ""
	switch {
	case neg:
		sign = "-"
	case sp.sign == '+' || sp.sign == ' ':
		sign = string(sp.sign)
	}
	isNum := digits != "" && isAlnum(digits[0]) && digits != "inf" && digits != "nan" && digits != "INF" && digits != "NAN"
	if sp.align == '=' && sp.fill == "0" && sp.group != 0 && isNum {
		for len(sign)+len(prefix)+groupedLen(len(digits), every)+len(rest) < sp.width {
			digits = "0" + digits
		}
	}
	if sp.group != 0 && isNum {
		digits = grouped(digits, every, sp.group)
	}
	body := digits + rest
	if sp.align == '=' {
		if n := sp.width - len(sign) - len(prefix) - len(body); n > 0 {
			body = strings.Repeat(sp.fill, n) + body
		}
		return sign + prefix + body
	}
	return sp.pad(sign+prefix+body, '>')
}

func groupedLen(n, every int) int { return n + (n-1)/every }

func grouped(digits string, every int, sep byte) string {
	var b []byte
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%every == 0 {
			b = append(b, sep)
		}
		b = append(b, digits[i])
	}
	return string(b)
}

func (sp *spec) pad(s string, def byte) string {
	n := sp.width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	align := sp.align
	if align == 0 {
		align = def
	}
	switch align {
	case '<':
		return s + strings.Repeat(sp.fill, n)
	case '^':
		return strings.Repeat(sp.fill, n/2) + s + strings.Repeat(sp.fill, n-n/2)
	}
	return strings.Repeat(sp.fill, n) + s
}
