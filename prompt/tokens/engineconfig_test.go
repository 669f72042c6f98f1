package tokens

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestTheEngineConfigDecidesOnSpecials has the ids that transformers 4.57 gives.
func TestTheEngineConfigDecidesOnSpecials(t *testing.T) {
	tests := []struct {
		name, config string
		want         []uint32
	}{
		{"no config", "", []uint32{27, 0, 27}},
		{"a class that leaves the file's template", `{"tokenizer_class":"PreTrainedTokenizerFast","add_bos_token":false,"bos_token":"<end>"}`, []uint32{27, 0, 27}},
		{"Llama adds BOS unless told not to", `{"tokenizer_class":"LlamaTokenizerFast","bos_token":"<end>"}`, []uint32{27, 0}},
		{"Llama told not to", `{"tokenizer_class":"LlamaTokenizer","bos_token":"<end>","add_bos_token":false}`, []uint32{0}},
		{"Gemma with EOS", `{"tokenizer_class":"GemmaTokenizer","bos_token":"<end>","eos_token":"<end>","add_eos_token":true}`, []uint32{27, 0, 27}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tinyFile()
			f["post_processor"] = map[string]any{"type": "BertProcessing", "sep": []any{"<end>", 27}, "cls": []any{"<end>", 27}}
			tok, err := loadWithConfig(t, f, tt.config)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tok.Encode(nil, []byte("a"), WithSpecials)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v (%v)", got, tt.want, err)
			}
			if got, _ = tok.Encode(nil, []byte("a"), WithoutSpecials); !slices.Equal(got, []uint32{0}) {
				t.Errorf("without specials: %v", got)
			}
		})
	}
}

func TestTheEngineConfigDecidesOnThePrefixSpace(t *testing.T) {
	f := tinyFile()
	f["model"].(map[string]any)["vocab"].(map[string]any)["Ġ"] = 27
	f["added_tokens"] = nil
	f["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}
	for config, want := range map[string][]uint32{
		"":                            {27, 0},
		`{}`:                          {0},
		`{"add_prefix_space":true}`:   {27, 0},
		`{"add_prefix_space":false}`:  {0},
		`{"add_prefix_space":null}`:   {0},
		`{"tokenizer_class":"GPT2T"}`: {0},
	} {
		tok, err := loadWithConfig(t, f, config)
		if err != nil {
			t.Fatal(err)
		}
		if got := mustEncode(t, tok, "a"); !slices.Equal(got, want) {
			t.Errorf("config %q: %v, want %v", config, got, want)
		}
	}
}

func TestConfigsThatChangeTheTokensAreRefused(t *testing.T) {
	for _, config := range []string{
		`{"pad_token":"[PAD]"}`,
		`{"additional_special_tokens":["<end>",{"content":"<x>"}]}`,
		`{"added_tokens_decoder":{"28":{"content":"<x>","special":true}}}`,
		`{"tokenizer_class":"LlamaTokenizer","bos_token":"<end>","add_prefix_space":true}`,
		`{"tokenizer_class":"LlamaTokenizer"}`,
	} {
		_, err := loadWithConfig(t, tinyFile(), config)
		var u *UnsupportedError
		if !errors.As(err, &u) || u.Feature != "tokenizer_config" {
			t.Errorf("%s: %v", config, err)
		}
	}
	if _, err := loadWithConfig(t, tinyFile(), `{"bos_token":7}`); !errors.Is(err, ErrMalformed) {
		t.Errorf("a token of wrong type: %v", err)
	}
}

func loadWithConfig(t *testing.T, file map[string]any, config string) (*Tokenizer, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), marshal(t, file), 0o600); err != nil {
		t.Fatal(err)
	}
	if config != "" {
		if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(dir)
}
