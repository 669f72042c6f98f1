package simengine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pointsman/prompt/tokens"
	"pointsman/wire"
)

// TestAModelsFilesReplaceTheOwnTokenizer checks that prompts, /tokenize and the
// canary are made by the files of a model, special tokens and tools included.
func TestAModelsFilesReplaceTheOwnTokenizer(t *testing.T) {
	dir := t.TempDir()
	raw, err := os.ReadFile("../../prompt/tokens/testdata/golden/llama2/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	const chat = `{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}`
	for name, text := range map[string]string{
		"tokenizer.json": string(raw), "chat_template.jinja": chat, "tokenizer_config.json": `{"bos_token":"<s>"}`,
	} {
		if err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := tokens.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := func(text string, specials tokens.Specials) []uint32 {
		ids, err := tok.Encode(nil, []byte(text), specials)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	cfg := fast()
	cfg.Files = dir
	e := start(t, cfg)
	if got := e.Worker().Canary; !slices.Equal(got, want(wire.CanaryText, tokens.WithoutSpecials)) {
		t.Errorf("canary %v", got)
	}
	const user = `"messages":[{"role":"user","content":"hello there"}]`
	tests := []struct {
		name, path, body string
		ids              []uint32
	}{
		{"a prompt", "/v1/completions", `"prompt":"hello there"`, want("hello there", tokens.WithSpecials)},
		{"a chat", "/v1/chat/completions", user, want("<s>[user]hello there", tokens.WithoutSpecials)},
		{"a chat with tools", "/v1/chat/completions", user + `,"tools":[{"type":"function","function":{"name":"look"}}]`, want("<s>look[user]hello there", tokens.WithoutSpecials)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked := decode[struct{ Tokens []uint32 }](t, post(t, e.URL()+"/tokenize", `{"model":"sim-model",`+tt.body+`}`))
			if !slices.Equal(asked.Tokens, tt.ids) {
				t.Errorf("/tokenize: %v, want %v", asked.Tokens, tt.ids)
			}
			got := decode[struct{ Usage usage }](t, post(t, e.URL()+tt.path, `{"model":"sim-model","max_tokens":2,`+tt.body+`}`))
			if got.Usage.PromptTokens != len(tt.ids) {
				t.Errorf("%d prompt tokens, want %d", got.Usage.PromptTokens, len(tt.ids))
			}
		})
	}
}

func TestFilesThatCannotBeReadAreAFaultAtTheStart(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Files = t.TempDir()
	if e, err := Start(t.Context(), cfg); err == nil {
		e.Kill()
		t.Error("started")
	}
}
