package template

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// qwenLike does what Qwen3's template does per message: it looks back for the last
// question, cuts reasoning out, and writes calls and tool answers.
const qwenLike = `{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not(message.content.startswith('<answer>') and message.content.endswith('</answer>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set thought = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}`

// longConversation has n messages of size bytes, every fourth with a thought.
func longConversation(n, size int) []byte {
	line := "The quick brown fox jumps over the \\\"lazy\\\" dog.\\n"
	var b strings.Builder
	b.WriteByte('[')
	for i := range n {
		text := strings.Repeat(line, size/len(line)+1)[:size/len(line)*len(line)]
		if i > 0 {
			b.WriteByte(',')
		}
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		if i%4 == 1 {
			text = `<think>\nhm\n</think>\n\n` + text
		}
		b.WriteString(`{"role":"` + role + `","content":"` + text + `"}`)
	}
	b.WriteByte(']')
	return []byte(b.String())
}

// cpuTime is this process's, for figures on a busy machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRender(b *testing.B) {
	for _, c := range []struct {
		name    string
		n, size int
	}{{"1KB-2", 2, 500}, {"100KB-50", 50, 2050}} {
		b.Run(c.name, func(b *testing.B) {
			tpl := mustParse(b, qwenLike)
			in := Input{Messages: longConversation(c.n, c.size), AddGenerationPrompt: true}
			b.SetBytes(int64(len(in.Messages)))
			b.ReportAllocs()
			var dst []byte
			var err error
			cpu, n := cpuTime(b), 0
			for b.Loop() {
				if dst, err = tpl.Render(dst[:0], &in, Limits{}); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(n)/1000, "cpu-us/op")
		})
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("qwen", qwenLike); err != nil {
			b.Fatal(err)
		}
	}
}
