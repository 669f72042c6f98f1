package prompt

import (
	"bytes"
)

// hints gathers what a body says about caching. (Infera
// infera/router/cache_control.py.)
type hints struct {
	blocks   Retention // strongest of the cache_control blocks
	openai   Retention // of prompt_cache_retention
	asked    bool      // prompt_cache_retention is a string, known or not
	cacheKey bool      // prompt_cache_key is set
}

func (h *hints) add(t Retention) { h.blocks = max(h.blocks, t) }

// retention is the strongest hint. A key without a retention means the short one.
func (h *hints) retention() Retention {
	t := max(h.blocks, h.openai)
	if h.cacheKey && !h.asked {
		t = max(t, RetentionShort)
	}
	return t
}

// openAI reads the value of prompt_cache_retention. Values it does not know are
// the engine's affair.
func (h *hints) openAI(s *scanner) bool {
	if s.peek() != '"' {
		return s.skip(2)
	}
	t, ok := s.str()
	if !ok {
		return false
	}
	h.asked = true
	var buf [64]byte
	switch string(t.folded(&buf)) {
	case "24h", "1h", "long":
		h.openai = RetentionLong
	case "5m", "short":
		h.openai = RetentionShort
	case "none", "off", "disabled":
		h.openai = RetentionNone
	}
	return true
}

// cacheControl is the cache_control member of a block.
type cacheControl struct {
	present   bool
	ephemeral bool
	ttl       Text
}

// read reads the value of cache_control.
func (c *cacheControl) read(s *scanner, depth int) bool {
	*c = cacheControl{present: true}
	if s.peek() != '{' {
		return s.skip(depth)
	}
	s.i++
	var typ Text
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		k, ok := s.nextKey(first)
		if !ok {
			break
		}
		switch string(k.name(&buf)) {
		case "type":
			typ = Text{}
			ok = s.optional(&typ, nil, depth+1)
		case "ttl":
			c.ttl = Text{}
			ok = s.optional(&c.ttl, nil, depth+1)
		default:
			ok = s.skip(depth + 1)
		}
		if !ok {
			return false
		}
	}
	c.ephemeral = typ.Is("ephemeral")
	return s.err == nil
}

// retention judges the hint. Reasoning is never kept, whatever a client asks.
func (c *cacheControl) retention(reasoning bool) Retention {
	switch {
	case !c.present:
		return RetentionUnset
	case reasoning:
		return RetentionNone
	case !c.ephemeral:
		return RetentionUnset
	}
	var buf [64]byte
	switch string(c.ttl.folded(&buf)) {
	case "1h", "1hr", "60m", "3600s", "long":
		return RetentionLong
	}
	return RetentionShort
}

// folded returns t trimmed and in lower case (ASCII). It is for comparing with
// short words: a longer text comes back empty.
func (t Text) folded(buf *[64]byte) []byte {
	if len(t.raw) > len(buf) {
		return nil
	}
	out := bytes.TrimSpace(t.AppendTo(buf[:0]))
	for i, c := range out {
		if c >= 'A' && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}
