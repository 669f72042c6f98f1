package bench

import (
	"bytes"
	"testing"
	"unicode/utf8"
)

func TestTokenTextsAreWhatTheyClaim(t *testing.T) {
	t.Chdir("../..")
	texts, err := tokenTexts()
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) != 6 {
		t.Errorf("%d kinds of text, want 6", len(texts))
	}
	for _, text := range texts {
		if n := len(text.text); n > tokenTextBytes || n < tokenTextBytes-3 || !utf8.Valid(text.text) {
			t.Errorf("%s: %d bytes, valid %v", text.name, n, utf8.Valid(text.text))
		}
	}
}

func TestTheConversationGrowsByNewText(t *testing.T) {
	c := newChat()
	first := bytes.Clone(c.next())
	second := c.next()
	if !bytes.HasPrefix(first, c.text) || !bytes.HasPrefix(second, c.text) || bytes.Equal(first, second) {
		t.Error("a turn is not the conversation and something new")
	}
	if n := len(second) - len(c.text); n < 1000 || n > 1100 {
		t.Errorf("%d bytes new, want about 1,000", n)
	}
	if bytes.Count(c.text, []byte("<|im_end|>")) != 50 {
		t.Error("not 50 messages")
	}
}

func TestIDSumSeesOrderAndValue(t *testing.T) {
	if a, b, c := idSum([]uint32{1, 2}), idSum([]uint32{2, 1}), idSum([]uint32{1, 3}); a == b || a == c {
		t.Errorf("sums %d %d %d", a, b, c)
	}
}
