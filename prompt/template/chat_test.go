package template

import (
	"errors"
	"testing"
)

const dumpAll = `{{ messages|tojson }}|{{ tools|tojson }}|{{ add_generation_prompt }}|{{ documents }}|{{ custom }}{{ reasoning_effort }}`

// The shapes are those of vllm/entrypoints/chat_utils.py and
// sglang/srt/entrypoints/openai/serving_chat.py.
func TestEnginesPrepareRequestsTheirWay(t *testing.T) {
	for _, c := range []struct {
		name, template, body string
		d                    Dialect
		want                 string
	}{
		{
			"plain passes everything on", dumpAll, `{"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1}]}],"tools":[{"function":{"name":"f"}}],"documents":[],"chat_template_kwargs":{"custom":1.0}}`, Plain,
			`[{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]|[{"function": {"name": "f"}}]|True|[]|1.0`,
		},
		{
			"vLLM joins parts for a template of text", dumpAll, `{"messages":[{"content":[{"type":"text","text":"a","x":1},"b",{"type":"refusal","refusal":"c"},{"type":"text","text":null}],"role":"user","x":1,"name":"n"},{"role":"system","content":null},{"role":"user"}]}`, VLLM,
			`[{"role": "user", "content": "a\nb\nc", "name": "n"}, {"role": "system", "content": ""}, {"role": "user", "content": ""}]|null|True|None|`,
		},
		{
			"vLLM wraps text for a template of parts", `{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}` + dumpAll,
			`{"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"b"}]},{"role":"assistant","content":null},{"role":"tool","tool_call_id":"i","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}`, VLLM,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": []}, {"role": "tool", "content": "x\ny", "tool_call_id": "i"}]|null|True|None|`,
		},
		{
			"vLLM parses the arguments of calls", dumpAll,
			`{"messages":[{"role":"assistant","content":"","reasoning":"r","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2]}"}},{"function":{"arguments":"{","name":"g"}},{"function":{"name":"h"}}]},{"role":"assistant","content":"x","tool_calls":[]}]}`, VLLM,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}, {"function": {"arguments": {}, "name": "g"}}, {"function": {"name": "h", "arguments": {}}}], "reasoning": "r", "reasoning_content": "r"}, {"role": "assistant", "content": "x"}]|null|True|None|`,
		},
		{
			"vLLM dumps tools by its model", dumpAll, `{"messages":[],"add_generation_prompt":false,"reasoning_effort":"low","tools":[{"function":{"strict":true,"parameters":{"b":1,"a":2},"name":"f"},"type":"function","z":1}]}`, VLLM,
			`[]|[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}, "strict": true}, "z": 1}]|False|None|low`,
		},
		{
			"SGLang joins text with a space and drops None", dumpAll, `{"messages":[{"role":"USER","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image_url"}],"name":"n"},{"role":"assistant","content":null,"name":null,"reasoning_content":"r"}],"add_generation_prompt":false}`, SGLang,
			`[{"role": "user", "content": "a b"}, {"role": "assistant", "content": "", "reasoning_content": "r"}]|null|True|None|`,
		},
		{
			"SGLang keeps parts for a template of parts", `{% for message in [] %}{% for c in message.content %}{% endfor %}{% endfor %}` + dumpAll, `{"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1},{"type":"image_url"}]},{"role":"tool","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"role":"user","content":"t"}]}`, SGLang,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, {"role": "tool", "content": "b c"}, {"role": "user", "content": "t"}]|null|True|None|`,
		},
		{
			"SGLang dumps calls and tools by its models", dumpAll, `{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"arguments":"{\"a\":1}","name":"f"}}]}],"tools":[{"function":{"name":"f","parameters":{}}},{"function":{"name":"g"}}],"tool_choice":{"type":"function","function":{"name":"g"}}}`, SGLang,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "index": null, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}]|[{"type": "function", "function": {"description": null, "name": "g", "parameters": null, "strict": false}}]|True|None|`,
		},
		{"SGLang hides tools when none may be chosen", dumpAll, `{"messages":[],"tools":[{"function":{"name":"f"}}],"tool_choice":"none"}`, SGLang, `[]|null|True|None|`},
	} {
		in, err := FromChat([]byte(c.body), c.d)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		out, err := mustParse(t, c.template).Render(nil, &in, Limits{})
		if err != nil || string(out) != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.name, out, err, c.want)
		}
	}
}

func TestContinueFinalMessage(t *testing.T) {
	keeps := `{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	trims := `{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</>{% endfor %}`
	parts := `{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}`
	drops := `{{ messages|length }}`
	const body = `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a b "}],"continue_final_message":true,"add_generation_prompt":false}`
	for _, c := range []struct {
		name, template, body string
		d                    Dialect
		want                 string
		fails                bool
	}{
		{"spaces are kept", keeps, body, Plain, "<user>q</><assistant>a b ", false},
		{"trimmed ones are gone", trims, body, VLLM, "<user>q</><assistant>a b", false},
		{"the last text part", parts, `{"messages":[{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"text","text":"y"},{"type":"image"}]}],"continue_final_message":true,"add_generation_prompt":false}`, Plain, "[x][y", false},
		{"SGLang appends it", keeps, body, SGLang, "<user>q</><assistant>a b ", false},
		{"the template drops it", drops, body, Plain, "", true},
		{"not with a generation prompt", keeps, `{"messages":[{"role":"assistant","content":"a"}],"continue_final_message":true}`, Plain, "", true},
		{"null cannot be continued", keeps, `{"messages":[{"role":"assistant","content":null}],"continue_final_message":true,"add_generation_prompt":false}`, Plain, "", true},
	} {
		in, err := FromChat([]byte(c.body), c.d)
		if err != nil {
			t.Fatal(err)
		}
		out, err := mustParse(t, c.template).Render(nil, &in, Limits{})
		if string(out) != c.want || c.fails != errors.Is(err, ErrTemplate) {
			t.Errorf("%s: got %q, %v; want %q", c.name, out, err, c.want)
		}
	}
}

func TestContentFormatIsDetectedAsTheEnginesDo(t *testing.T) {
	for _, c := range []struct {
		source       string
		vllm, sglang ContentFormat
	}{
		{`{% for m in messages %}{{ m.content }}{% endfor %}`, FormatString, FormatString},
		{`{% for message in messages %}{% for c in message['content'] %}{% endfor %}{% endfor %}`, FormatOpenAI, FormatOpenAI},
		{`{% for message in messages[1:]|list %}{% for c in message.content|list %}{% endfor %}{% endfor %}`, FormatOpenAI, FormatOpenAI},
		{`{% set ms = messages %}{% set rest = ms[1:] %}{% for x in rest %}{% for c in x.content %}{% endfor %}{% endfor %}`, FormatOpenAI, FormatString},
		{`{% for x in messages %}{% set content = x.content %}{% for c in content %}{% endfor %}{% endfor %}`, FormatString, FormatString},
		{`{% macro r(m) %}{% for c in m.content %}{% endfor %}{% endmacro %}{% for q in messages %}{{ r(q) }}{% endfor %}`, FormatString, FormatOpenAI},
		{`{{ 'no vision here' }}`, FormatString, FormatOpenAI},
		{`{% for i, m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}`, FormatString, FormatOpenAI},
	} {
		tpl := mustParse(t, c.source)
		if got := tpl.Format(VLLM); got != c.vllm {
			t.Errorf("%s: vLLM %d, want %d", c.source, got, c.vllm)
		}
		if got := tpl.Format(SGLang); got != c.sglang {
			t.Errorf("%s: SGLang %d, want %d", c.source, got, c.sglang)
		}
	}
}

func TestChatBodiesThatAreNone(t *testing.T) {
	for _, body := range []string{``, `[]`, `{`, `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1}x`, `{"messages":[}`, `{"a":"`, `{a:1}`} {
		if in, err := FromChat([]byte(body), VLLM); err == nil {
			tpl := mustParse(t, `{{ messages }}`)
			if _, err = tpl.Render(nil, &in, Limits{}); !errors.Is(err, ErrInput) {
				t.Errorf("%s: %v, want ErrInput", body, err)
			}
		} else if !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v, want ErrInput", body, err)
		}
	}
}
