package template

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unescape reads a string literal's escapes as Python's unicode-escape codec.
func (l *lexer) unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a', 'b', 'f', 'n', 'r', 't', 'v':
			b.WriteByte("\a\b\f\n\r\t\v"[strings.IndexByte("abfnrtv", c)])
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := 1
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				n++
			}
			code, _ := strconv.ParseUint(s[i:i+n], 8, 16)
			b.WriteRune(rune(code))
			i += n - 1
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			b.WriteRune(l.hexEscape(s[i+1:], n))
			i += n
		case 'N':
			l.unsupported("the escape \\N{…} in a string")
		default:
			b.WriteByte('\\')
			if c < utf8.RuneSelf {
				b.WriteByte(c)
				continue
			}
			// The codec sees non-ASCII text as an escape of its own, after which
			// the backslash stands for itself.
			_, size := utf8.DecodeRuneInString(s[i:])
			l.unsupported("a backslash before " + strconv.Quote(s[i:i+size]))
		}
	}
	return b.String()
}

func (l *lexer) hexEscape(s string, n int) rune {
	if len(s) < n {
		l.fail("(unicode error) truncated escape")
	}
	code, err := strconv.ParseUint(s[:n], 16, 32)
	if err != nil || code > utf8.MaxRune {
		l.fail("(unicode error) truncated or illegal escape")
	}
	if code >= 0xd800 && code < 0xe000 {
		l.unsupported("a surrogate in a string")
	}
	return rune(code)
}

func (l *lexer) unsupported(what string) {
	panic(&Error{Template: l.name, Line: l.line, Class: classUnsupported, Message: what + " is not supported", kind: ErrUnsupported})
}

// intLiteral reads an integer token.
func intLiteral(s string) (value, bool) {
	s = strings.ReplaceAll(s, "_", "")
	b, ok := new(big.Int).SetString(s, 0)
	if !ok {
		b, ok = new(big.Int).SetString(s, 10)
	}
	if !ok || len(s) > maxIntDigits {
		return value{}, false
	}
	return bigValue(b), true
}

// floatLiteral reads a float token.
func floatLiteral(s string) (value, bool) {
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil && f == 0 {
		return value{}, false
	}
	return floatValue(f), true
}
