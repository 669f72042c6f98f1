package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// str is Python's str(v).
func (r *run) str(v value) string {
	switch v.k {
	case kStr:
		return v.s
	case kMissing, kUndef:
		return ""
	case kNone:
		return "None"
	case kInt:
		return strconv.FormatInt(v.n, 10)
	}
	return r.repr(v)
}

// repr is Python's repr(v).
func (r *run) repr(v value) string {
	b := r.appendRepr(nil, v)
	r.alloc(len(b))
	return string(b)
}

// appendRepr charges as it grows.
func (r *run) appendRepr(b []byte, v value) []byte {
	r.step()
	if len(b) > r.mem/4 { // growing copies, and the text is copied once more
		r.limit("too much memory")
	}
	switch v.k {
	case kMissing, kUndef:
		return append(b, "Undefined"...)
	case kNone:
		return append(b, "None"...)
	case kBool:
		if v.n != 0 {
			return append(b, "True"...)
		}
		return append(b, "False"...)
	case kInt:
		return strconv.AppendInt(b, v.n, 10)
	case kBig:
		return r.appendBig(b, v.o.(*big.Int))
	case kFloat:
		return appendFloat(b, v.float())
	case kStr:
		r.alloc(len(v.s) * 2)
		return appendReprString(b, v.s)
	case kRange:
		g := v.o.(*rangeObj)
		b = append(b, "range("...)
		b = strconv.AppendInt(b, g.start, 10)
		b = append(b, ", "...)
		b = strconv.AppendInt(b, g.stop, 10)
		if g.step != 1 {
			b = append(b, ", "...)
			b = strconv.AppendInt(b, g.step, 10)
		}
		return append(b, ')')
	case kLoop:
		l := v.o.(*loopState)
		b = append(b, "<LoopContext "...)
		b = strconv.AppendInt(b, int64(l.index+1), 10)
		b = append(b, '/')
		b = strconv.AppendInt(b, int64(l.length(r)), 10)
		return append(b, '>')
	case kMacro:
		d := v.o.(*macro).def
		if d.anonymous {
			return append(b, "<Macro anonymous>"...)
		}
		b = append(b, "<Macro "...)
		b = appendReprString(b, d.name)
		return append(b, '>')
	}
	r.enter()
	b = r.appendContainer(b, v)
	r.leave()
	return b
}

func (r *run) appendContainer(b []byte, v value) []byte {
	switch v.k {
	case kList:
		b = r.appendItems(append(b, '['), v.items())
		return append(b, ']')
	case kTuple:
		b = r.appendItems(append(b, '('), v.items())
		if len(v.items()) == 1 {
			b = append(b, ',')
		}
		return append(b, ')')
	case kDict:
		return r.appendDict(b, v.dict())
	case kNamespace:
		b = r.appendDict(append(b, "<Namespace "...), v.dict())
		return append(b, '>')
	case kView:
		b = append(b, viewName(v)...)
		b = append(b, "(["...)
		for i := range v.dict().entries {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = r.appendRepr(b, r.viewAt(v, i))
		}
		return append(b, "])"...)
	}
	r.unsupported("printing a " + typeName(v)) // Python prints its address
	return b
}

func (r *run) appendItems(b []byte, items []value) []byte {
	for i, x := range items {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = r.appendRepr(b, x)
	}
	return b
}

func (r *run) appendDict(b []byte, d *dict) []byte {
	b = append(b, '{')
	for i := range d.entries {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = r.appendRepr(b, d.entries[i].key)
		b = append(b, ": "...)
		b = r.appendRepr(b, d.entries[i].val)
	}
	return append(b, '}')
}

func (r *run) appendBig(b []byte, n *big.Int) []byte {
	if n.BitLen() > maxIntDigits*3 { // cheap lower bound first: printing is quadratic
		if n.BitLen() > maxIntDigits*10/3 {
			r.fail("ValueError", "Exceeds the limit (4300 digits) for integer string conversion")
		}
	}
	s := n.String()
	if len(strings.TrimPrefix(s, "-")) > maxIntDigits {
		r.fail("ValueError", "Exceeds the limit (4300 digits) for integer string conversion")
	}
	return append(b, s...)
}

// appendFloat is Python's repr of a float.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	n := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !strings.Contains(string(b[n:]), ".") {
		b = append(b, ".0"...)
	}
	return b
}

func reprString(s string) string { return string(appendReprString(nil, s)) }

// appendReprString is Python's repr of a str.
func appendReprString(b []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b = append(b, quote)
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == quote || c == '\\':
				b = append(b, '\\', c)
			case c == '\n':
				b = append(b, `\n`...)
			case c == '\r':
				b = append(b, `\r`...)
			case c == '\t':
				b = append(b, `\t`...)
			case c < 0x20 || c == 0x7f:
				b = append(b, '\\', 'x', hexDigit(c>>4), hexDigit(c))
			default:
				b = append(b, c)
			}
			continue
		}
		rn, n := utf8.DecodeRuneInString(s[i:])
		i += n
		if unicode.IsPrint(rn) {
			b = utf8.AppendRune(b, rn)
			continue
		}
		b = appendEscaped(b, rn)
	}
	return append(b, quote)
}

func hexDigit(c byte) byte { return "0123456789abcdef"[c&15] }

// appendEscaped writes \xNN, \uNNNN or \UNNNNNNNN.
func appendEscaped(b []byte, rn rune) []byte {
	digits, mark := 8, byte('U')
	switch {
	case rn <= 0xff:
		digits, mark = 2, 'x'
	case rn <= 0xffff:
		digits, mark = 4, 'u'
	}
	b = append(b, '\\', mark)
	for i := digits - 1; i >= 0; i-- {
		b = append(b, hexDigit(byte(rn>>(4*i)&15)))
	}
	return b
}
