package prompt

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// addImage records a payload's key and returns it; 0 for an empty reference.
func (r *Request) addImage(ref Text) uint64 {
	raw := ref.raw
	if ref.escaped {
		r.scratch = ref.AppendTo(r.scratch[:0])
		raw = r.scratch
	}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 {
		return 0
	}
	k := xxh3.Hash(raw)
	if len(r.Images) < MaxImages {
		r.Images = append(r.Images, k)
	}
	return k
}

// images reads the legacy top-level list: references or parts.
func (r *Request) images(s *scanner) bool {
	if s.peek() != '[' {
		return s.skip(2)
	}
	s.i++
	for first := true; s.nextElem(first); first = false {
		r.Multimodal = true
		var ok bool
		switch s.peek() {
		case '"':
			var t Text
			if t, ok = s.str(); ok {
				r.addImage(t)
			}
		case '{':
			var p Part
			ok = r.part(s, 3, false, &p)
		default:
			ok = s.skip(3)
		}
		if !ok {
			return false
		}
	}
	return s.err == nil
}

// audio takes a non-empty top-level object or list as content other than text.
// (Infera infera/router/cache_control.py, _detect_multimodal.)
func (r *Request) audio(s *scanner) bool {
	if c := s.peek(); c == '{' || c == '[' {
		r.Multimodal = r.Multimodal || truthy(s)
	}
	return s.skip(2)
}
