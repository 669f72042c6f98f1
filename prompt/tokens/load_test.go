package tokens

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tinyFile is a tokenizer.json that loads, as a tree to change.
func tinyFile() map[string]any {
	vocab := map[string]any{}
	alphabet := "abcdefghijklmnopqrstuvwxyz"
	for _, c := range alphabet {
		vocab[string(c)] = len(vocab)
	}
	vocab["ab"] = len(vocab)
	return map[string]any{
		"version":       "1.0",
		"added_tokens":  []any{map[string]any{"id": 27, "content": "<end>", "special": true, "normalized": false}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"model": map[string]any{
			"type": "BPE", "vocab": vocab, "merges": []any{"a b"},
		},
	}
}

func marshal(tb testing.TB, v any) []byte {
	tb.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// TestWhatIsRefused names each feature that is not exact here.
func TestWhatIsRefused(t *testing.T) {
	model := func(f map[string]any) map[string]any { return f["model"].(map[string]any) }
	tests := []struct {
		name    string
		change  func(f map[string]any)
		feature string
	}{
		{"a unigram model", func(f map[string]any) { f["model"] = map[string]any{"type": "Unigram", "vocab": []any{}} }, "model"},
		{"a word piece model", func(f map[string]any) { model(f)["type"] = "WordPiece" }, "model"},
		{"dropout", func(f map[string]any) { model(f)["dropout"] = 0.1 }, "dropout"},
		{"a subword prefix", func(f map[string]any) { model(f)["continuing_subword_prefix"] = "##" }, "continuing_subword_prefix"},
		{"a word suffix", func(f map[string]any) { model(f)["end_of_word_suffix"] = "</w>" }, "end_of_word_suffix"},
		{"an unknown token outside the vocabulary", func(f map[string]any) { model(f)["unk_token"] = "<unk>" }, "unk_token"},
		{"an unknown token that merges", func(f map[string]any) { model(f)["unk_token"] = "ab" }, "unk_token"},
		{"byte fallback of bytes", func(f map[string]any) { model(f)["byte_fallback"] = true }, "byte_fallback"},
		{"byte fallback without tokens", func(f map[string]any) { model(f)["byte_fallback"] = true; f["pre_tokenizer"] = nil }, "byte_fallback"},
		{"truncation", func(f map[string]any) { f["truncation"] = map[string]any{"max_length": 8} }, "truncation"},
		{"padding to a length", func(f map[string]any) { f["padding"] = map[string]any{"strategy": map[string]any{"Fixed": 8}} }, "padding"},
		{"an unknown normalizer", func(f map[string]any) { f["normalizer"] = map[string]any{"type": "Precompiled"} }, "normalizer"},
		{"a normalizer with a pattern", func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{"Regex": " +"}, "content": " "}
		}, "normalizer"},
		{"an unknown pre-tokenizer", func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "Digits"} }, "pre_tokenizer"},
		{"an unknown pattern", func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `\w+`}, "behavior": "Isolated", "invert": false},
				map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
			}}
		}, "pre_tokenizer"},
		{"a known pattern used to remove", func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Split", "pattern": map[string]any{"Regex": patternQwen2}, "behavior": "Removed", "invert": false},
				map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
			}}
		}, "pre_tokenizer"},
		{"an unknown post-processor", func(f map[string]any) { f["post_processor"] = map[string]any{"type": "Other"} }, "post_processor"},
		{"a template without text", func(f map[string]any) {
			f["post_processor"] = map[string]any{"type": "TemplateProcessing", "single": []any{}}
		}, "post_processor"},
		{"an added token with another id than the reference's", func(f map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 99, "content": "<end>"}}
		}, "added_tokens"},
		{"an added token twice", func(f map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 27, "content": "<e>"}, map[string]any{"id": 28, "content": "<e>"}}
		}, "added_tokens"},
		{"one id for two tokens", func(f map[string]any) { model(f)["vocab"].(map[string]any)["zz"] = 0 }, "vocab"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tinyFile()
			tt.change(f)
			_, err := LoadBytes(marshal(t, f))
			var u *UnsupportedError
			if !errors.As(err, &u) || !errors.Is(err, ErrUnsupported) || u.Feature != tt.feature {
				t.Errorf("got %v, want feature %q", err, tt.feature)
			}
		})
	}
	if _, err := LoadBytes(marshal(t, tinyFile())); err != nil {
		t.Errorf("the file they are made from: %v", err)
	}
}

// TestMalformedFiles wants errors, not panics or guesses.
func TestMalformedFiles(t *testing.T) {
	whole := marshal(t, tinyFile())
	for n := range whole {
		if _, err := LoadBytes(whole[:n]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
	tests := map[string]string{
		"no model":              `{"model":null}`,
		"model of wrong type":   `{"model":[]}`,
		"not UTF-8":             "{\"a\":\"\xff\"}",
		"key twice":             `{"model":null,"model":null}`,
		"text after the object": `{} {}`,
		"deep nesting":          `{"a":` + strings.Repeat("[", 1000000),
		"id of wrong type":      `{"model":{"type":"BPE","vocab":{"a":"b"},"merges":[]}}`,
		"id too large":          `{"model":{"type":"BPE","vocab":{"a":99999999999999999999},"merges":[]}}`,
		"merge of strangers":    `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}`,
		"merge of three":        `{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a","a"]]}}`,
		"merge of one":          `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}}`,
		"lone surrogate":        `{"model":{"type":"BPE","vocab":{"\ud800":0},"merges":[]}}`,
		"template of strangers": `{"model":{"type":"BPE","vocab":{},"merges":[]},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]}}`,
	}
	for name, raw := range tests {
		if _, err := LoadBytes([]byte(raw)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadReadsNamesFromTheConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err == nil {
		t.Error("an empty directory loads")
	}
	write("tokenizer.json", string(marshal(t, tinyFile())))
	tok, err := Load(dir)
	if err != nil || tok.BOS() != "" {
		t.Fatalf("BOS %q, %v", tok.BOS(), err)
	}
	write("tokenizer_config.json", `{"bos_token":{"content":"<end>","lstrip":false},"eos_token":"<end>","pad_token":null}`)
	for _, path := range []string{dir, filepath.Join(dir, "tokenizer.json")} {
		tok, err = Load(path)
		if err != nil || tok.BOS() != "<end>" || tok.EOS() != "<end>" {
			t.Errorf("%s: BOS %q, EOS %q, %v", path, tok.BOS(), tok.EOS(), err)
		}
	}
	if len(tok.Digest()) != 64 || tok.VocabSize() != 28 || tok.Memory() < cacheMemory || len(tok.Added()) != 1 {
		t.Errorf("digest %q, %d ids, %d bytes, %d added", tok.Digest(), tok.VocabSize(), tok.Memory(), len(tok.Added()))
	}
	write("tokenizer_config.json", `{`)
	if _, err := Load(dir); !errors.Is(err, ErrMalformed) {
		t.Errorf("a broken config: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
}

func TestEqualFilesHaveEqualDigests(t *testing.T) {
	f := tinyFile()
	a, errA := LoadBytes(marshal(t, f))
	b, errB := LoadBytes(marshal(t, maps.Clone(f)))
	f["version"] = "2.0"
	c, errC := LoadBytes(marshal(t, f))
	if err := errors.Join(errA, errB, errC); err != nil {
		t.Fatal(err)
	}
	if a.Digest() != b.Digest() || a.Digest() == c.Digest() {
		t.Errorf("digests %s %s %s", a.Digest(), b.Digest(), c.Digest())
	}
}
