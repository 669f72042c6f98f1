package tokens

import (
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// cutRules say at which places a text may be cut so that its tokens are those of
// the two sides put together, whatever the two sides are. Places are told by the
// two or three characters around them. The zero value finds none.
//
// What makes the rules true: every known pattern ends a word between a letter and
// a space, begins one with a space before a letter, and looks no further than the
// next character there. Nothing normalizes across an ASCII character. No added
// token reaches across, which setCuts checks.
type cutRules struct {
	afterLetter [256]bool // the letters after which a space before a letter is a place
	lines       bool      // so is after a line feed, before a letter
	stops       bool      // so is after a Chinese character, before 。 or ，
	useTable    bool      // the model's cutTable must allow it: there is no pre-tokenizer
}

func newSeed() uint64 { return rand.Uint64() } //nolint:gosec // spreads keys, guards no secret

// setCuts finds the rules that hold for this tokenizer.
func (t *Tokenizer) setCuts() {
	blank, plain, ok := t.blank()
	if !ok || !t.addedStayApart(blank) {
		return
	}
	c := &t.cut
	whole := t.pre.split == nil && (t.pre.meta == nil || !t.pre.meta.split)
	first, _ := utf8.DecodeRuneInString(blank)
	for x := range 128 {
		if !asciiLetter(byte(x)) {
			continue
		}
		c.afterLetter[x] = !whole || !t.model.gaps && first >= utf8.RuneSelf &&
			t.model.cuts.between([]byte(string(rune(x))+blank), 1, rune(x), first)
	}
	c.useTable = t.pre.split == nil
	c.stops = plain && (!c.useTable || !t.model.gaps)
	// Alone, GPT-2's pattern takes spaces before a last line feed along.
	c.lines = plain && !whole && t.pre.meta == nil && t.pre.breaks && !t.addedHave(func(s string) bool {
		return strings.Contains(s[:len(s)-1], "\n")
	})
}

// blank returns what a space is when words are cut, and whether other text is only
// touched by NFC; ok is false when a normalizer's step reaches across spaces.
func (t *Tokenizer) blank() (blank string, plain, ok bool) {
	blank, plain = " ", true
	for i := range t.steps {
		step := &t.steps[i]
		switch step.kind {
		case normForm:
			plain = plain && !step.compat && step.compose
		case normLower:
			plain = false
		case normReplace:
			if string(step.from) != blank || len(step.to) == 0 {
				return "", false, false
			}
			blank = string(step.to)
		case normPrepend: // not done to what continues
		}
	}
	if t.pre.meta != nil {
		if blank != " " {
			return "", false, false
		}
		blank = string(t.pre.meta.mark)
	}
	return blank, plain, blank == " " || t.pre.split == nil
}

// addedStayApart reports whether no added token reaches across a place to cut or
// looks across it.
func (t *Tokenizer) addedStayApart(blank string) bool {
	if t.addedHave(func(s string) bool { return strings.Contains(s, " ") || strings.ContainsAny(s, "。，") }) {
		return false
	}
	for i := range t.added {
		a := &t.added[i]
		if a.Normalized && strings.Contains(a.Content, blank) {
			return false
		}
		looks := a.LStrip || a.RStrip || a.SingleWord
		if s := a.Content; looks && (!isASCIIPunct(s[0]) || !isASCIIPunct(s[len(s)-1])) {
			return false
		}
	}
	return true
}

func (t *Tokenizer) addedHave(f func(string) bool) bool {
	for i := range t.added {
		if f(t.added[i].Content) {
			return true
		}
	}
	return false
}

// nextCut returns the first place to cut from i > 0 on, or -1.
func (t *Tokenizer) nextCut(b []byte, i int) int {
	c := &t.cut
	for ; i < len(b)-3; i++ {
		switch b[i] {
		case ' ':
			if c.afterLetter[b[i-1]] && asciiLetter(b[i+1]) {
				return i
			}
		case '\n':
			if !c.lines {
				continue
			}
			if next, _ := t.tables.at(b, i+1); next&letter != 0 {
				return i + 1
			}
		case 0xe3, 0xef:
			if c.stops && t.beforeStop(b, i) {
				return i
			}
		}
	}
	return -1
}

func (t *Tokenizer) beforeStop(b []byte, i int) bool {
	if s := string(b[i : i+3]); s != "。" && s != "，" {
		return false
	}
	at := lastRune(b, i)
	if i-at != 3 {
		return false
	}
	left, _ := runeAt(b, at)
	if left < 0x4e00 || left > 0x9fa5 {
		return false
	}
	right, _ := runeAt(b, i)
	return !t.cut.useTable || t.model.cuts.between(b, i, left, right)
}
