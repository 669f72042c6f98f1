package tokens

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const goldenDir = "testdata/golden"

// goldenIDs are a text's ids without and with special tokens; null is the same
// again, and of many only the number and a hash are recorded.
type goldenIDs [2]any

func readJSON(tb testing.TB, into any, path ...string) {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		tb.Fatal(err)
	}
}

func goldenNames(tb testing.TB) []string {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join(goldenDir, "*", "ids.json"))
	if err != nil || len(paths) < 15 {
		tb.Fatalf("%d golden tokenizers, %v", len(paths), err)
	}
	for i := range paths {
		paths[i] = filepath.Base(filepath.Dir(paths[i]))
	}
	return paths
}

func loadGolden(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	tok, err := Load(filepath.Join(goldenDir, name))
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}

// brief writes ids as tools/gen_token_golden.py does.
func brief(ids []uint32) string {
	if len(ids) <= 100 {
		return fmt.Sprint(ids)
	}
	raw := make([]byte, 4*len(ids))
	for i, id := range ids {
		binary.LittleEndian.PutUint32(raw[4*i:], id)
	}
	sum := sha256.Sum256(raw)
	return fmt.Sprint(len(ids), " ", hex.EncodeToString(sum[:16]))
}

// TestGolden compares with ids that PyPI tokenizers gave for small tokenizers, one
// per pre-tokenizer, normalizer and option: cold, warm, and as a growing prompt
// that is cut at every possible place.
func TestGolden(t *testing.T) {
	t.Parallel()
	var texts []string
	readJSON(t, &texts, goldenDir, "texts.json")
	for _, name := range goldenNames(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []goldenIDs
			readJSON(t, &want, goldenDir, name, "ids.json")
			tok := loadGolden(t, name)
			prefixes := NewPrefixCache(1 << 20)
			prefixes.step = 1
			for i, text := range texts {
				for _, specials := range []Specials{WithoutSpecials, WithSpecials} {
					recorded := want[i][0]
					if specials && want[i][1] != nil {
						recorded = want[i][1]
					}
					checkGolden(t, tok, prefixes, text, specials, fmt.Sprint(recorded))
				}
			}
		})
	}
}

func checkGolden(t *testing.T, tok *Tokenizer, prefixes *PrefixCache, text string, specials Specials, want string) {
	t.Helper()
	ways := map[string]func() ([]uint32, error){
		"cold": func() ([]uint32, error) { tok.DropWordCaches(); return tok.Encode(nil, []byte(text), specials) },
		"warm": func() ([]uint32, error) { return tok.Encode(nil, []byte(text), specials) },
		"grown": func() ([]uint32, error) {
			for cut := range text {
				if cut%(97+len(text)/8) == 0 {
					if _, err := prefixes.Encode(tok, nil, []byte(text[:cut]), specials); err != nil {
						return nil, err
					}
				}
			}
			return prefixes.Encode(tok, nil, []byte(text), specials)
		},
	}
	for _, how := range []string{"cold", "warm", "grown"} {
		got, err := ways[how]()
		if err != nil {
			t.Fatalf("%s %.80q: %v", how, text, err)
		}
		if b := brief(got); b != want {
			t.Errorf("%s, specials %v, %.80q:\n got %.400s\nwant %.400s", how, specials, text, b, want)
		}
		if n, err := tok.Count([]byte(text), specials); n != len(got) || err != nil {
			t.Errorf("Count(%.80q) = %d, %v, want %d", text, n, err, len(got))
		}
	}
}

// TestGoldenCoversTheRules fails when no golden text is cut by a rule, so that a
// change that switches the rules off is seen.
func TestGoldenCoversTheRules(t *testing.T) {
	var texts []string
	readJSON(t, &texts, goldenDir, "texts.json")
	for _, name := range []string{"qwen2", "cl100k", "o200k", "deepseek", "llama2", "gemma", "metaspace_first", "gpt2"} {
		tok := loadGolden(t, name)
		cut := slices.ContainsFunc(texts, func(s string) bool { return len(s) > 1 && tok.nextCut([]byte(s), 1) > 0 })
		if !cut {
			t.Errorf("%s: no text has a place to cut", name)
		}
	}
}
