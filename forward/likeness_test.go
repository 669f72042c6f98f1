package forward

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// told is what a stream's relay has made of the events it has looked at.
type told struct {
	end, failed           bool
	whole, events, tokens int
	finished              string
}

// lookAt looks at text as run does when it comes in one read, or in two.
func lookAt(text string, cut int) told {
	x := &exchange{cfg: &Config{HoldTime: time.Hour}, committed: true, firstAt: time.Now()}
	st := &stream{x: x, dial: chat, start: time.Now()}
	var end bool
	var err error
	for _, upTo := range []int{cut, len(text)} {
		st.buf = append(make([]byte, 0, len(text)), text[:upTo]...)
		if end, err = st.look(); end {
			break
		}
	}
	return told{end, err != nil, st.whole, st.events, x.tokens, x.finished}
}

// lookAtEach does so by looking into every event.
func lookAtEach(text string) told {
	x := new(exchange)
	var got told
	var f framer
	for !got.end {
		next := f.next([]byte(text))
		if next < 0 {
			break
		}
		raw := []byte(text[got.whole:next])
		got.whole = next
		switch chat.meaning(raw) {
		case content:
			got.events++
			x.noteFinish(raw)
		case final:
			got.end = true
		case failed:
			got.end, got.failed = true, true
		case lifecycle:
		}
	}
	got.tokens, got.finished = got.events, x.finished
	return got
}

// FuzzLikeness: a stream whose events are known by their likeness is taken for what
// looking into each of them says. The events share what is around their texts, which
// the tilde in form stands for.
func FuzzLikeness(f *testing.F) {
	const chunk = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"~"},"finish_reason":null}]}` + "\n\n"
	f.Add(chunk, "a", "b", "c", "data: [DONE]\n\n", 20)
	f.Add(chunk, "a", "error", "role", "", 0)
	f.Add(chunk, "a", "", `"`, "data: {}\r\r", 7)
	f.Add(chunk, `a\`, `\"`, `"},"finish_reason":"stop","x":{"`, chunk, 1)
	f.Add(chunk, "a", "b\nc", "d\n\ne", "\n\n", 90)
	f.Add(`data: {"Error":{"code":400},"content":"~"}`+"\n\n", "a", "error", "b", "", 3)
	f.Add(`data: {"error":null,"content":"~"}`+"\n\n", "a\x01", "b", "c", "", 3)
	f.Add(`data: {"choices":[{"text":"~","finish_reason":"stop"}]}`+"\n\n", "a", "b", "c", `data: {"finish_reason":"length"}`+"\n\n", 3)
	f.Add(`data: {"role":null,"content":"~"}`+"\r\n\r\n", "a", "b", "", "", 3)
	f.Add(`data: {"content":"~","text":"~"}`+"\n\n", "a", "finish_reason", "b", "", 3)
	f.Add(`data: {"content":"~":"stop","finish_reason":"x"}`+"\n\n", "a", "finish_reason", "b", "", 3)
	f.Fuzz(func(t *testing.T, form, one, two, three, behind string, cut int) {
		var text strings.Builder
		for _, s := range []string{one, two, one, three, two, one} {
			text.WriteString(strings.ReplaceAll(form, "~", s))
		}
		text.WriteString(behind)
		text.WriteString(strings.ReplaceAll(form, "~", one))
		all := text.String()
		cut = (cut & 0x7fffffff) % (len(all) + 1)
		if cut > 0 && all[cut-1] == '\r' {
			cut = 0 // an LF behind may fall to either event: see FuzzFramer
		}
		if got, want := lookAt(all, cut), lookAtEach(all); got != want {
			t.Fatalf("%q cut at %d: %+v, want %+v", all, cut, got, want)
		}
	})
}

func TestMostEventsOfABurstAreKnownByTheirLikeness(t *testing.T) {
	for name, form := range map[string]string{
		"vLLM":        `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"~"},"logprobs":null,"finish_reason":null}]}`,
		"SGLang":      `data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":"~","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}`,
		"completions": `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"~","logprobs":null,"finish_reason":null}]}`,
	} {
		var l likeness
		event := func(text string) []byte { return []byte(strings.Replace(form, "~", text, 1) + "\n\n") }
		l.learn(event("a"))
		for _, text := range []string{"b", " hello", "\\n", "é"} {
			if ev := event(text); l.next(append(ev, "data:"...)) != len(ev) {
				t.Errorf("%s: %q is not known", name, text)
			}
		}
		for _, text := range []string{"", "error", "a\nb", "a\rb", `\"`} {
			if n := l.next(event(text)); n != 0 {
				t.Errorf("%s: %q is taken for %d bytes", name, text, n)
			}
		}
	}
	var l likeness
	for range 2 * mostVain {
		l.learn([]byte("data: {\"content\":\"a\"}\n\n"))
	}
	if l.head != 0 {
		t.Error("a stream whose events differ is still looked at")
	}
}

func BenchmarkLook(b *testing.B) {
	text := strings.Repeat(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"finish_reason":null,"delta":{"content":"tok "}}]}`+"\n\n", 100)
	x := &exchange{cfg: &Config{}, committed: true, firstAt: time.Now()}
	st := &stream{x: x, dial: chat, buf: []byte(text)}
	b.ReportAllocs()
	for b.Loop() {
		st.whole, st.frames = 0, framer{}
		if end, err := st.look(); end || err != nil || st.whole != len(text) {
			b.Fatal(end, errors.Join(err), st.whole)
		}
	}
}
