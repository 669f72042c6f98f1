package tokens

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

// growth is a conversation in the text of a chat template.
func growth(turns int) []string {
	var out []string
	var text strings.Builder
	text.WriteString("<|im_start|>system\nYou answer in short sentences and never guess.<|im_end|>\n")
	for i := range turns {
		fmt.Fprintf(&text, "<|im_start|>user\nQuestion %d: %s<|im_end|>\n", i, strings.Repeat("why does the cache keep what nobody asks for ", 20))
		out = append(out, text.String())
	}
	return out
}

func TestAGrowingConversationIsFoundAgain(t *testing.T) {
	tok := loadGolden(t, "qwen2")
	prefixes := NewPrefixCache(1 << 20)
	for _, text := range growth(30) {
		got, err := prefixes.Encode(tok, nil, []byte(text), WithoutSpecials)
		if err != nil || !slices.Equal(got, mustEncode(t, tok, text)) {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
	}
	stretches := 0
	for i := range prefixes.shards {
		stretches += len(prefixes.shards[i].at)
	}
	if bytes := len(growth(30)[29]); stretches < bytes/2/stretchBytes || stretches > bytes/stretchBytes+4 { // 4 at the start
		t.Errorf("%d stretches for %d bytes: each should be kept once", stretches, bytes)
	}
}

func TestThePrefixCacheIsBounded(t *testing.T) {
	tok := loadGolden(t, "cl100k")
	prefixes := NewPrefixCache(1)
	prefixes.step = 64
	for i := range 3000 {
		text := strings.Repeat(fmt.Sprintf("words of text number %d go on and on ", i), 40)
		got, err := prefixes.Encode(tok, nil, []byte(text), WithSpecials)
		want, errWant := tok.Encode(nil, []byte(text), WithSpecials)
		if err != nil || errWant != nil || !slices.Equal(got, want) {
			t.Fatalf("text %d: %v, %v", i, err, errWant)
		}
	}
	for i := range prefixes.shards {
		s := &prefixes.shards[i]
		held := 0
		for _, e := range s.at {
			held += e.n
		}
		if held > len(s.ids) || len(s.ids) != leastRing || len(s.order) > 4*len(s.at)+256 {
			t.Errorf("shard %d: %d ids in a ring of %d, queue of %d for %d", i, held, len(s.ids), len(s.order), len(s.at))
		}
	}
}

// TestWhatIsUsedStays asks for one text again and again between many others.
func TestWhatIsUsedStays(t *testing.T) {
	var s prefixShard
	s.at = map[xxh3.Uint128]prefixEntry{}
	s.ids = make([]uint32, 1000)
	hot := xxh3.Uint128{Hi: 1, Lo: 1}
	s.put(hot, []uint32{1, 2, 3})
	for i := range uint64(500) {
		s.put(xxh3.Uint128{Hi: 2, Lo: i}, make([]uint32, 100))
		got, ok := s.get(nil, hot)
		if !ok || !slices.Equal(got, []uint32{1, 2, 3}) {
			t.Fatalf("round %d: %v %v", i, got, ok)
		}
	}
	if _, ok := s.get(nil, xxh3.Uint128{Hi: 2, Lo: 0}); ok {
		t.Error("what nobody asked for is still there")
	}
}

func TestTokenizersDoNotShareStretches(t *testing.T) {
	a, b := loadGolden(t, "qwen2"), loadGolden(t, "o200k")
	prefixes := NewPrefixCache(1 << 20)
	text := []byte(growth(20)[19])
	for _, tok := range []*Tokenizer{a, b, a, b} {
		got, err := prefixes.Encode(tok, nil, text, WithoutSpecials)
		if err != nil || !slices.Equal(got, mustEncode(t, tok, string(text))) {
			t.Fatal("ids of another tokenizer", err)
		}
	}
}
