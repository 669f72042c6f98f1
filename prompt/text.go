package prompt

import (
	"bytes"
	"unicode/utf8"
)

// The surrogate range of UTF-16: high ones from surrLow, low ones from surrMid.
const (
	surrLow = 0xD800
	surrMid = 0xDC00
	surrEnd = 0xDFFF
)

// Text is a JSON string as it stands in the body: a view, valid as long as the
// body is. The zero value is the empty string.
type Text struct {
	raw     []byte // between the quotes
	escaped bool   // raw holds escapes
}

// Raw returns the bytes between the quotes, escapes and all.
func (t Text) Raw() []byte { return t.raw }

// Escaped reports whether Raw holds escapes; when not, Raw is the text.
func (t Text) Escaped() bool { return t.escaped }

// AppendTo appends the decoded text to dst. A lone surrogate becomes its three
// bytes of generalized UTF-8, so that two different ones stay different.
func (t Text) AppendTo(dst []byte) []byte {
	if !t.escaped {
		return append(dst, t.raw...)
	}
	for rest := t.raw; len(rest) > 0; {
		run, tail := nextRun(rest)
		dst = append(dst, run...)
		if len(tail) == 0 {
			break
		}
		var r rune
		r, rest = unescape(tail)
		dst = appendRune(dst, r)
	}
	return dst
}

// String returns the decoded text.
func (t Text) String() string { return string(t.AppendTo(nil)) }

// Is reports whether the decoded text equals want.
func (t Text) Is(want string) bool {
	if !t.escaped {
		return string(t.raw) == want
	}
	// An escape is never shorter than what it stands for, nor 6 times as long.
	if len(t.raw) < len(want) || len(t.raw) > 6*len(want) {
		return false
	}
	var buf [64]byte
	return string(t.AppendTo(buf[:0])) == want
}

// nextRun splits off the bytes before the first escape.
func nextRun(raw []byte) (run, tail []byte) {
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return raw, nil
	}
	return raw[:i], raw[i:]
}

// unescape decodes the escape at the front of raw, which has been validated.
func unescape(raw []byte) (rune, []byte) {
	if c := plainEscape(raw[1]); c != 0 {
		return rune(c), raw[2:]
	}
	return unescapeUnicode(raw)
}

// plainEscape returns the byte that a backslash and c stand for, and 0 for a u.
func plainEscape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 'r':
		return '\r'
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'u':
		return 0
	}
	return c
}

func unescapeUnicode(raw []byte) (rune, []byte) {
	u, _ := hex4(raw[2:])
	raw = raw[6:]
	if u < surrLow || u >= surrMid || len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return u, raw
	}
	lo, _ := hex4(raw[2:])
	if lo < surrMid || lo > surrEnd {
		return u, raw
	}
	return (u-surrLow)<<10 + (lo - surrMid) + 0x10000, raw[6:]
}

// appendRune is utf8.AppendRune for surrogates too.
func appendRune(dst []byte, r rune) []byte {
	if r >= surrLow && r <= surrEnd {
		u := uint16(r)
		return append(dst, 0xE0|byte(u>>12), 0x80|byte(u>>6&0x3F), 0x80|byte(u&0x3F))
	}
	return utf8.AppendRune(dst, r)
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var u rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		u = u<<4 | rune(c)
	}
	return u, true
}

// runeLen returns the length of the well-formed UTF-8 sequence of more than one
// byte at the front of b, or 0. (Unicode Standard, table 3-7.)
func runeLen(b []byte) int {
	switch c := b[0]; {
	case c >= 0xC2 && c < 0xE0:
		if len(b) >= 2 && b[1]&0xC0 == 0x80 {
			return 2
		}
	case c >= 0xE0 && c < 0xF0:
		if len(b) < 3 || b[1]&0xC0 != 0x80 || b[2]&0xC0 != 0x80 ||
			c == 0xE0 && b[1] < 0xA0 || c == 0xED && b[1] >= 0xA0 {
			return 0
		}
		return 3
	case c >= 0xF0 && c < 0xF5:
		if len(b) < 4 || b[1]&0xC0 != 0x80 || b[2]&0xC0 != 0x80 || b[3]&0xC0 != 0x80 ||
			c == 0xF0 && b[1] < 0x90 || c == 0xF4 && b[1] >= 0x90 {
			return 0
		}
		return 4
	}
	return 0
}
