package template

import (
	"bytes"
	"strings"
)

// finalMark is what transformers appends to the last message to find its end again
// in the prompt; its space shows whether the template trims.
const finalMark = "CONTINUE_FINAL_MESSAGE_TAG "

// markFinal appends the mark to the last message (transformers,
// utils/chat_template_utils.py). SGLang instead takes an assistant's last message
// out and appends it to the prompt.
func (r *run) markFinal(in *Input, msgs value) value {
	items := msgs.items()
	if in.AddGenerationPrompt && in.Dialect != SGLang {
		r.fail("ValueError", "continue_final_message and add_generation_prompt are not compatible. "+
			"Use continue_final_message when you want the model to continue the final message, "+
			"and add_generation_prompt when you want to add a header that will prompt it to start a new assistant message instead.")
	}
	if len(items) == 0 {
		r.fail("IndexError", "list index out of range")
	}
	if items[len(items)-1].k != kDict {
		r.typeError("'%s' object is not subscriptable", typeName(items[len(items)-1]))
	}
	last := items[len(items)-1].dict()
	content := fieldOr(last, "content", value{})
	if in.Dialect == SGLang {
		_, role := r.message(items[len(items)-1])
		if role != "assistant" {
			return msgs
		}
		r.final, r.appendFinal = r.str(content), true
		return r.list(items[: len(items)-1 : len(items)-1])
	}
	switch content.k {
	case kStr:
		r.final = content.s
		content = r.add(content, strValue(finalMark))
	case kList:
		content = r.markParts(content)
	case kMissing:
		r.fail("KeyError", "'content'")
	default:
		r.typeError("unsupported operand type(s) for +: '%s' and 'str'", typeName(content))
	}
	out := r.values(len(items))
	copy(out, items)
	out[len(out)-1] = r.withField(last, "content", content)
	return r.list(out)
}

// markParts appends the mark to the last part that has text.
func (r *run) markParts(content value) value {
	parts := r.values(len(content.items()))
	copy(parts, content.items())
	for i := len(parts) - 1; i >= 0; i-- {
		if parts[i].k != kDict {
			continue
		}
		text, ok := parts[i].dict().str("text")
		if !ok {
			continue
		}
		if text.k != kStr {
			r.typeError("unsupported operand type(s) for +: '%s' and 'str'", typeName(text))
		}
		r.final = text.s
		parts[i] = r.withField(parts[i].dict(), "text", r.add(text, strValue(finalMark)))
		return r.list(parts)
	}
	return r.fail("ValueError", "continue_final_message is set but we could not find any text to continue in the final message!")
}

// cutAfterFinal ends the prompt where the last message ends.
func (r *run) cutAfterFinal() {
	if r.appendFinal {
		r.write(r.final)
		return
	}
	if r.t == nil || len(r.out) < r.base {
		return
	}
	prompt := r.out[r.base:]
	mark := strings.TrimRight(finalMark, " ")
	at := bytes.LastIndex(prompt, []byte(mark))
	if at < 0 || !bytes.Contains(prompt, []byte(r.strip(r.final, nil, true, true))) {
		r.fail("ValueError", "continue_final_message is set but the final message does not appear in the chat after "+
			"applying the chat template! This can happen if the chat template deletes portions of "+
			"the final message. Please verify the chat template and final message in your chat to "+
			"ensure they are compatible.")
	}
	if bytes.HasPrefix(prompt[at:], []byte(finalMark)) {
		r.out = r.out[:r.base+at]
		return
	}
	r.out = r.out[:r.base+len(bytes.TrimRightFunc(prompt[:at], isSpace))]
}
