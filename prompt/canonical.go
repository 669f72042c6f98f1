package prompt

import (
	"encoding/binary"
)

// Marks between the pieces of the canonical text. They are control characters
// because those hardly occur in prompts; a text that holds them can at worst be
// taken for another one, which costs a wrong guess and nothing else.
const (
	markTools   = 0x1D // a list of tools follows
	markMessage = 0x1E // a message follows: role, markContent, content
	markContent = 0x1F // a piece of content follows
	markMedia   = 0x1C // an image's key follows, 8 bytes
)

// canonical writes the prompt's text in the order in which chat templates render
// it: tools, system prompt, messages. The text of a conversation is a beginning
// of the text of the same conversation with more turns: nothing counts what
// follows, and what makes the engine start to answer is not part of it.
func (r *Request) canonical(w *blockWriter) {
	if r.Kind == Completions {
		w.text(r.prompt.text)
		return
	}
	if r.Tools {
		w.byte(markTools)
		w.json(r.raw[keyTools])
	}
	if r.Kind == Messages && (r.system.hasText || r.system.hi > r.system.lo) {
		w.byte(markMessage)
		w.write([]byte("system"))
		r.contentOf(w, &r.system)
	}
	for i := range r.msgs {
		m := &r.msgs[i]
		w.byte(markMessage)
		w.text(m.role)
		r.contentOf(w, m)
		if m.toolCalls != nil {
			w.byte(markContent)
			w.json(m.toolCalls)
		}
	}
}

// contentOf writes a message's content. A string and an array of one text are the
// same content.
func (r *Request) contentOf(w *blockWriter, m *message) {
	if m.hasText {
		w.byte(markContent)
		w.text(m.content)
		return
	}
	for i := m.lo; i < m.hi; i++ {
		switch p := &r.parts[i]; {
		case p.Kind == PartText:
			w.byte(markContent)
			w.text(p.Text)
		case p.Kind == PartMedia && p.Key != 0:
			w.byte(markMedia)
			w.write(binary.LittleEndian.AppendUint64(w.scratch[:0], p.Key))
		case p.Kind != PartReasoning:
			w.byte(markContent)
			w.json(p.Raw)
		}
	}
}
