package audit

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestUsageIsFoundAtTheEndOfAResponse(t *testing.T) {
	cases := []struct {
		name           string
		body           string
		prompt, cached int
		found          bool
	}{
		{"nothing", "", 0, -1, false},
		{
			"vLLM, not streamed",
			`{"id":"c","choices":[],"usage":{"prompt_tokens":120,"total_tokens":130,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":96}},"prompt_logprobs":null}`,
			120, 96, true,
		},
		{
			"streamed, in the event before [DONE]",
			"data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\": {\"prompt_tokens\" : 7, \"completion_tokens\":1,\"prompt_tokens_details\":null}}\n\ndata: [DONE]\n\n",
			7, -1, true,
		},
		{
			"usage in every event: the last counts",
			"data: {\"usage\":{\"prompt_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\ndata: {\"usage\":{\"prompt_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n",
			8, 2, true,
		},
		{
			"null after a number",
			"data: {\"usage\":{\"prompt_tokens\":7}}\n\ndata: {\"usage\":null}\n\n",
			7, -1, true,
		},
		{"Anthropic", `{"type":"message","usage":{"input_tokens":10,"cache_read_input_tokens":30,"output_tokens":2}}`, 40, 30, true},
		{"the word inside generated text", `{"choices":[{"text":"\"usage\":{\"prompt_tokens\":5}"}]}`, 0, -1, false},
		{"a number that is none", `{"usage":{"prompt_tokens":"7"}}`, 0, -1, false},
		{"a number too large to be one", `{"usage":{"prompt_tokens":99999999999999999999}}`, 0, -1, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prompt, cached, found := findUsage([]byte(c.body))
			if prompt != c.prompt || cached != c.cached || found != c.found {
				t.Errorf("got %d %d %t, want %d %d %t", prompt, cached, found, c.prompt, c.cached, c.found)
			}
		})
	}
}

func TestTailKeepsTheLastBytesHoweverTheyAreCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all strings.Builder
		var tl Tail
		for range rng.IntN(40) {
			chunk := strings.Repeat(string(rune('a'+rng.IntN(26))), rng.IntN(3*tailSize)/(1+rng.IntN(50)))
			all.WriteString(chunk)
			tl.Add([]byte(chunk))
		}
		got := string(tl.buf[:tl.n])
		if !strings.HasSuffix(all.String(), got) {
			t.Fatal("the tail is not the end of the body")
		}
		if len(got) < min(all.Len(), tailSize) {
			t.Fatalf("the tail has %d bytes of %d", len(got), all.Len())
		}
	}
}

func TestAReportIsCompletedByTheUsageOfItsResponse(t *testing.T) {
	var tl Tail
	tl.Add([]byte(`{"usage":{"prompt_tokens":120,"prompt_tokens_details":{"cached_tokens":96}}}`))
	rep := Report{Cached: -1}
	if !tl.Usage(&rep) || rep.Counted != 120 || rep.Cached != 96 || rep.Skip != Comparable {
		t.Errorf("%+v", rep)
	}
	tl.Reset()
	rep = Report{Cached: -1}
	if tl.Usage(&rep) || rep.Skip != SkipNoUsage {
		t.Errorf("without usage: %+v", rep)
	}
	rep = Report{Skip: SkipList}
	if tl.Usage(&rep) || rep.Skip != SkipList {
		t.Errorf("without usage, and not comparable before: %+v", rep)
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":120,"prompt_tokens_details":{"cached_tokens":96}}}`))
	f.Add([]byte(`"usage""usage":{"input_tokens":`))
	f.Fuzz(func(t *testing.T, b []byte) {
		prompt, cached, ok := findUsage(b)
		if prompt < 0 || cached < -1 || !ok && prompt != 0 {
			t.Errorf("findUsage = %d %d %t", prompt, cached, ok)
		}
	})
}

func BenchmarkTail(b *testing.B) {
	var tl Tail
	chunk := []byte(strings.Repeat("x", 150))
	for b.Loop() {
		tl.Add(chunk)
	}
}

func TestUsageIsLookedForAnewWhenMoreCame(t *testing.T) {
	var tail Tail
	tail.Add([]byte(`"usage":{"prompt_tokens":1,"completion_tokens":2}`))
	var r Report
	for range 2 {
		if !tail.Usage(&r) || r.Counted != 1 || r.Output != 2 {
			t.Errorf("%+v", r)
		}
	}
	tail.Add([]byte(`"usage":{"prompt_tokens":3,"completion_tokens":4}`))
	if !tail.Usage(&r) || r.Counted != 3 || r.Output != 4 {
		t.Errorf("behind another piece: %+v", r)
	}
	if tail.Reset(); tail.Usage(&r) {
		t.Error("usage in nothing")
	}
}
