package prompt

// PartKind says what a part of a message's content is for the prompt.
type PartKind uint8

// Parts that are not PartText have no text that templates render as it stands.
const (
	PartOther     PartKind = iota // tool calls, tool results, unknown types
	PartText                      // text, whatever the API calls it
	PartMedia                     // image, audio, video or document
	PartReasoning                 // earlier reasoning, which templates drop
)

// Part is one element of a message's content array.
type Part struct {
	Kind PartKind
	Type Text   // as sent; empty for a bare string
	Text Text   // of PartText
	Key  uint64 // of media: XXH3-64 of its trimmed reference, 0 when it has none
	Raw  []byte // the whole element as JSON
}

// partList reads an array of content parts at the given level. Parts inside a
// part (a tool result's) are only looked at for media, not recorded.
func (r *Request) partList(s *scanner, depth int, record bool) bool {
	s.i++
	for first := true; s.nextElem(first); first = false {
		var p Part
		start := s.i
		switch s.peek() {
		case '"':
			t, ok := s.str()
			if !ok {
				return false
			}
			p.Kind, p.Text = PartText, t
		case '{':
			if !r.part(s, depth+1, record, &p) {
				return false
			}
		default:
			return s.wrongType(".content", "a string or an array of strings and objects")
		}
		p.Raw = s.b[start:s.i]
		switch {
		case !record:
		case len(r.parts) == maxRecords:
			r.partial = true
		default:
			r.parts = append(r.parts, p)
		}
	}
	return s.err == nil
}

// partFields is what the members of a part say, before they are judged together:
// they may come in any order.
type partFields struct {
	text  Text
	isTxt bool
	refs  [refCount]Text
	has   [refCount]bool
	cache cacheControl
}

// A part's members that can name its payload, in order of precedence.
// (Infera infera/router/cache_control.py, _mm_ref_string; the video and audio
// URLs are vLLM's.)
const (
	refImageURL = iota
	refVideoURL
	refAudioURL
	refInputAudio
	refSourceURL
	refSourceData
	refURL
	refData
	refCount
)

// part reads one part, whose opening brace is at s.i.
func (r *Request) part(s *scanner, depth int, record bool, p *Part) bool {
	s.i++
	var f partFields
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		k, ok := s.nextKey(first)
		if !ok {
			break
		}
		switch string(k.name(&buf)) {
		case "type":
			p.Type = Text{}
			ok = s.optional(&p.Type, nil, depth+1)
		case "text":
			ok = s.optional(&f.text, &f.isTxt, depth+1)
		case "image_url":
			ok = s.reference(&f, refImageURL, "url", depth+1)
		case "video_url":
			ok = s.reference(&f, refVideoURL, "url", depth+1)
		case "audio_url":
			ok = s.reference(&f, refAudioURL, "url", depth+1)
		case "input_audio":
			ok = s.reference(&f, refInputAudio, "data", depth+1)
		case "source":
			ok = s.source(&f, depth+1)
		case "url":
			ok = s.optional(&f.refs[refURL], &f.has[refURL], depth+1)
		case "data":
			ok = s.optional(&f.refs[refData], &f.has[refData], depth+1)
		case "cache_control":
			ok = f.cache.read(s, depth+1)
		case "content":
			if ok = record && s.peek() == '['; ok {
				ok = r.partList(s, depth+1, false)
			} else {
				ok = s.skip(depth + 1)
			}
		default:
			ok = s.skip(depth + 1)
		}
		if !ok {
			return false
		}
	}
	if s.err != nil {
		return false
	}
	r.judge(p, &f, record)
	return true
}

// judge settles what a part is.
func (r *Request) judge(p *Part, f *partFields, record bool) {
	var buf [6 * maxKey]byte
	p.Kind = partKind(p.Type.name(&buf))
	switch {
	case p.Kind == PartText && !f.isTxt:
		p.Kind = PartOther
	case p.Kind == PartText:
		p.Text = f.text
	case p.Kind == PartMedia:
		r.Multimodal = true
	}
	for i := range f.refs {
		if f.has[i] {
			p.Key = r.addImage(f.refs[i])
			break
		}
	}
	if record {
		r.hints.add(f.cache.retention(p.Kind == PartReasoning))
	}
}

// partKind tells a part by its type. A part without one is text if it has a text.
func partKind(typ []byte) PartKind {
	switch string(typ) {
	case "", "text", "input_text", "output_text":
		return PartText
	case "image", "image_url", "input_audio", "document", "file", "video", "audio",
		// vLLM's and the Responses API's names for the same.
		"video_url", "audio_url", "image_embeds", "image_pil", "audio_embeds", "input_image", "input_file":
		return PartMedia
	case "thinking", "redacted_thinking":
		return PartReasoning
	}
	return PartOther
}

// optional reads any value; out and has are set if it is a string.
func (s *scanner) optional(out *Text, has *bool, depth int) bool {
	if has != nil {
		*has = false
	}
	if s.peek() != '"' {
		return s.skip(depth)
	}
	t, ok := s.str()
	*out = t
	if has != nil {
		*has = ok
	}
	return ok
}

// reference reads a payload: the string itself, or an object that has it in the
// given member.
func (s *scanner) reference(f *partFields, slot int, member string, depth int) bool {
	f.has[slot] = false
	if s.peek() != '{' {
		return s.optional(&f.refs[slot], &f.has[slot], depth)
	}
	s.i++
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		k, ok := s.nextKey(first)
		if !ok {
			return s.err == nil
		}
		if string(k.name(&buf)) == member {
			ok = s.optional(&f.refs[slot], &f.has[slot], depth+1)
		} else {
			ok = s.skip(depth + 1)
		}
		if !ok {
			return false
		}
	}
}

// source reads Anthropic's source object, which has a url or data.
func (s *scanner) source(f *partFields, depth int) bool {
	f.has[refSourceURL], f.has[refSourceData] = false, false
	if s.peek() != '{' {
		return s.skip(depth)
	}
	s.i++
	var buf [6 * maxKey]byte
	for first := true; ; first = false {
		k, ok := s.nextKey(first)
		if !ok {
			return s.err == nil
		}
		switch string(k.name(&buf)) {
		case "url":
			ok = s.optional(&f.refs[refSourceURL], &f.has[refSourceURL], depth+1)
		case "data":
			ok = s.optional(&f.refs[refSourceData], &f.has[refSourceData], depth+1)
		default:
			ok = s.skip(depth + 1)
		}
		if !ok {
			return false
		}
	}
}
