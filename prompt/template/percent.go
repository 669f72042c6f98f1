package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// conv is one conversion of a % format.
type conv struct {
	minus, plus, space, zero, alt bool
	width, prec                   int // prec -1: none
	verb                          byte
}

// percent is Python's text % arg.
func (r *run) percent(s string, arg value) string {
	var b []byte
	next := 0
	tuple := arg.k == kTuple
	take := func() value {
		if tuple {
			items := arg.items()
			if next >= len(items) {
				r.typeError("not enough arguments for format string")
			}
			next++
			return items[next-1]
		}
		if next > 0 {
			r.typeError("not enough arguments for format string")
		}
		next = 1
		return arg
	}
	for {
		at := strings.IndexByte(s, '%')
		if at < 0 {
			break
		}
		b = append(b, s[:at]...)
		r.alloc(at)
		s = s[at+1:]
		v, c, rest := r.conversion(s, arg, take)
		s = rest
		if c.verb == '%' {
			b = append(b, '%')
			continue
		}
		text := r.convert(v, &c)
		r.alloc(len(text))
		b = append(b, text...)
		if v.k != kMissing && next == 0 {
			next = -1 // a mapping key was used: unused arguments are fine
		}
	}
	b = append(b, s...)
	r.alloc(len(s))
	if tuple && next < len(arg.items()) && next >= 0 || !tuple && next == 0 && !r.mappingArg(arg) {
		r.typeError("not all arguments converted during string formatting")
	}
	return string(b)
}

// mappingArg: an argument that % may leave unused.
func (r *run) mappingArg(v value) bool {
	switch v.k {
	case kDict, kList, kRange, kUndef, kMissing:
		return true // has __getitem__, and is no str or tuple
	}
	return false
}

// conversion parses one conversion after its % and takes its argument.
func (r *run) conversion(s string, arg value, take func() value) (v value, c conv, rest string) {
	c.prec = -1
	var keyed value
	hasKey := false
	if strings.HasPrefix(s, "(") {
		depth, end := 0, -1
		for i := range len(s) {
			if s[i] == '(' {
				depth++
			} else if s[i] == ')' {
				if depth--; depth == 0 {
					end = i
					break
				}
			}
		}
		if end < 0 {
			r.fail("ValueError", "incomplete format key")
		}
		if !r.mappingArg(arg) {
			r.typeError("format requires a mapping")
		}
		keyed, hasKey = r.formatKey(arg, s[1:end]), true
		s = s[end+1:]
	}
	for s != "" && strings.IndexByte("-+ 0#", s[0]) >= 0 {
		switch s[0] {
		case '-':
			c.minus = true
		case '+':
			c.plus = true
		case ' ':
			c.space = true
		case '0':
			c.zero = true
		case '#':
			c.alt = true
		}
		s = s[1:]
	}
	c.width, s = r.formatNumber(s, take)
	if c.width < 0 {
		c.minus, c.width = true, -c.width
	}
	if strings.HasPrefix(s, ".") {
		c.prec, s = r.formatNumber(s[1:], take)
		c.prec = max(c.prec, 0)
	}
	s = strings.TrimLeft(s, "hlL")
	if s == "" {
		r.fail("ValueError", "incomplete format")
	}
	c.verb = s[0]
	if c.verb == '%' {
		return value{}, c, s[1:]
	}
	if strings.IndexByte("srdiuoxXeEfFgGca", c.verb) < 0 {
		r.fail("ValueError", "unsupported format character '%s'", s[:1])
	}
	if hasKey {
		return keyed, c, s[1:]
	}
	return take(), c, s[1:]
}

func (r *run) formatKey(arg value, key string) value {
	switch arg.k {
	case kDict:
		v, ok := arg.dict().str(key)
		if !ok {
			r.fail("KeyError", "%s", reprString(key))
		}
		return v
	case kUndef, kMissing:
		return r.failUndef(arg)
	}
	return r.typeError("%s indices must be integers or slices, not str", typeName(arg))
}

func (r *run) formatNumber(s string, take func() value) (int, string) {
	if strings.HasPrefix(s, "*") {
		v := take()
		if v.k == kBig {
			r.fail("OverflowError", "Python int too large to convert to C ssize_t")
		}
		if !v.isInt() {
			r.typeError("* wants int")
		}
		if v.n > maxFormatWidth || v.n < -maxFormatWidth {
			r.limit("a format is too wide")
		}
		return int(v.n), s[1:]
	}
	n := 0
	for s != "" && s[0] >= '0' && s[0] <= '9' {
		n = n*10 + int(s[0]-'0')
		if n > maxFormatWidth {
			r.limit("a format is too wide")
		}
		s = s[1:]
	}
	return n, s
}

// convert formats one value.
func (r *run) convert(v value, c *conv) string {
	r.alloc(c.width + max(c.prec, 0))
	switch c.verb {
	case 's', 'r', 'a':
		s := r.str(v)
		if c.verb != 's' {
			s = r.repr(v)
		}
		if c.verb == 'a' {
			s = asciiRepr(s)
		}
		if c.prec >= 0 && utf8.RuneCountInString(s) > c.prec {
			s = s[:runeOffset(s, c.prec)]
		}
		return r.fit(s, c, false)
	case 'c':
		return r.fit(r.formatChar(v), c, false)
	case 'd', 'i', 'u', 'o', 'x', 'X':
		return r.formatInt(v, c)
	}
	switch v.k {
	case kBool, kInt, kBig, kFloat:
	case kUndef, kMissing:
		return r.failUndef(v).s
	default:
		r.typeError("must be real number, not %s", typeName(v))
	}
	prec := c.prec
	if prec < 0 {
		prec = 6
	}
	return r.fit(signed(formatFloat(r.toFloat(v), c.verb, prec, c.alt), c.plus, c.space), c, true)
}

func signed(s string, plus, space bool) string {
	switch {
	case strings.HasPrefix(s, "-"):
	case plus:
		return "+" + s
	case space:
		return " " + s
	}
	return s
}

func (r *run) formatChar(v value) string {
	switch v.k {
	case kStr:
		if utf8.RuneCountInString(v.s) == 1 {
			return v.s
		}
	case kBig:
		r.fail("OverflowError", "%%c arg not in range(0x110000)")
	case kBool, kInt:
		if v.n < 0 || v.n > utf8.MaxRune {
			r.fail("OverflowError", "%%c arg not in range(0x110000)")
		}
		if v.n >= 0xd800 && v.n < 0xe000 {
			r.unsupported("a surrogate")
		}
		return string(rune(v.n))
	}
	return r.typeError("%%c requires int or char").s
}

func (r *run) formatInt(v value, c *conv) string {
	var n *big.Int
	switch v.k {
	case kBool, kInt, kBig:
		n = toBig(v)
	case kFloat:
		if c.verb != 'd' && c.verb != 'i' && c.verb != 'u' {
			r.typeError("%%%c format: an integer is required, not float", c.verb)
		}
		f := v.float()
		if math.IsNaN(f) {
			r.fail("ValueError", "cannot convert float NaN to integer")
		}
		n = toBig(r.truncFloat(f, none(), false))
	case kUndef, kMissing:
		if c.verb == 'd' || c.verb == 'i' || c.verb == 'u' {
			return r.failUndef(v).s
		}
		r.typeError("%%%c format: an integer is required, not Undefined", c.verb)
	default:
		r.typeError("%%%c format: a real number is required, not %s", c.verb, typeName(v))
	}
	base, prefix := 10, ""
	switch c.verb {
	case 'o':
		base, prefix = 8, "0o"
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	}
	if base == 10 {
		r.appendBig(nil, n) // its length limit
	}
	digits := new(big.Int).Abs(n).Text(base)
	if c.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	if c.prec > len(digits) {
		digits = strings.Repeat("0", c.prec-len(digits)) + digits
	}
	if c.alt {
		digits = prefix + digits
	}
	if n.Sign() < 0 {
		digits = "-" + digits
	}
	return r.fit(signed(digits, c.plus, c.space), c, true)
}

// fit pads to the width.
func (r *run) fit(s string, c *conv, number bool) string {
	n := c.width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	switch {
	case c.minus:
		return s + strings.Repeat(" ", n)
	case c.zero && number:
		return zeroFill(s, n)
	}
	return strings.Repeat(" ", n) + s
}

// zeroFill puts zeros after a number's sign and prefix.
func zeroFill(s string, n int) string {
	at := 0
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		at = 1
	}
	if len(s) > at+1 && s[at] == '0' && strings.IndexByte("xXob", s[at+1]) >= 0 {
		at += 2
	}
	return s[:at] + strings.Repeat("0", n) + s[at:]
}

func asciiRepr(s string) string {
	var b []byte
	for _, c := range s {
		if c < utf8.RuneSelf {
			b = append(b, byte(c)) //nolint:gosec // ASCII
			continue
		}
		b = appendEscaped(b, c)
	}
	return string(b)
}

// formatFloat is Python's float formatting for e, f and g.
func formatFloat(f float64, verb byte, prec int, alt bool) string {
	upper := verb < 'a'
	lower := verb | 0x20
	var s string
	switch {
	case math.IsNaN(f):
		s = "nan"
	case math.IsInf(f, 0):
		s = "inf"
		if f < 0 {
			s = "-inf"
		}
	case lower == 'g':
		s = formatGeneral(f, prec, alt)
	default:
		s = strconv.FormatFloat(f, lower, prec, 64)
		if alt && prec == 0 {
			if at := strings.IndexByte(s, 'e'); at >= 0 {
				s = s[:at] + "." + s[at:]
			} else {
				s += "."
			}
		}
	}
	if upper {
		s = strings.ToUpper(s)
	}
	return s
}

// formatGeneral is %g: the shorter of %e and %f, without trailing zeros.
func formatGeneral(f float64, prec int, alt bool) string {
	prec = max(prec, 1)
	e := strconv.FormatFloat(f, 'e', prec-1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	if exp < -4 || exp >= prec {
		mant, tail := e[:strings.IndexByte(e, 'e')], e[strings.IndexByte(e, 'e'):]
		if !alt && strings.Contains(mant, ".") {
			mant = strings.TrimRight(strings.TrimRight(mant, "0"), ".")
		}
		return mant + tail
	}
	s := strconv.FormatFloat(f, 'f', prec-1-exp, 64)
	if !alt && strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
