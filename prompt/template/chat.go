package template

// Dialect is whose way of preparing a request is followed before the template
// sees it.
type Dialect uint8

const (
	// Plain passes messages and tools as they are, as transformers and Infera do
	// (infera/router/kv_event/block_hasher.py).
	Plain Dialect = iota
	// VLLM rebuilds messages as vllm/entrypoints/chat_utils.py does: only known
	// fields, content by the template's format, call arguments parsed; tools as
	// pydantic dumps them.
	VLLM
	// SGLang follows sglang/srt/entrypoints/openai/serving_chat.py.
	SGLang
)

// ContentFormat is what a template wants a message's content to be.
type ContentFormat uint8

const (
	// FormatAuto is the engine's own detection.
	FormatAuto ContentFormat = iota
	// FormatString wants text; parts are joined.
	FormatString
	// FormatOpenAI wants a list of parts; vLLM wraps text into one.
	FormatOpenAI
)

// FromChat cuts the body of a chat completion request into an [Input] for a
// dialect. The body must be a JSON object; what it does not use is skipped. The
// input shares the body's memory.
func FromChat(body []byte, d Dialect) (in Input, err error) {
	defer func() {
		if x := recover(); x != nil {
			e, ok := x.(*Error)
			if !ok {
				panic(x)
			}
			in, err = Input{}, e
		}
	}()
	in = Input{Dialect: d, AddGenerationPrompt: true}
	fields, ok := topLevel(body)
	if !ok {
		return Input{}, inputError("the body is no JSON object")
	}
	for _, f := range fields {
		switch f.key {
		case "messages":
			in.Messages = f.raw
		case "tools":
			in.Tools = f.raw
		case "documents":
			in.Documents = f.raw
		case "chat_template_kwargs":
			in.Kwargs = f.raw
		case "tool_choice":
			in.ToolChoice = f.raw
		case "reasoning_effort":
			in.ReasoningEffort = f.raw
		case "add_generation_prompt":
			in.AddGenerationPrompt = d == SGLang || string(f.raw) != "false"
		case "continue_final_message":
			in.ContinueFinalMessage = string(f.raw) == "true"
		}
	}
	return in, nil
}

type rawField struct {
	key string
	raw []byte
}

// topLevel finds the members of a JSON object without building their values. Equal
// keys: the last one comes last.
func topLevel(body []byte) ([]rawField, bool) {
	i := skipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return nil, false
	}
	i = skipSpace(body, i+1)
	var fields []rawField
	for i < len(body) && body[i] == '"' {
		end := skipString(body, i)
		if end < 0 {
			return nil, false
		}
		key := string(body[i+1 : end-1])
		i = skipSpace(body, end)
		if i >= len(body) || body[i] != ':' {
			return nil, false
		}
		i = skipSpace(body, i+1)
		end = skipValue(body, i)
		if end <= i {
			return nil, false
		}
		fields = append(fields, rawField{key, body[i:end]})
		i = skipSpace(body, end)
		if i < len(body) && body[i] == ',' {
			i = skipSpace(body, i+1)
			continue
		}
		break
	}
	return fields, i < len(body) && body[i] == '}' && skipSpace(body, i+1) == len(body)
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the end of a string, or -1.
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// skipValue returns the end of a value, or -1. It balances brackets and does not
// check more: what is used is decoded later.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}

// variables decodes the input and gives it the shape the engine gives it.
func (r *run) variables(in *Input) *dict {
	if len(in.Messages) == 0 {
		panic(inputError("messages are missing"))
	}
	msgs := r.decode(in.Messages)
	if msgs.k != kList {
		panic(inputError("messages are not an array"))
	}
	tools, docs := r.optional(in.Tools, kList, "tools"), r.optional(in.Documents, kList, "documents")
	kwargs := r.optional(in.Kwargs, kDict, "chat_template_kwargs")
	vars := r.newDict(16)
	for _, s := range r.t.special {
		vars.set(r, strValue(s.Name), strValue(s.Text))
	}
	msgs, tools = r.prepare(in, msgs, tools)
	if in.ContinueFinalMessage {
		msgs = r.markFinal(in, msgs)
	}
	set := func(name string, v value) { vars.set(r, strValue(name), v) }
	set("add_generation_prompt", boolValue(in.AddGenerationPrompt || in.Dialect == SGLang))
	set("documents", docs)
	if effort := r.optional(in.ReasoningEffort, kStr, "reasoning_effort"); effort.k == kStr && in.Dialect != Plain {
		set("reasoning_effort", effort)
	}
	if kwargs.k == kDict {
		r.addKwargs(vars, kwargs.dict())
	}
	set("messages", msgs)
	set("tools", tools)
	return vars
}

func (r *run) optional(raw []byte, want kind, name string) value {
	if len(raw) == 0 {
		return none()
	}
	v := r.decode(raw)
	if v.k != want && v.k != kNone {
		panic(inputError(name + " is a " + typeName(v)))
	}
	return v
}

// addKwargs: what transformers passes itself cannot be passed twice.
func (r *run) addKwargs(vars, kwargs *dict) {
	for _, e := range kwargs.entries {
		switch e.key.s {
		case "messages", "conversation", "tools":
			r.typeError("got multiple values for keyword argument '%s'", e.key.s)
		case "chat_template", "tokenize":
			r.fail("ValueError", "Found unexpected chat template kwargs from request: %s", e.key.s)
		case "continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict",
			"return_assistant_tokens_mask", "tokenizer_kwargs":
			continue // arguments of apply_chat_template, not the template's
		}
		vars.set(r, e.key, e.val)
	}
}

func (r *run) prepare(in *Input, msgs, tools value) (m, t value) {
	format := in.ContentFormat
	if format == FormatAuto {
		format = r.t.Format(in.Dialect)
	}
	switch in.Dialect {
	case VLLM:
		return r.vllmMessages(msgs, format), r.vllmTools(tools)
	case SGLang:
		return r.sglangMessages(msgs, format), r.sglangTools(tools, in)
	default:
		return msgs, tools
	}
}

// object builds a dict field by field.
type object struct {
	r *run
	d *dict
}

func (r *run) object(n int) object { return object{r, r.newDict(n)} }

func (o object) set(name string, v value) { o.d.set(o.r, strValue(name), v) }

func (o object) value() value { return dictOf(o.d) }

// message returns a message as a dict, and its role.
func (r *run) message(v value) (*dict, string) {
	if v.k != kDict {
		panic(inputError("a message is no object"))
	}
	role, _ := v.dict().str("role")
	if role.k != kStr {
		panic(inputError("a message has no role"))
	}
	return v.dict(), role.s
}
