package tokens

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kimiDir makes a model in Kimi's format: the single bytes and a few tokens.
func kimiDir(t *testing.T, code string) string {
	t.Helper()
	dir := t.TempDir()
	var ranks strings.Builder
	for c := range 256 {
		fmt.Fprintf(&ranks, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(c)}), c)
	}
	for i, token := range []string{"ab", "abc", "中文", " a"} {
		fmt.Fprintf(&ranks, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), 256+i)
	}
	for name, text := range map[string]string{
		"tiktoken.model":        ranks.String(),
		"tokenizer_config.json": `{"bos_token":"[BOS]","added_tokens_decoder":{"260":{"content":"[BOS]"}}}`,
		"tokenization_kimi.py":  code,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func kimiCode() string {
	return strings.Join(kimiPatterns, "\n") + "\nnum_reserved_special_tokens = 256\nTIKTOKEN_MAX_ENCODE_CHARS = 400_000\n" +
		"MAX_NO_WHITESPACES_CHARS = 25_000\nself.model.encode(s, allowed_special=\"all\")\n"
}

// TestKimi has the ids that PyPI tiktoken 0.12 gives.
func TestKimi(t *testing.T) {
	tok, err := Load(kimiDir(t, kimiCode()))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]uint32{
		"abc ab":   {257, ' ', 256},
		"中文":       {258}, // a whole word is taken though nothing merges to it
		"[BOS]中文a": {260, 258, 'a'},
		"a<|reserved_token_261|>": {
			'a', 261,
		},
		"a a/\n": {'a', 259, '/', '\n'},
	} {
		if got := mustEncode(t, tok, text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if tok.VocabSize() != 260+258 || tok.BOS() != "[BOS]" {
		t.Errorf("%d ids, BOS %q", tok.VocabSize(), tok.BOS())
	}
}

func TestKimiIsRefusedWhenItsCodeDiffers(t *testing.T) {
	for _, code := range []string{"", strings.Replace(kimiCode(), `\p{N}{1,3}`, `\p{N}`, 1), strings.Replace(kimiCode(), "25_000", "30_000", 1)} {
		if _, err := Load(kimiDir(t, code)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("got %v", err)
		}
	}
}

// TestKimiCutsLongText has the places where Kimi's Python code cuts.
func TestKimiCutsLongText(t *testing.T) {
	tok := &Tokenizer{tables: sharedTables(), chunked: true}
	tests := []struct {
		name string
		text string
		want []int
	}{
		{"short", strings.Repeat("a", 25_000), []int{25_000}},
		{"one run", strings.Repeat("a", 60_000), []int{25_000, 25_000, 10_000}},
		{"characters, not bytes", strings.Repeat("中", 25_001), []int{75_000, 3}},
		{"runs of both kinds", strings.Repeat("a", 20_000) + strings.Repeat(" ", 26_000), []int{45_000, 1000}},
		{"many characters", strings.Repeat("a ", 200_001), []int{400_000, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []int
			var all []byte
			tok.chunks([]byte(tt.text), func(piece []byte) { got, all = append(got, len(piece)), append(all, piece...) })
			if !slices.Equal(got, tt.want) || !bytes.Equal(all, []byte(tt.text)) {
				t.Errorf("pieces of %v, want %v", got, tt.want)
			}
		})
	}
}
