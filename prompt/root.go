package prompt

import (
	"strconv"
)

// root reads the body's object and nothing after it.
func (r *Request) root(s *scanner) bool {
	s.space()
	if s.i >= len(s.b) {
		return s.fail(CodeInvalidJSON, "the body is empty; send a JSON object")
	}
	if s.peek() != '{' {
		if s.skip(1) {
			s.failAt(0, CodeInvalidJSON, "", "the body is "+kindOfValue(s.b[leading(s.b)])+"; send a JSON object")
		}
		return false
	}
	s.i++
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		at := s.i
		k, ok := s.nextKey(first)
		if !ok {
			break
		}
		name := k.name(&buf)
		r.Transfer = r.Transfer || TransferField(name)
		if !r.member(s, rootKey(name), at) {
			return false
		}
	}
	if s.err != nil {
		return false
	}
	s.space()
	if s.i < len(s.b) {
		return s.fail(CodeInvalidJSON, "the body goes on after its JSON object; send one object")
	}
	return true
}

// member reads the value of a root key; at is where the key stands.
func (r *Request) member(s *scanner, k key, at int) bool {
	if k == keyUnknown {
		return s.skip(2)
	}
	if r.seen&(1<<k) != 0 {
		name := k.String()
		return s.failAt(at, CodeDuplicateKey, name, "the key "+strconv.Quote(name)+" is there twice; send it once")
	}
	r.seen |= 1 << k
	start := s.i
	if !r.known(s, k) {
		return false
	}
	r.raw[k] = s.b[start:s.i]
	return true
}

// known reads the value of a known key into r. An unknown API gives these keys
// meanings of its own, so of [Other] only the model and stream are looked at.
func (r *Request) known(s *scanner, k key) bool {
	if r.Kind == Other && k != keyModel && k != keyStream {
		return s.skip(2)
	}
	switch k {
	case keyModel:
		return r.model(s)
	case keyStream:
		return r.boolean(s, k, &r.Stream)
	case keyMessages:
		if r.Kind == Completions {
			return s.skip(2)
		}
		return r.messages(s)
	case keyPrompt:
		if r.Kind != Completions {
			return s.skip(2)
		}
		return r.readPrompt(s)
	case keySystem:
		return r.systemValue(s)
	case keyTools:
		return r.tools(s)
	case keyImages:
		return r.images(s)
	case keyAudio:
		return r.audio(s)
	}
	return r.hint(s, k)
}

// hint reads the scalar hints.
func (r *Request) hint(s *scanner, k key) bool {
	switch k {
	case keyN:
		return r.integer(s, k, 1, &r.N)
	case keyBestOf:
		return r.integer(s, k, 0, &r.BestOf)
	case keyMaxTokens:
		return r.integer(s, k, 0, &r.max[0])
	case keyMaxCompletionTokens:
		return r.integer(s, k, 0, &r.max[1])
	case keyCacheSalt:
		return r.text(s, k, r.last.salt, &r.CacheSalt)
	case keyLoRAPath:
		return r.lora(s)
	case keyPromptCacheKey:
		r.hints.cacheKey = truthy(s)
	case keyPromptCacheRetention:
		return r.hints.openAI(s)
	}
	return s.skip(2)
}

func (r *Request) model(s *scanner) bool {
	at := s.i
	if s.peek() != '"' {
		return s.wrongType("model", "a string")
	}
	before := s.lone
	s.lone = false
	t, ok := s.str()
	if !ok {
		return false
	}
	if s.lone {
		return s.failAt(at, CodeInvalidValue, "model", `"model" holds half of a surrogate pair; send a model name`)
	}
	s.lone = before
	r.Model = intern(r.last.model, t, &r.scratch)
	return true
}

// lora takes a single adapter. A list (one adapter per prompt of a batch) cannot
// be told apart from here and is left to the engine.
func (r *Request) lora(s *scanner) bool {
	if s.peek() == '[' {
		return s.skip(2)
	}
	return r.text(s, keyLoRAPath, r.last.lora, &r.LoRA)
}

// text reads a string or null.
func (r *Request) text(s *scanner, k key, last string, out *string) bool {
	if s.null() {
		return s.err == nil
	}
	if s.peek() != '"' {
		return s.wrongType(k.String(), "a string")
	}
	t, ok := s.str()
	if ok {
		*out = intern(last, t, &r.scratch)
	}
	return ok
}

// intern returns t decoded, and last itself when they are equal: a request is
// likely to be for the model of the one before.
func intern(last string, t Text, scratch *[]byte) string {
	raw := t.raw
	if t.escaped {
		*scratch = t.AppendTo((*scratch)[:0])
		raw = *scratch
	}
	if string(raw) == last {
		return last
	}
	return string(raw)
}

func (r *Request) boolean(s *scanner, k key, out *bool) bool {
	switch s.peek() {
	case 't':
		*out = true
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.wrongType(k.String(), "true or false")
}

// integer reads a whole number of at least least, or null.
func (r *Request) integer(s *scanner, k key, least int, out *int) bool {
	if s.null() {
		return s.err == nil
	}
	at := s.i
	if c := s.peek(); c != '-' && c-'0' > 9 {
		return s.wrongType(k.String(), "a whole number")
	}
	if !s.number() {
		return false
	}
	n, ok := wholeNumber(s.b[at:s.i])
	if !ok {
		return s.failAt(at, CodeWrongType, k.String(), strconv.Quote(k.String())+" must be a whole number")
	}
	if n < least {
		return s.failAt(at, CodeInvalidValue, k.String(), strconv.Quote(k.String())+" must be at least "+strconv.Itoa(least))
	}
	*out = n
	return true
}

// wholeNumber reads a JSON number that stands for an integer: 2, and 2.0 and 2e0
// as well, which the engines' validation takes too.
func wholeNumber(raw []byte) (int, bool) {
	if n, err := strconv.Atoi(string(raw)); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != float64(int32(f)) {
		return 0, false
	}
	return int(f), true
}

// wrongType reports the value at s.i, unless it is not JSON at all.
func (s *scanner) wrongType(param, want string) bool {
	at := s.i
	if !s.skip(2) {
		return false
	}
	return s.failAt(at, CodeWrongType, param, strconv.Quote(param)+" must be "+want+", not "+kindOfValue(s.b[at]))
}

// kindOfValue names the JSON value that starts with c.
func kindOfValue(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// leading returns how many white space bytes b starts with.
func leading(b []byte) int {
	s := scanner{b: b}
	s.space()
	return s.i
}

// truthy reports whether the value at s.i is true in Python's eyes, without
// reading it.
func truthy(s *scanner) bool {
	rest := s.b[s.i:]
	switch s.peek() {
	case '"':
		return len(rest) > 1 && rest[1] != '"'
	case 't':
		return true
	case '{', '[':
		inner := rest[1:]
		inner = inner[leading(inner):]
		return len(inner) > 0 && inner[0] != '}' && inner[0] != ']'
	case 'f', 'n', '0', 0:
		return false
	}
	return true
}
