package prompt

import (
	"errors"
	"fmt"
)

// ErrAnswer is an answer of an engine's /tokenize that cannot be used.
var ErrAnswer = errors.New("the engine's answer to /tokenize is not usable; check that its version serves that API")

// AppendTokenIDs appends the token ids of an engine's answer to POST /tokenize, a
// JSON object with the array "tokens" and usually their "count", to dst. The
// error wraps [ErrAnswer], and dst is then returned as it was. (vLLM
// entrypoints/openai/protocol.py, TokenizeResponse; SGLang answers alike.)
func AppendTokenIDs(dst []uint32, answer []byte) ([]uint32, error) {
	r := Request{ids: dst}
	s := scanner{b: answer}
	count, tokens := -1, -1
	s.space()
	if s.peek() != '{' {
		s.unexpected("an object")
		return dst, fmt.Errorf("%w: %w", ErrAnswer, s.err)
	}
	s.i++
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		k, ok := s.nextKey(first)
		if !ok {
			break
		}
		switch string(k.name(&buf)) {
		case "count":
			ok = r.integer(&s, keyN, 0, &count)
		case "tokens":
			if ok = tokens < 0 && s.peek() == '['; !ok {
				return dst, fmt.Errorf("%w: its tokens are not one array", ErrAnswer)
			}
			tokens, ok = r.tokenIDs(&s, true)
		default:
			ok = s.skip(2)
		}
		if !ok {
			break
		}
	}
	switch {
	case s.err != nil:
		return dst, fmt.Errorf("%w: %w", ErrAnswer, s.err)
	case tokens < 0:
		return dst, fmt.Errorf("%w: it has no tokens", ErrAnswer)
	case count >= 0 && count != tokens:
		return dst, fmt.Errorf("%w: it has %d tokens and says %d", ErrAnswer, tokens, count)
	}
	return r.ids, nil
}
