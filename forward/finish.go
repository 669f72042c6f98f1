package forward

import "encoding/json"

// finishes keeps which choices of a stream have told why they ended. A nil finishes
// is never complete.
type finishes struct {
	want  int          // choices asked for, at least
	ended map[int]bool // by index; false while the choice goes on
}

// note looks at one event of a chat or text completion.
func (f *finishes) note(raw []byte) {
	var chunk struct {
		Choices []struct {
			Index  int     `json:"index"`
			Reason *string `json:"finish_reason"`
		} `json:"choices"`
	}
	const most = 1024 // choices; a stream that claims more is not judged
	if json.Unmarshal(parseEvent(raw).data, &chunk) != nil || len(f.ended) > most {
		return
	}
	if f.ended == nil {
		f.ended = make(map[int]bool, len(chunk.Choices))
	}
	for _, c := range chunk.Choices {
		f.ended[c.Index] = f.ended[c.Index] || c.Reason != nil && *c.Reason != ""
	}
}

// complete reports whether every choice has ended.
func (f *finishes) complete() bool {
	if f == nil || len(f.ended) < max(f.want, 1) {
		return false
	}
	for _, ended := range f.ended {
		if !ended {
			return false
		}
	}
	return true
}
