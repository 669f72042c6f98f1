package tokens

import (
	"os"
	"strings"
	"testing"
)

// BenchmarkEncode needs a real model: TOKENIZER=dir go test -bench Encode.
func BenchmarkEncode(b *testing.B) {
	dir := os.Getenv("TOKENIZER")
	if dir == "" {
		b.Skip("TOKENIZER names no directory")
	}
	tok, err := Load(dir)
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range benchTexts() {
		for _, cold := range []bool{false, true} {
			how := "/warm"
			if cold {
				how = "/cold"
			}
			b.Run(name+how, func(b *testing.B) {
				var ids []uint32
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					if cold {
						tok.DropWordCaches()
					}
					ids, _ = tok.Encode(ids[:0], text, WithoutSpecials)
				}
				b.ReportMetric(float64(len(ids)), "tokens")
			})
		}
	}
}

func benchTexts() map[string][]byte {
	prose := "Routing a request to the worker that already holds its prefix saves the prefill, which is most of the time to first token. "
	return map[string][]byte{
		"prose":   []byte(strings.Repeat(prose, 800)),
		"run":     []byte(strings.Repeat("a", 100_000)),
		"spaces":  []byte(strings.Repeat(" ", 100_000)),
		"chinese": []byte(strings.Repeat("把请求发给已经缓存了前缀的节点，可以省去预填充的时间。", 1200)),
	}
}
