package prompt

// nextKey moves to the next member of the object that s is in, whose opening
// brace has been read, and leaves s.i at the member's value. It returns false at
// the closing brace, which it reads, and on a fault.
func (s *scanner) nextKey(first bool) (Text, bool) {
	s.space()
	c := s.peek()
	if c == '}' {
		s.i++
		return Text{}, false
	}
	if !first {
		if c != ',' {
			return Text{}, s.unexpected("a comma or a closing brace")
		}
		s.i++
		s.space()
	}
	return s.memberKey()
}

// memberKey reads a key and its colon.
func (s *scanner) memberKey() (Text, bool) {
	if s.peek() != '"' {
		return Text{}, s.unexpected("a quoted key")
	}
	key, ok := s.str()
	if !ok {
		return Text{}, false
	}
	s.space()
	if s.peek() != ':' {
		return Text{}, s.unexpected("a colon")
	}
	s.i++
	s.space()
	return key, true
}

// nextElem moves to the next element of the array that s is in. It returns false
// at the closing bracket, which it reads, and on a fault.
func (s *scanner) nextElem(first bool) bool {
	s.space()
	c := s.peek()
	if c == ']' && first {
		s.i++
		return false
	}
	if first {
		return true
	}
	switch c {
	case ']':
		s.i++
		return false
	case ',':
		s.i++
		s.space()
		return true
	}
	return s.unexpected("a comma or a closing bracket")
}

// enter reads the opening brace or bracket of a value at the given level.
func (s *scanner) enter(depth int) bool {
	if depth > MaxDepth {
		return s.fail(CodeTooDeep, "the body is nested too deeply; at most 62 levels are allowed")
	}
	s.i++
	return true
}

// skip reads the value at s.i, whatever it is. depth is the level of a container
// that stands there. It keeps one bit per open container instead of recursing, so
// hostile nesting costs no stack.
func (s *scanner) skip(depth int) bool {
	var objects uint64 // bit 0 is the innermost container; set for an object
	open := 0
	for {
		switch c := s.peek(); c {
		case '{':
			if !s.enter(depth + open) {
				return false
			}
			objects, open = objects<<1|1, open+1
			s.space()
			if s.peek() != '}' {
				if _, ok := s.memberKey(); !ok {
					return false
				}
				continue
			}
		case '[':
			if !s.enter(depth + open) {
				return false
			}
			objects, open = objects<<1, open+1
			s.space()
			if s.peek() != ']' {
				continue
			}
		default:
			if !s.scalar() {
				return false
			}
		}
		more, ok := s.closeUp(&objects, &open)
		if !ok || !more {
			return ok
		}
	}
}

// closeUp reads what follows a value: closing marks, then a comma and what leads
// to the next value. more is false when the outermost container has been closed.
func (s *scanner) closeUp(objects *uint64, open *int) (more, ok bool) {
	for *open > 0 {
		s.space()
		object := *objects&1 == 1
		switch c := s.peek(); {
		case c == '}' && object, c == ']' && !object:
			s.i++
			*objects, *open = *objects>>1, *open-1
		case c == ',' && object:
			s.i++
			s.space()
			_, ok = s.memberKey()
			return true, ok
		case c == ',':
			s.i++
			s.space()
			return true, true
		case object:
			return false, s.unexpected("a comma or a closing brace")
		default:
			return false, s.unexpected("a comma or a closing bracket")
		}
	}
	return false, true
}

// null reads a null if one is at s.i.
func (s *scanner) null() bool {
	if s.peek() != 'n' {
		return false
	}
	return s.literal("null")
}
