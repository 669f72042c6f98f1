package template

// vllmMessages rebuilds the messages as vLLM's parse_chat_messages does.
func (r *run) vllmMessages(msgs value, format ContentFormat) value {
	src := msgs.items()
	out := r.values(len(src))
	for i, m := range src {
		d, role := r.message(m)
		o := r.object(6)
		o.set("role", strValue(role))
		content, _ := d.str("content")
		o.set("content", r.vllmContent(content, format))
		switch role {
		case "assistant":
			r.vllmAssistant(o, d)
		case "tool":
			if id, ok := d.str("tool_call_id"); ok {
				o.set("tool_call_id", id)
			}
			r.vllmToolContent(o)
		}
		for _, name := range [...]string{"name", "task"} {
			if v, ok := d.str(name); ok && v.k == kStr {
				o.set(name, v)
			}
		}
		if role == "developer" {
			tools, ok := d.str("tools")
			if !ok {
				tools = none()
			}
			o.set("tools", tools)
		}
		out[i] = o.value()
	}
	return r.list(out)
}

// vllmAssistant adds calls, with parsed arguments, and reasoning.
func (r *run) vllmAssistant(o object, d *dict) {
	if calls, ok := d.str("tool_calls"); ok && calls.k != kNone {
		if calls.k != kList {
			panic(inputError("tool_calls are not an array"))
		}
		if len(calls.items()) > 0 {
			o.set("tool_calls", r.mapList(calls, r.vllmCall))
		}
	}
	reasoning, ok := d.str("reasoning")
	if !ok || reasoning.k == kNone {
		reasoning, ok = d.str("reasoning_content")
	}
	if ok && reasoning.k != kNone {
		o.set("reasoning", reasoning)
		o.set("reasoning_content", reasoning)
	}
}

func (r *run) mapList(v value, f func(value) value) value {
	src := v.items()
	out := r.values(len(src))
	for i, x := range src {
		out[i] = f(x)
	}
	return r.list(out)
}

// withField copies a dict with one field replaced.
func (r *run) withField(d *dict, name string, v value) value {
	c := &dict{entries: append(r.newEntries(len(d.entries)+1), d.entries...)}
	c.set(r, strValue(name), v)
	return dictOf(c)
}

// vllmCall parses a call's arguments; text that is no JSON becomes an empty object.
func (r *run) vllmCall(call value) value {
	if call.k != kDict {
		panic(inputError("a tool call is no object"))
	}
	fn, _ := call.dict().str("function")
	if fn.k != kDict {
		panic(inputError("a tool call has no function"))
	}
	args, _ := fn.dict().str("arguments")
	switch args.k {
	case kDict, kList:
		return call
	case kStr:
		args = r.parseOr(args.s, dictOf(r.newDict(0)))
	default:
		args = dictOf(r.newDict(0))
	}
	return r.withField(call.dict(), "function", r.withField(fn.dict(), "arguments", args))
}

// parseOr decodes JSON text, or returns def when it is none.
func (r *run) parseOr(s string, def value) (v value) {
	depth, stack := r.depth, len(r.stack)
	defer func() {
		if x := recover(); x != nil {
			e, ok := x.(*Error)
			if !ok || e.Class != classInput {
				panic(x)
			}
			r.depth, r.stack = depth, r.stack[:stack]
			v = def
		}
	}()
	return r.decodeString(s, 0)
}

// vllmContent: text stays text, or becomes one part; parts are joined with a
// newline, or become parts with known fields only.
func (r *run) vllmContent(c value, format ContentFormat) value {
	var parts []value
	switch c.k {
	case kMissing, kNone:
	case kStr:
		if format == FormatString {
			return c
		}
		return r.list(append(r.values(1)[:0], r.textPart(c)))
	case kList:
		parts = c.items()
	default:
		panic(inputError("content is neither text nor parts"))
	}
	out := r.values(len(parts))[:0]
	for _, p := range parts {
		v, ok := r.vllmPart(p, format)
		if ok {
			out = append(out, v)
		}
	}
	if format == FormatString {
		return strValue(r.join("\n", out))
	}
	return r.list(out)
}

func (r *run) textPart(text value) value {
	o := r.object(2)
	o.set("type", strValue("text"))
	o.set("text", text)
	return o.value()
}

func (r *run) typePart(kind string) value {
	o := r.object(1)
	o.set("type", strValue(kind))
	return o.value()
}

// vllmPart is one content part; false when it is skipped.
func (r *run) vllmPart(p value, format ContentFormat) (value, bool) {
	text := func(v value) (value, bool) {
		if v.k != kStr {
			panic(inputError("a text part without text"))
		}
		if format == FormatString {
			return v, true
		}
		return r.textPart(v), true
	}
	if p.k == kStr {
		return text(p)
	}
	if p.k != kDict {
		panic(inputError("a content part is neither text nor an object"))
	}
	d := p.dict()
	kind, _ := d.str("type")
	if kind.k != kStr {
		panic(inputError("a content part has no type"))
	}
	switch kind.s {
	case "text", "refusal", "input_text", "output_text", "thinking":
		field := map[string]string{"refusal": "refusal", "thinking": "thinking"}[kind.s]
		if field == "" {
			field = "text"
		}
		v, _ := d.str(field)
		if (v.k == kNone || v.k == kMissing) && (kind.s == "text" || kind.s == "refusal") {
			return value{}, false
		}
		return text(v)
	case "tool_reference":
		name, _ := d.str("name")
		if format == FormatString {
			return text(name)
		}
		o := r.object(2)
		o.set("type", kind)
		o.set("name", name)
		return o.value(), true
	}
	media := mediaKind(kind.s)
	if media == "" {
		panic(inputError("unsupported content part type"))
	}
	if format == FormatString {
		r.unsupported("an image, audio or video in a template of the string format")
	}
	return r.typePart(media), true
}

// mediaKind is the type that templates see of a multimodal part.
func mediaKind(kind string) string {
	switch kind {
	case "image_url", "input_image", "image_embeds", "image_pil":
		return "image"
	case "audio_url", "input_audio", "audio_embeds":
		return "audio"
	case "video_url":
		return "video"
	}
	return ""
}

// vllmToolContent joins a tool's text parts: templates want text there.
func (r *run) vllmToolContent(o object) {
	c, _ := o.d.str("content")
	if c.k != kList {
		return
	}
	texts := r.values(len(c.items()))[:0]
	for _, p := range c.items() {
		t, ok := p.dict().str("text")
		if !ok {
			return // something other than text: kept
		}
		texts = append(texts, t)
	}
	o.set("content", strValue(r.join("\n", texts)))
}

// vllmTools dumps tools as vLLM's pydantic models do: type and function first,
// absent descriptions and parameters as None, unknown fields after.
func (r *run) vllmTools(tools value) value {
	if tools.k != kList {
		return tools
	}
	return r.mapList(tools, func(t value) value {
		d, fn := r.toolFunction(t)
		f := r.object(len(fn.entries) + 2)
		for _, name := range [...]string{"name", "description", "parameters"} {
			f.set(name, fieldOr(fn, name, none()))
		}
		for _, e := range fn.entries {
			f.d.set(r, e.key, e.val)
		}
		o := r.object(len(d.entries) + 1)
		o.set("type", fieldOr(d, "type", strValue("function")))
		o.set("function", f.value())
		for _, e := range d.entries {
			if e.key.s != "function" {
				o.d.set(r, e.key, e.val)
			}
		}
		return o.value()
	})
}

func (r *run) toolFunction(t value) (tool, fn *dict) {
	if t.k != kDict {
		panic(inputError("a tool is no object"))
	}
	f, _ := t.dict().str("function")
	if f.k != kDict {
		panic(inputError("a tool has no function"))
	}
	return t.dict(), f.dict()
}

func fieldOr(d *dict, name string, def value) value {
	if v, ok := d.str(name); ok {
		return v
	}
	return def
}
