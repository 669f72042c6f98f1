package tokens

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonScan reads JSON by hand, because encoding/json needs half a second and ten
// times the memory for the larger vocabularies. The input must be valid UTF-8.
type jsonScan struct {
	b []byte
	i int
}

// maxNesting is how deep a tokenizer file may nest; real ones need 8.
const maxNesting = 64

func (s *jsonScan) fault(what string) error {
	return malformed("%s at byte %d", what, s.i)
}

func (s *jsonScan) blank() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// take consumes c after white space.
func (s *jsonScan) take(c byte) bool {
	s.blank()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// object calls member for each key; member must consume the value.
func (s *jsonScan) object(member func(key string) error) error {
	var key []byte
	return s.objectBytes(func() error {
		var err error
		if key, err = s.str(key[:0]); err != nil {
			return err
		}
		if !s.take(':') {
			return s.fault("no colon after a key")
		}
		return member(string(key))
	})
}

// objectBytes calls member at each key; member must consume key, colon and value.
func (s *jsonScan) objectBytes(member func() error) error {
	if !s.take('{') {
		return s.fault("not an object")
	}
	return s.list('}', member)
}

// array calls element at each element, which it must consume.
func (s *jsonScan) array(element func() error) error {
	if !s.take('[') {
		return s.fault("not an array")
	}
	return s.list(']', element)
}

func (s *jsonScan) list(end byte, f func() error) error {
	if s.take(end) {
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if s.take(end) {
			return nil
		}
		if !s.take(',') {
			return s.fault("neither a comma nor an end")
		}
	}
}

// str appends the decoded string to dst.
func (s *jsonScan) str(dst []byte) ([]byte, error) {
	if !s.take('"') {
		return dst, s.fault("not a string")
	}
	for s.i < len(s.b) {
		from := s.i
		for s.i < len(s.b) && s.b[s.i] != '"' && s.b[s.i] != '\\' && s.b[s.i] >= ' ' {
			s.i++
		}
		dst = append(dst, s.b[from:s.i]...)
		if s.i == len(s.b) {
			break
		}
		switch s.b[s.i] {
		case '"':
			s.i++
			return dst, nil
		case '\\':
			var err error
			if dst, err = s.escape(dst); err != nil {
				return dst, err
			}
		default:
			return dst, s.fault("control character in a string")
		}
	}
	return dst, s.fault("string without end")
}

func (s *jsonScan) escape(dst []byte) ([]byte, error) {
	if s.i+1 >= len(s.b) {
		return dst, s.fault("string without end")
	}
	c := s.b[s.i+1]
	s.i += 2
	switch c {
	case '"', '\\', '/':
		return append(dst, c), nil
	case 'b':
		return append(dst, '\b'), nil
	case 'f':
		return append(dst, '\f'), nil
	case 'n':
		return append(dst, '\n'), nil
	case 'r':
		return append(dst, '\r'), nil
	case 't':
		return append(dst, '\t'), nil
	case 'u':
		return s.unicodeEscape(dst)
	}
	return dst, s.fault("unknown escape")
}

func (s *jsonScan) unicodeEscape(dst []byte) ([]byte, error) {
	r, err := s.hex4()
	if err != nil {
		return dst, err
	}
	if utf16.IsSurrogate(r) {
		if s.i+1 >= len(s.b) || s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
			return dst, s.fault("lone surrogate")
		}
		s.i += 2
		low, err := s.hex4()
		if err != nil {
			return dst, err
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return dst, s.fault("lone surrogate")
		}
	}
	return utf8.AppendRune(dst, r), nil
}

func (s *jsonScan) hex4() (rune, error) {
	if s.i+4 > len(s.b) {
		return 0, s.fault("string without end")
	}
	n, err := strconv.ParseUint(string(s.b[s.i:s.i+4]), 16, 16)
	if err != nil {
		return 0, s.fault("bad \\u escape")
	}
	s.i += 4
	return rune(n), nil
}

// uint reads a number that must be a whole one below limit.
func (s *jsonScan) uint(limit int) (uint32, error) {
	s.blank()
	from, n := s.i, 0
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		n = n*10 + int(s.b[s.i]-'0')
		s.i++
		if n >= limit {
			return 0, s.fault("number too large")
		}
	}
	if from == s.i {
		return 0, s.fault("not a whole number")
	}
	return uint32(n), nil
}

// value consumes any value and returns its bytes.
func (s *jsonScan) value() ([]byte, error) {
	s.blank()
	from := s.i
	err := s.skip(0)
	return s.b[from:s.i], err
}

func (s *jsonScan) skip(depth int) error {
	if depth > maxNesting {
		return s.fault("nested too deep")
	}
	s.blank()
	if s.i == len(s.b) {
		return s.fault("cut off")
	}
	switch s.b[s.i] {
	case '{':
		return s.objectBytes(func() error {
			if err := s.skipString(); err != nil {
				return err
			}
			if !s.take(':') {
				return s.fault("no colon after a key")
			}
			return s.skip(depth + 1)
		})
	case '[':
		return s.array(func() error { return s.skip(depth + 1) })
	case '"':
		return s.skipString()
	}
	from := s.i
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ',', ']', '}', ' ', '\t', '\n', '\r', '"', '{', '[', ':':
			if s.i == from {
				return s.fault("no value")
			}
			return nil
		}
		s.i++
	}
	return nil
}

func (s *jsonScan) skipString() error {
	if !s.take('"') {
		return s.fault("not a string")
	}
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			s.i++
			return nil
		case '\\':
			s.i++
		}
		s.i++
	}
	s.i = len(s.b)
	return s.fault("string without end")
}
