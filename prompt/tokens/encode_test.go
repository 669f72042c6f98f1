package tokens

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func mustEncode(tb testing.TB, tok *Tokenizer, text string) []uint32 {
	tb.Helper()
	ids, err := tok.Encode(nil, []byte(text), WithoutSpecials)
	if err != nil {
		tb.Fatal(err)
	}
	return ids
}

func TestInvalidTextIsAnError(t *testing.T) {
	tok := loadGolden(t, "qwen2")
	prefixes := NewPrefixCache(1 << 20)
	for _, text := range []string{"\xff", "a\xed\xa0\x80", "\xe4\xb8", strings.Repeat("a b ", 999) + "\xc0\x80"} {
		dst := []uint32{7}
		got, err := tok.Encode(dst, []byte(text), WithSpecials)
		if !errors.Is(err, ErrInvalidText) || !slices.Equal(got, dst) {
			t.Errorf("Encode(%.20q) = %v, %v", text, got, err)
		}
		if _, err := tok.Count([]byte(text), WithSpecials); !errors.Is(err, ErrInvalidText) {
			t.Errorf("Count(%.20q): %v", text, err)
		}
		if _, err := prefixes.Encode(tok, nil, []byte(text), WithSpecials); !errors.Is(err, ErrInvalidText) {
			t.Errorf("PrefixCache.Encode(%.20q): %v", text, err)
		}
	}
}

func TestEncodeAppends(t *testing.T) {
	tok := loadGolden(t, "llama2")
	got, err := tok.Encode([]uint32{1, 2, 3}, []byte("the fox"), WithSpecials)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := tok.Encode(nil, []byte("the fox"), WithSpecials)
	if err != nil || !slices.Equal(got, append([]uint32{1, 2, 3}, alone...)) {
		t.Errorf("got %v, want 1 2 3 and %v (%v)", got, alone, err)
	}
}

// TestNothingIsAllocated holds for text that no normalizer has to rewrite.
func TestNothingIsAllocated(t *testing.T) {
	var texts []string
	readJSON(t, &texts, goldenDir, "texts.json")
	text := []byte(strings.Join(texts, " "))
	for _, name := range []string{"cl100k", "o200k", "deepseek", "gpt2", "qwen2", "llama2"} {
		tok := loadGolden(t, name)
		prefixes := NewPrefixCache(1 << 20)
		var ids []uint32
		both := func() {
			ids, _ = tok.Encode(ids[:0], text, WithSpecials)
			ids, _ = prefixes.Encode(tok, ids[:0], text, WithSpecials)
		}
		both()
		if n := testing.AllocsPerRun(10, both); n > 0 && !raceEnabled {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestManyGoroutinesShareATokenizer(t *testing.T) {
	tok := loadGolden(t, "qwen2")
	prefixes := NewPrefixCache(1 << 18)
	prefixes.step = 16
	var texts []string
	readJSON(t, &texts, goldenDir, "texts.json")
	want := make([][]uint32, len(texts))
	for i, text := range texts {
		want[i] = mustEncode(t, tok, text)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range texts {
				k := (i*7 + g*31) % len(texts)
				text := []byte(texts[k])
				if got, err := tok.Encode(nil, text, WithoutSpecials); err != nil || !slices.Equal(got, want[k]) {
					t.Errorf("%.60q: %v", text, err)
				}
				if got, err := prefixes.Encode(tok, nil, text, WithoutSpecials); err != nil || !slices.Equal(got, want[k]) {
					t.Errorf("through the prefix cache: %.60q: %v", text, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestLongWordsByWindows compares the windows of a long word with one heap.
func TestLongWordsByWindows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"cl100k", "llama2"} {
		tok := loadGolden(t, name)
		e := tok.borrow()
		for range 60 {
			word := longWord(rng)
			got := e.windows(nil, word)
			want := e.merge(tok.model, nil, word)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: a word of %d bytes starting %.60q differs", name, len(word), word)
			}
		}
	}
}

func TestSideBySideSeesAMergeAcross(t *testing.T) {
	tok, err := LoadBytes(marshal(t, tinyFile()))
	if err != nil {
		t.Fatal(err)
	}
	e := tok.borrow()
	a, b := mustEncode(t, tok, "a")[0], mustEncode(t, tok, "b")[0]
	for range 2 {
		if e.sideBySide(a, b) || !e.sideBySide(b, a) || !e.sideBySide(a, a) {
			t.Error("a and b merge, no other two do")
		}
	}
}

// longWord repeats short units with a few changes, so that windows meet at every phase.
func longWord(rng *rand.Rand) []byte {
	units := []string{"a", "ab", "the", "=", " ", "aaab", "ing", "中", "é", "preprefix", "\n", "1"}
	var word []byte
	n := 2*windowBytes + rng.IntN(3*windowBytes)
	for len(word) < n {
		unit := units[rng.IntN(len(units))]
		word = append(word, strings.Repeat(unit, 1+rng.IntN(1+rng.IntN(1500)))...)
	}
	return word
}

// TestHostileTextIsLinear encodes megabytes of one thing. A quadratic step would
// take hours here, so the bound is far from what a slow machine needs.
func TestHostileTextIsLinear(t *testing.T) {
	size := 512 << 10
	units := []string{"a", " ", "=", "\n", "\u0301", "\u0323\u0301", "中", "<|", "<|im_start", "ab", " \n", "'", "1", "\u1161", "\u200d", "ªA", "\ufffd", "▁", "<mask>", " a"}
	start := time.Now()
	for _, name := range []string{"qwen2", "o200k", "deepseek", "gemma", "gpt2_prefix_space", "metaspace_always"} {
		tok := loadGolden(t, name)
		for _, unit := range units {
			text := bytes.Repeat([]byte(unit), size/8/len(unit))
			if !raceEnabled {
				text = bytes.Repeat([]byte(unit), size/len(unit))
			}
			n, err := tok.Count(text, WithoutSpecials)
			if err != nil || n == 0 {
				t.Errorf("%s: %q: %d tokens, %v", name, unit, n, err)
			}
		}
	}
	if took := time.Since(start); took > 2*time.Minute {
		t.Errorf("took %v", took)
	}
}

// TestScratchIsGivenBack bounds what one huge prompt leaves behind.
func TestScratchIsGivenBack(t *testing.T) {
	tok := loadGolden(t, "gemma")
	mustEncode(t, tok, strings.Repeat("a ", 3<<20))
	for _, e := range tok.free {
		if n := e.scratch(); n > keepScratch {
			t.Errorf("%d bytes of scratch space kept", n)
		}
	}
}

func TestTheTextOfTokensIsTheTextTheyWereMadeOf(t *testing.T) {
	for model, tests := range map[string][]string{
		"qwen2":  {"the quick fox, 123 中文 \U0001f600", "<|im_start|>user\nhi<|im_end|>"},
		"llama2": {"\u2581the\u2581fox\x01"},
	} {
		tok := loadGolden(t, model)
		for _, want := range tests {
			var got []byte
			for _, id := range mustEncode(t, tok, strings.TrimPrefix(strings.ReplaceAll(want, "\u2581", " "), " ")) {
				got = tok.AppendText(got, id)
			}
			if string(got) != want {
				t.Errorf("%s: %q, want %q", model, got, want)
			}
		}
		if got := tok.AppendText(nil, 1<<30); len(got) > 0 {
			t.Errorf("%s: an id out of range is %q", model, got)
		}
	}
}
