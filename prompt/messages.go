package prompt

import "strconv"

// message is the record of one element of messages.
type message struct {
	role      Text
	content   Text // when hasText
	hasText   bool
	lo, hi    int    // its parts
	toolCalls []byte // raw value, nil when absent or null
	raw       []byte
}

// messages reads the array of messages.
func (r *Request) messages(s *scanner) bool {
	if s.null() {
		return s.err == nil
	}
	if s.peek() != '[' {
		return s.wrongType("messages", "an array")
	}
	s.i++
	n := 0
	for ; s.nextElem(n == 0); n++ {
		if s.peek() != '{' {
			return s.wrongType("messages["+strconv.Itoa(n)+"]", "an object")
		}
		var m message
		if !r.message(s, &m) {
			if s.err.Param != "" && s.err.Param[0] == '.' {
				at := "messages[" + strconv.Itoa(n) + "]"
				s.err.Param, s.err.Message = at+s.err.Param, `"`+at+s.err.Message[1:]
			}
			return false
		}
		if len(r.msgs) == maxRecords {
			r.partial = true
			continue
		}
		r.msgs = append(r.msgs, m)
	}
	return s.err == nil
}

// message reads one message, whose opening brace is at s.i. A fault's Param
// starts with a dot: it is relative to the message.
func (r *Request) message(s *scanner, m *message) bool {
	start := s.i
	s.i++
	m.lo, m.hi = len(r.parts), len(r.parts)
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		k, ok := s.nextKey(first)
		if !ok {
			break
		}
		switch string(k.name(&buf)) {
		case "role":
			if s.peek() != '"' {
				return s.wrongType(".role", "a string")
			}
			m.role, ok = s.str()
		case "content":
			ok = r.content(s, m, 4)
		case "tool_calls":
			at := s.i
			if ok = s.skip(4); ok && s.b[at] != 'n' {
				m.toolCalls = s.b[at:s.i]
			}
		default:
			ok = s.skip(4)
		}
		if !ok {
			return false
		}
	}
	m.raw = s.b[start:s.i]
	return s.err == nil
}

// content reads the content of a message, whose level is depth if it is an array.
// Of two contents the last counts, as it does for the engine.
func (r *Request) content(s *scanner, m *message, depth int) bool {
	r.parts = r.parts[:m.lo]
	m.hi, m.hasText, m.content = m.lo, false, Text{}
	switch s.peek() {
	case '"':
		var ok bool
		m.content, ok = s.str()
		m.hasText = ok
		return ok
	case 'n':
		return s.literal("null")
	case '[':
		ok := r.partList(s, depth, true)
		m.hi = len(r.parts)
		return ok
	}
	return s.wrongType(".content", "a string or an array of parts")
}

// systemValue reads Anthropic's system prompt: a string or an array of blocks.
func (r *Request) systemValue(s *scanner) bool {
	m := &r.system
	m.lo, m.hi = len(r.parts), len(r.parts)
	if c := s.peek(); r.Kind != Messages && c != '[' {
		return s.skip(2)
	}
	ok := r.content(s, m, 2)
	if !ok && s.err.Param == ".content" {
		s.err.Param, s.err.Message = "system", `"system`+s.err.Message[len(`".content`):]
	}
	return ok
}

// tools reads the list of tools for its cache hints; its raw value is what
// templates need.
func (r *Request) tools(s *scanner) bool {
	if s.peek() != '[' {
		if s.peek() == 'n' {
			return s.literal("null")
		}
		return s.wrongType("tools", "an array")
	}
	s.i++
	var buf [6 * maxKey]byte
	for first := true; s.nextElem(first); first = false {
		r.Tools = true
		if s.peek() != '{' {
			if !s.skip(3) {
				return false
			}
			continue
		}
		var c cacheControl
		s.i++
		for first := true; ; first = false {
			k, ok := s.nextKey(first)
			if !ok {
				break
			}
			if string(k.name(&buf)) == "cache_control" {
				ok = c.read(s, 4)
			} else {
				ok = s.skip(4)
			}
			if !ok {
				return false
			}
		}
		r.hints.add(c.retention(false))
	}
	return s.err == nil
}
