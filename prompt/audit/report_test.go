package audit

import (
	"context"
	"errors"
	"testing"
	"time"

	"pointsman/prompt"
)

// failing is a tokenizer without an answer.
type failing struct{}

func (failing) Tokenize(_ context.Context, _ *prompt.Request, dst []uint32) ([]uint32, error) {
	return dst, errors.New("no")
}

func TestRequestsAreToldApart(t *testing.T) {
	const user = `"messages":[{"role":"user","content":"x"}]`
	tests := []struct {
		name  string
		kind  prompt.Kind
		body  string
		tok   prompt.Tokenizer
		sizes []int
		form  Form
		skip  Skip
	}{
		{"a chat", prompt.Chat, `{"model":"m",` + user + `}`, fixed{1}, []int{16}, FormChat, Comparable},
		{"one with tools", prompt.Chat, `{"model":"m",` + user + `,"tools":[{"type":"function"}]}`, fixed{1}, []int{16}, FormTools, Comparable},
		{"a prompt", prompt.Completions, `{"model":"m","prompt":"x"}`, fixed{1}, []int{16}, FormCompletions, Comparable},
		{"token ids", prompt.Completions, `{"model":"m","prompt":[1,2]}`, nil, []int{16}, FormIDs, Comparable},
		{"an adapter by its path", prompt.Chat, `{"model":"m","lora_path":"a",` + user + `}`, fixed{1}, []int{16}, FormLoRA, Comparable},
		{"an adapter by its name", prompt.Completions, `{"model":"adapter","prompt":"x"}`, fixed{1}, []int{16}, FormLoRA, Comparable},
		{"an image", prompt.Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`, fixed{1}, []int{16}, FormMultimodal, SkipMultimodal},
		{"Anthropic's form", prompt.Messages, `{"model":"m",` + user + `}`, failing{}, []int{16}, FormMessages, SkipApprox},
		{"several prompts", prompt.Completions, `{"model":"m","prompt":["x","y"]}`, fixed{1}, []int{16}, FormCompletions, SkipList},
		{"several lists of ids", prompt.Completions, `{"model":"m","prompt":[[1],[2]]}`, nil, []int{16}, FormIDs, SkipList},
		{"several choices", prompt.Chat, `{"model":"m","n":2,` + user + `}`, fixed{1}, []int{16}, FormChat, SkipChoices},
		{"the best of several", prompt.Completions, `{"model":"m","best_of":2,"prompt":"x"}`, fixed{1}, []int{16}, FormCompletions, SkipChoices},
		{"a prompt to be cut", prompt.Completions, `{"model":"m","truncate_prompt_tokens":5,"prompt":[1,2]}`, nil, []int{16}, FormIDs, SkipTruncated},
		{"no tokenizer", prompt.Chat, `{"model":"m",` + user + `}`, nil, []int{16}, FormChat, SkipApprox},
		{"a tokenizer that failed", prompt.Chat, `{"model":"m",` + user + `}`, failing{}, []int{16}, FormChat, SkipApprox},
		{"no block size known", prompt.Completions, `{"model":"m","prompt":[1,2]}`, nil, nil, FormIDs, SkipApprox},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tok prompt.Tokenizer
			if tt.tok != nil {
				tok = NewChain(newWorld(t).a, Link{prompt.SourceFiles, tt.tok})
			}
			p := prompt.NewPreparer(prompt.Config{}, tok)
			p.SetNames(func(name string) (string, string) {
				if name == "adapter" {
					return "m", name
				}
				return name, ""
			})
			var r prompt.Request
			var out prompt.Prepared
			if err := r.Scan(tt.kind, nil, []byte(tt.body)); err != nil {
				t.Fatal(err)
			}
			p.Prepare(t.Context(), &r, tt.sizes, &out)
			rep := Of(&r, &out, time.Unix(5, 0))
			if rep.Form != tt.form || rep.Skip != tt.skip || rep.Model != "m" || rep.Cached != -1 || rep.Began != time.Unix(5, 0) || rep.Tokens != out.Tokens {
				t.Errorf("report %+v, want form %q, skip %q", rep, tt.form, tt.skip)
			}
		})
	}
}
