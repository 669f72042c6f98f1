package template

// sglangMessages prepares messages as SGLang's serving_chat does: pydantic's known
// fields, those that are None dropped, absent content empty.
func (r *run) sglangMessages(msgs value, format ContentFormat) value {
	src := msgs.items()
	out := r.values(len(src))
	for i, m := range src {
		d, role := r.message(m)
		role = r.toCase("lower", role)
		o := r.object(7)
		o.set("role", strValue(role))
		content := r.sglangContent(fieldOr(d, "content", none()), format)
		if role == "tool" {
			content = r.sglangToolContent(content)
		}
		o.set("content", content)
		if role != "user" {
			r.sglangFields(o, d, role)
		}
		out[i] = o.value()
	}
	return r.list(out)
}

func (r *run) sglangFields(o object, d *dict, role string) {
	for _, name := range [...]string{"tool_call_id", "name", "reasoning_content", "tool_calls", "tools"} {
		v, ok := d.str(name)
		if !ok || v.k == kNone {
			continue
		}
		switch name {
		case "tool_calls":
			if v.k != kList {
				panic(inputError("tool_calls are not an array"))
			}
			v = r.mapList(v, func(c value) value { return r.sglangCall(c, role) })
		case "tools":
			if v.k != kList {
				panic(inputError("tools are not an array"))
			}
			v = r.mapList(v, r.sglangTool)
		}
		o.set(name, v)
	}
}

// sglangCall dumps a call: known fields, and arguments parsed, which must be an
// object.
func (r *run) sglangCall(call value, role string) value {
	if call.k != kDict {
		panic(inputError("a tool call is no object"))
	}
	d := call.dict()
	fn, _ := d.str("function")
	if fn.k != kDict {
		panic(inputError("a tool call has no function"))
	}
	args := fieldOr(fn.dict(), "arguments", none())
	if args.k == kStr && role == "assistant" {
		if args = r.parseOr(args.s, none()); args.k != kDict {
			r.fail("ValueError", "Assistant tool call function.arguments must be valid JSON.")
		}
	}
	f := r.object(2)
	f.set("name", fieldOr(fn.dict(), "name", none()))
	f.set("arguments", args)
	o := r.object(4)
	o.set("id", fieldOr(d, "id", none()))
	o.set("index", fieldOr(d, "index", none()))
	o.set("type", fieldOr(d, "type", strValue("function")))
	o.set("function", f.value())
	return o.value()
}

func (r *run) sglangContent(c value, format ContentFormat) value {
	switch c.k {
	case kNone:
		return strValue("")
	case kStr:
		return c
	case kList:
	default:
		panic(inputError("content is neither text nor parts"))
	}
	out := r.values(len(c.items()))[:0]
	for _, p := range c.items() {
		if p.k != kDict {
			panic(inputError("a content part is no object"))
		}
		kind, _ := p.dict().str("type")
		text := kind.k == kStr && (kind.s == "text" || kind.s == "input_text")
		switch {
		case text:
			t, _ := p.dict().str("text")
			if t.k != kStr {
				panic(inputError("a text part without text"))
			}
			if format == FormatOpenAI {
				t = r.textPart(t)
			}
			out = append(out, t)
		case format != FormatOpenAI:
		case kind.k == kStr && kind.s == "tool_reference":
			out = append(out, p)
		case kind.k == kStr && mediaKind(kind.s) != "":
			out = append(out, r.typePart(mediaKind(kind.s)))
		}
	}
	if format == FormatOpenAI {
		return r.list(out)
	}
	return strValue(r.join(" ", out))
}

// sglangToolContent joins a tool's parts when all are text.
func (r *run) sglangToolContent(c value) value {
	if c.k != kList {
		return c
	}
	texts := r.values(len(c.items()))[:0]
	for _, p := range c.items() {
		t, ok := p.dict().str("text")
		if !ok {
			return c
		}
		texts = append(texts, t)
	}
	return strValue(r.join(" ", texts))
}

// sglangTool dumps a tool as SGLang's pydantic model does.
func (r *run) sglangTool(t value) value {
	d, fn := r.toolFunction(t)
	f := r.object(4)
	f.set("description", fieldOr(fn, "description", none()))
	f.set("name", fieldOr(fn, "name", none()))
	f.set("parameters", fieldOr(fn, "parameters", none()))
	f.set("strict", fieldOr(fn, "strict", boolValue(false)))
	o := r.object(2)
	o.set("type", fieldOr(d, "type", strValue("function")))
	o.set("function", f.value())
	return o.value()
}

// sglangTools: tool_choice none shows no tools, a named one shows that tool.
func (r *run) sglangTools(tools value, in *Input) value {
	if tools.k != kList || len(tools.items()) == 0 {
		return none()
	}
	all := r.mapList(tools, r.sglangTool)
	if len(in.ToolChoice) == 0 {
		return all
	}
	choice := r.decode(in.ToolChoice)
	if choice.k == kStr && choice.s == "none" {
		return none()
	}
	if choice.k != kDict {
		return all
	}
	fn, _ := choice.dict().str("function")
	if fn.k != kDict {
		panic(inputError("tool_choice has no function"))
	}
	want, _ := fn.dict().str("name")
	chosen := r.values(len(all.items()))[:0]
	for _, t := range all.items() {
		f, _ := t.dict().str("function")
		if name, _ := f.dict().str("name"); r.equal(name, want) {
			chosen = append(chosen, t)
		}
	}
	return r.list(chosen)
}
