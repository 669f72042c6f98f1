package tokens

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// partsFile is what the reference's pre-tokenizers and normalizers alone make of
// texts, so that a fault is seen where it is and not only in the ids.
type partsFile struct {
	Texts []string              `json:"texts"`
	Words map[string][][]string `json:"words"`
	Forms map[string][]string   `json:"forms"`
}

func cutWords(split splitter, text string) []string {
	var words []string
	b := []byte(text)
	for i, lim := 0, 0; i < len(b); {
		var end int
		end, lim = split(b, i, lim)
		if end <= i {
			return append(words, "no progress at "+text[i:])
		}
		words = append(words, text[i:end])
		i = end
	}
	return words
}

func TestSplittersCutAsTheReferenceDoes(t *testing.T) {
	var f partsFile
	readJSON(t, &f, "testdata", "parts.json")
	known := map[string][]string{
		"patternGPT2": {patternGPT2}, "patternQwen2": {patternQwen2}, "patternCL100K": {patternCL100K}, "patternQwen35": {patternQwen35},
		"patternO200K": {patternO200K}, "patternTekken": {patternTekken},
		"deepSeek": {patternDeepSeekNumber, patternDeepSeekCJK, patternDeepSeekWord},
	}
	if len(f.Words) != len(known) {
		t.Fatalf("%d patterns recorded, %d known", len(f.Words), len(known))
	}
	for name, patterns := range known {
		split := splitterFor(sharedTables(), patterns)
		for i, text := range f.Texts {
			if got := cutWords(split, text); !slices.Equal(got, f.Words[name][i]) {
				t.Errorf("%s: %q is cut into %q, want %q", name, text, got, f.Words[name][i])
			}
		}
	}
}

// TestSplittersLookOnlyToTheRight cuts from every word boundary on.
func TestSplittersLookOnlyToTheRight(t *testing.T) {
	var f partsFile
	readJSON(t, &f, "testdata", "parts.json")
	for name, patterns := range map[string][]string{
		"o200k": {patternO200K}, "cl100k": {patternCL100K}, "gpt2": {patternGPT2},
		"deepSeek": {patternDeepSeekNumber, patternDeepSeekCJK, patternDeepSeekWord},
	} {
		split := splitterFor(sharedTables(), patterns)
		for _, text := range f.Texts {
			words := cutWords(split, text)
			for k, at := 0, 0; k < len(words); k++ {
				if got := cutWords(split, text[at:]); !slices.Equal(got, words[k:]) {
					t.Errorf("%s: %q from %d on: %q, want %q", name, text, at, got, words[k:])
				}
				at += len(words[k])
			}
		}
	}
}

func TestUnknownPatternsHaveNoSplitter(t *testing.T) {
	for _, patterns := range [][]string{nil, {""}, {`\w+`}, {patternQwen2 + " "}, {patternQwen2, patternGPT2}, {patternDeepSeekCJK, patternDeepSeekNumber, patternDeepSeekWord}} {
		if splitterFor(sharedTables(), patterns) != nil {
			t.Errorf("%q is taken for a known pattern", patterns)
		}
	}
}

func TestNormalFormsAreTheReferences(t *testing.T) {
	var f partsFile
	readJSON(t, &f, "testdata", "parts.json")
	for name, want := range f.Forms {
		steps, err := readNormalizer(nil, []byte(`{"type":"`+name+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		e := &encoder{}
		changed := 0
		for i, text := range f.Texts {
			got := string(e.normalize(sharedTables(), steps, []byte(text), false))
			if got != want[i] {
				t.Errorf("%s of %+q is %+q, want %+q", name, text, got, want[i])
			}
			if again := string(e.normalize(sharedTables(), steps, []byte(got), false)); again != got {
				t.Errorf("%s of %+q is not stable: %+q", name, got, again)
			}
			if got != text {
				changed++
			}
		}
		if changed == 0 {
			t.Errorf("%s changes none of the texts", name)
		}
	}
}

// TestTheTablesAreOfUnicode16 has code points that Go's own tables do not know.
func TestTheTablesAreOfUnicode16(t *testing.T) {
	tables := sharedTables()
	for r, want := range map[rune]class{
		'a': letter | lower, 'A': letter | upper, '1': number, '\n': space | newline, 0x2ebf0: letter, 0x1c89: letter | upper,
		0x897: mark, 0x10d40: number, 0x301: mark | unNFC, 0x3002: punct, 0x4e2d: letter | han | kana, '_': punct | wordly,
	} {
		if got := tables.of(r); got&want != want {
			t.Errorf("%U has %b, want %b in it", r, got, want)
		}
	}
	if c, n := tables.at([]byte("x\u4e2d"), 1); n != 3 || c&han == 0 {
		t.Errorf("at: %b, %d", c, n)
	}
}

func TestRunesAreReadBothWays(t *testing.T) {
	text := "aé中\U0001f600\U0010ffff\u07ff\uffff"
	b := []byte(text)
	for i, r := range text {
		if r >= utf8.RuneSelf {
			if got, n := runeAt(b, i); got != r || n != utf8.RuneLen(r) || runeLen(b[i]) != n {
				t.Errorf("at %d: %U of %d bytes, want %U", i, got, n, r)
			}
		}
		if at := lastRune(b, i+utf8.RuneLen(r)); at != i {
			t.Errorf("the rune that ends after %U starts at %d, want %d", r, at, i)
		}
	}
}

// TestCutsAreWhereNoTokenReaches asks the table of a model about neighbours.
func TestCutsAreWhereNoTokenReaches(t *testing.T) {
	c := cutTable{pairs: make([]uint64, 1<<cutBits/64)}
	c.add([]byte("中文"))
	c.add([]byte("é."))
	c.add([]byte("\x96\x87x")) // the end of 文, then x
	c.add([]byte("y\xe4"))     // y, then the start of 中
	for text, want := range map[string]string{
		"中文中文": "中文|中文", "é.é": "é.|é", "文x文z": "文x|文|z", "y中z中": "y中|z|中", "abc": "abc", "aéb": "a|é|b",
	} {
		var parts []string
		for from := 0; from < len(text); {
			at := c.next([]byte(text), from)
			parts = append(parts, text[from:at])
			from = at
		}
		if got := strings.Join(parts, "|"); got != want {
			t.Errorf("%s is cut into %s, want %s", text, got, want)
		}
	}
}
