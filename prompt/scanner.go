package prompt

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth is how deeply a body may be nested: the body's own object is level 1.
// It fits the bit stack of [scanner.skip] and is far beyond what a request needs.
const MaxDepth = 62

// scanner reads JSON from front to back. Each method starts at s.i and leaves s.i
// behind what it has read; a method that returns false has set s.err.
type scanner struct {
	b    []byte
	i    int
	err  *BadRequest
	lone bool // an escape named a surrogate without its partner
}

// peek returns the byte at s.i, and 0 at the end: no JSON token starts with it.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\t', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) fail(code, msg string) bool {
	return s.failAt(s.i, code, "", msg)
}

func (s *scanner) failAt(at int, code, param, msg string) bool {
	if s.err == nil {
		s.err = badAt(code, param, at, msg)
	}
	return false
}

// unexpected reports that what is at s.i cannot stand there.
func (s *scanner) unexpected(want string) bool {
	if s.i >= len(s.b) {
		return s.fail(CodeInvalidJSON, "the body is not valid JSON: it ends where "+want+" should be; send the whole object")
	}
	return s.fail(CodeInvalidJSON, fmt.Sprintf("the body is not valid JSON: found %q where %s should be", s.b[s.i], want))
}

// special marks each byte of x that ends a plain run in a string: a quote, a
// backslash, a control character or a byte outside ASCII. The lowest mark is
// exact; borrows can make only higher ones false.
func special(x uint64) uint64 {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	return (x | (x - 0x20*ones) | ((x ^ '"'*ones) - ones) | ((x ^ '\\'*ones) - ones)) & highs
}

// plain returns the index of the first special byte at or after i, or len(b).
func plain(b []byte, i int) int {
	for len(b)-i >= 32 {
		w := b[i : i+32 : i+32]
		m0 := special(binary.LittleEndian.Uint64(w))
		m1 := special(binary.LittleEndian.Uint64(w[8:]))
		m2 := special(binary.LittleEndian.Uint64(w[16:]))
		m3 := special(binary.LittleEndian.Uint64(w[24:]))
		if m0|m1|m2|m3 == 0 {
			i += 32
			continue
		}
		switch {
		case m0 != 0:
			return i + bits.TrailingZeros64(m0)>>3
		case m1 != 0:
			return i + 8 + bits.TrailingZeros64(m1)>>3
		case m2 != 0:
			return i + 16 + bits.TrailingZeros64(m2)>>3
		}
		return i + 24 + bits.TrailingZeros64(m3)>>3
	}
	for len(b)-i >= 8 {
		if m := special(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(b) {
		if c := b[i]; c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			return i
		}
		i++
	}
	return i
}

// str reads the string whose opening quote is at s.i.
func (s *scanner) str() (Text, bool) {
	b, start := s.b, s.i+1
	i, escaped := start, false
	for {
		i = plain(b, i)
		if i >= len(b) {
			s.i = len(b)
			return Text{}, s.unexpected("the end of a string")
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return Text{raw: b[start:i], escaped: escaped}, true
		case c == '\\':
			escaped = true
			n := s.escape(i)
			if n == 0 {
				return Text{}, false
			}
			i += n
		case c < 0x20:
			s.i = i
			return Text{}, s.fail(CodeInvalidJSON, fmt.Sprintf("the body is not valid JSON: a string holds the control character %#02x; escape it", c))
		default:
			for i < len(b) && b[i] >= 0x80 {
				n := runeLen(b[i:])
				if n == 0 {
					s.i = i
					return Text{}, s.fail(CodeInvalidJSON, "the body is not valid UTF-8; encode it as UTF-8")
				}
				i += n
			}
		}
	}
}

// escape checks the escape whose backslash is at i and returns its length, or 0.
func (s *scanner) escape(i int) int {
	if i+1 >= len(s.b) {
		s.i = len(s.b)
		s.unexpected("the rest of an escape")
		return 0
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if u, ok := hex4(s.b[i+2:]); ok {
			return s.unicodeEscape(i, u)
		}
	}
	s.i = i
	s.fail(CodeInvalidJSON, `the body is not valid JSON: a string holds an unknown escape; escape a backslash as \\`)
	return 0
}

// unicodeEscape returns the length of the escape at i, with that of its surrogate
// partner if it has one.
func (s *scanner) unicodeEscape(i int, u rune) int {
	if u < surrLow || u > surrEnd {
		return 6
	}
	if u < surrMid {
		rest := s.b[i+6:]
		if len(rest) >= 2 && rest[0] == '\\' && rest[1] == 'u' {
			if lo, ok := hex4(rest[2:]); ok && lo >= surrMid && lo <= surrEnd {
				return 12
			}
		}
	}
	s.lone = true
	return 6
}

// number reads the number at s.i.
func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.i++
	}
	switch c := s.peek(); {
	case c == '0':
		s.i++
	case c >= '1' && c <= '9':
		s.digits()
	default:
		return s.unexpected("a digit")
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c = s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	return true
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > start
}

func (s *scanner) literal(word string) bool {
	if rest := s.b[s.i:]; len(rest) < len(word) || string(rest[:len(word)]) != word {
		return s.unexpected("a JSON value")
	}
	s.i += len(word)
	return true
}

// scalar reads a value that is neither object nor array.
func (s *scanner) scalar() bool {
	switch c := s.peek(); c {
	case '"':
		_, ok := s.str()
		return ok
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		if c == '-' || c-'0' <= 9 {
			return s.number()
		}
		return s.unexpected("a JSON value")
	}
}
