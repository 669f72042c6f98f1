package tokens

import (
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostile is text that is dear to tokenize, of about n bytes.
func hostile(n int) map[string]string {
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, n)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	return map[string]string{
		"one letter":   strings.Repeat("a", n),
		"spaces":       strings.Repeat(" ", n),
		"marks":        strings.Repeat("\u0301\u0323", n/4),
		"one ideogram": strings.Repeat("中", n/3),
		"base64":       base64.StdEncoding.EncodeToString(noise)[:n],
		"random bytes": strings.ToValidUTF8(string(noise), "\ufffd"),
		"two letters":  strings.Repeat("abbabaab", n/8),
		"words":        strings.Repeat("never the same again ", n/21),
		"lines":        strings.Repeat("\n", n),
	}
}

func TestAnEncodingThatIsGivenUpLeavesNothingBehind(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for _, model := range []string{"qwen2", "llama2", "gemma", "deepseek"} {
		tok := loadGolden(t, model)
		for name, text := range hostile(100_000) {
			prefixes := NewPrefixCache(1 << 20)
			for _, stop := range []Stop{{Done: closed}, {Until: time.Unix(1, 0)}} {
				dst := []uint32{7}
				got, err := prefixes.EncodeUntil(stop, tok, dst, []byte(text), WithSpecials)
				if !errors.Is(err, ErrStopped) || !slices.Equal(got, dst) {
					t.Errorf("%s, %s: %d ids, error %v, want ErrStopped", model, name, len(got), err)
				}
			}
			got, err := prefixes.Encode(tok, nil, []byte(text), WithSpecials)
			want, errWant := tok.Encode(nil, []byte(text), WithSpecials)
			if err != nil || errWant != nil || !slices.Equal(got, want) {
				t.Errorf("%s, %s: after being given up: %d ids, want %d (%v, %v)", model, name, len(got), len(want), err, errWant)
			}
		}
	}
}

func TestAnEncodingWithTimeLeftIsComplete(t *testing.T) {
	tok := loadGolden(t, "qwen2")
	stop := Stop{Done: make(chan struct{}), Until: time.Now().Add(time.Hour)}
	for name, text := range hostile(50_000) {
		got, err := NewPrefixCache(1<<20).EncodeUntil(stop, tok, nil, []byte(text), WithoutSpecials)
		if err != nil || !slices.Equal(got, mustEncode(t, tok, text)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
