package prompt

import "iter"

// Message is a view of one message. Its parts and bytes point into the body.
type Message struct {
	Role      Text
	Content   Text   // the content when it is a string
	IsText    bool   // Content is set
	Parts     []Part // the content when it is an array
	ToolCalls []byte // raw JSON of tool_calls; nil when absent or null
	Raw       []byte // the whole message as JSON; nil for the system prompt
}

// Messages yields the messages in order, without the system prompt of an
// Anthropic request. If [Request.Partial] it stops before the last ones.
func (r *Request) Messages() iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for i := range r.msgs {
			if !yield(r.view(&r.msgs[i])) {
				return
			}
		}
	}
}

// System returns the system prompt of an Anthropic request; ok is false when it
// has none. An OpenAI request has it among its messages.
func (r *Request) System() (m Message, ok bool) {
	if r.Kind != Messages || r.raw[keySystem] == nil {
		return Message{}, false
	}
	m = r.view(&r.system)
	return m, m.IsText || m.Parts != nil
}

func (r *Request) view(m *message) Message {
	v := Message{Role: m.role, Content: m.content, IsText: m.hasText, ToolCalls: m.toolCalls, Raw: m.raw}
	if m.hi > m.lo {
		v.Parts = r.parts[m.lo:m.hi:m.hi]
	}
	return v
}

// Prompt returns the text of a completions prompt, of several the first; ok is
// false when there is none or it is given as token ids.
func (r *Request) Prompt() (t Text, ok bool) {
	return r.prompt.text, r.prompt.form == textPrompt
}

// PromptIDs appends the token ids that a completions request gives as its prompt,
// of several the first; ok is false when it gives none.
func (r *Request) PromptIDs(dst []uint32) (ids []uint32, ok bool) {
	if r.prompt.form != idsPrompt {
		return dst, false
	}
	return append(dst, r.ids...), true
}

// Prompts returns how many prompts a completions request has.
func (r *Request) Prompts() int {
	if r.prompt.form == noPrompt {
		return 0
	}
	return 1 + r.prompt.more
}

// Partial reports whether the body has more messages or content parts than are
// recorded. What is recorded is its beginning.
func (r *Request) Partial() bool { return r.partial }

// Body returns the body that was scanned.
func (r *Request) Body() []byte { return r.body }

// Raw returns the raw JSON value of a known key of the body's object, nil when it
// is absent. Known are the keys that route and those that change how engines
// render the prompt: messages, prompt, system, tools, tool_choice, functions,
// documents, chat_template, chat_template_kwargs, add_generation_prompt,
// continue_final_message, add_special_tokens, reasoning_effort, stream_options
// and the rest of the table in keys.go.
func (r *Request) Raw(name string) []byte {
	k := rootKey([]byte(name))
	if k == keyUnknown {
		return nil
	}
	return r.raw[k]
}

// User returns what the body's "user" says, as written between its quotes; nil when
// that is no text. It is a view of the body.
func (r *Request) User() []byte {
	raw := r.raw[keyUser]
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	return raw[1 : len(raw)-1]
}

// Set reports whether a known key is there with a value other than null.
func (r *Request) Set(name string) bool {
	raw := r.Raw(name)
	return len(raw) > 0 && raw[0] != 'n'
}

// ModelAt returns where in the scanned body the value of "model" stands, quotes
// included; ok is false when the body has none.
func (r *Request) ModelAt() (from, to int, ok bool) {
	raw := r.raw[keyModel]
	if raw == nil {
		return 0, 0, false
	}
	from = cap(r.body) - cap(raw) // a slice of it ends where it ends
	return from, from + len(raw), true
}

// Rename makes r a request for another model. The body stays as it is.
func (r *Request) Rename(model string) { r.Model, r.Base = model, model }
