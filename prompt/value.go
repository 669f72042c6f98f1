package prompt

import "strconv"

// promptForm is the shape of a completions prompt.
type promptForm uint8

const (
	noPrompt   promptForm = iota
	textPrompt            // a string, or the first of an array of strings
	idsPrompt             // an array of ids, or the first of an array of them
)

// promptValue is the record of the prompt key.
type promptValue struct {
	form  promptForm
	text  Text
	ids   []byte // raw array
	count int    // ids in it
	more  int    // further prompts of a batch
	bytes int    // raw bytes of the further ones, when text
	extra int    // ids of the further ones
}

// readPrompt reads a prompt: a string, an array of strings, an array of token
// ids, or an array of arrays of token ids.
func (r *Request) readPrompt(s *scanner) bool {
	p := &r.prompt
	switch s.peek() {
	case '"':
		t, ok := s.str()
		if ok {
			p.form, p.text = textPrompt, t
		}
		return ok
	case 'n':
		return s.literal("null")
	case '[':
		return p.list(s)
	}
	return s.wrongType("prompt", "a string, an array of strings, or an array of token ids")
}

// list reads the forms of a prompt that are arrays; the first element says which.
func (p *promptValue) list(s *scanner) bool {
	start := s.i
	s.i++
	s.space()
	if c := s.peek(); c == '-' || c-'0' <= 9 {
		s.i = start
		n, ok := s.tokenIDs()
		p.form, p.ids, p.count = idsPrompt, s.b[start:s.i], n
		return ok
	}
	for n := 0; s.nextElem(n == 0); n++ {
		var ok bool
		switch c := s.peek(); {
		case c == '"' && p.form != idsPrompt:
			ok = p.addText(s)
		case c == '[' && p.form != textPrompt:
			ok = p.addIDs(s)
		default:
			return s.wrongType("prompt["+strconv.Itoa(n)+"]", "of the same type as the first element: a string, a token id or an array of token ids")
		}
		if !ok {
			return false
		}
	}
	return s.err == nil
}

func (p *promptValue) addText(s *scanner) bool {
	t, ok := s.str()
	if p.form == noPrompt {
		p.form, p.text = textPrompt, t
		return ok
	}
	p.more++
	p.bytes += len(t.raw)
	return ok
}

func (p *promptValue) addIDs(s *scanner) bool {
	start := s.i
	n, ok := s.tokenIDs()
	if p.form == noPrompt {
		p.form, p.ids, p.count = idsPrompt, s.b[start:s.i], n
		return ok
	}
	p.more++
	p.extra += n
	return ok
}

// tokenIDs reads an array of token ids and returns how many there are.
func (s *scanner) tokenIDs() (n int, ok bool) {
	s.i++
	for ; s.nextElem(n == 0); n++ {
		at := s.i
		if c := s.peek(); c != '-' && c-'0' > 9 {
			return n, s.wrongType("prompt", "an array of token ids only")
		}
		if !s.number() {
			return n, false
		}
		if _, ok := tokenID(s.b[at:s.i]); !ok {
			return n, s.failAt(at, CodeInvalidValue, "prompt", `"prompt" holds a number that is no token id; ids are whole numbers from 0 to 4294967295`)
		}
	}
	return n, s.err == nil
}

// tokenID reads a whole number of 32 bits.
func tokenID(raw []byte) (uint32, bool) {
	if len(raw) > 10 {
		return 0, false
	}
	var id uint64
	for _, c := range raw {
		if c-'0' > 9 {
			return 0, false
		}
		id = id*10 + uint64(c-'0')
	}
	return uint32(id), id <= 1<<32-1
}

// appendIDs appends the ids of an array that tokenIDs has accepted.
func appendIDs(dst []uint32, raw []byte) []uint32 {
	var id uint32
	digit := false
	for _, c := range raw {
		if c -= '0'; c <= 9 {
			id, digit = id*10+uint32(c), true
			continue
		}
		if digit {
			dst, id, digit = append(dst, id), 0, false
		}
	}
	return dst
}
