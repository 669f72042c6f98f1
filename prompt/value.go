package prompt

import (
	"math"
	"strconv"
)

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
	more  int // further prompts of a batch
	bytes int // raw bytes of the further ones, when text
	extra int // ids of the further ones
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
		return r.promptList(s)
	}
	return s.wrongType("prompt", "a string, an array of strings, or an array of token ids")
}

// promptList reads the forms of a prompt that are arrays; the first element says which.
func (r *Request) promptList(s *scanner) bool {
	p := &r.prompt
	start := s.i
	s.i++
	s.space()
	if c := s.peek(); c == '-' || c-'0' <= 9 {
		s.i = start
		p.form = idsPrompt
		_, ok := r.tokenIDs(s, true)
		return ok
	}
	for n := 0; s.nextElem(n == 0); n++ {
		var ok bool
		switch c := s.peek(); {
		case c == '"' && p.form != idsPrompt:
			ok = p.addText(s)
		case c == '[' && p.form != textPrompt:
			ok = r.addIDs(s)
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

func (r *Request) addIDs(s *scanner) bool {
	p := &r.prompt
	n, ok := r.tokenIDs(s, p.form == noPrompt)
	if p.form == noPrompt {
		p.form = idsPrompt
		return ok
	}
	p.more++
	p.extra += n
	return ok
}

// tokenIDs reads an array of token ids and returns how many there are. If keep,
// they become r.ids.
func (r *Request) tokenIDs(s *scanner, keep bool) (n int, ok bool) {
	s.i++
	for ; s.nextElem(n == 0); n++ {
		at := s.i
		id, ok := s.tokenID()
		if !ok {
			return n, s.notTokenID(at)
		}
		if keep {
			r.ids = append(r.ids, id)
		}
	}
	return n, s.err == nil
}

// tokenID reads a number if it is a whole one of 32 bits without a needless zero.
func (s *scanner) tokenID() (uint32, bool) {
	b, i := s.b, s.i
	var id uint64
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		if id = id*10 + uint64(b[i]-'0'); id > math.MaxUint32 {
			return 0, false
		}
	}
	n := i - s.i
	if n == 0 || n > 1 && b[s.i] == '0' {
		return 0, false
	}
	if i < len(b) && (b[i] == '.' || b[i]|0x20 == 'e') {
		return 0, false
	}
	s.i = i
	return uint32(id), true
}

// notTokenID says what is wrong with the value at at.
func (s *scanner) notTokenID(at int) bool {
	if c := s.peek(); c != '-' && c-'0' > 9 {
		return s.wrongType("prompt", "an array of token ids only")
	}
	if !s.number() {
		return false
	}
	return s.failAt(at, CodeInvalidValue, "prompt", `"prompt" holds a number that is no token id; ids are whole numbers from 0 to 4294967295`)
}
