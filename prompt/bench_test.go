package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// chatBody returns a conversation of about size bytes. Plain text is words with a
// line end every 80 bytes; dense text has a quote, backslash, line end or CJK
// character every 5 to 8 bytes, the worst that a scanner meets.
func chatBody(size int, dense bool) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	type msg struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body := struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []msg  `json:"messages"`
	}{Model: "Qwen/Qwen3-0.6B", Stream: true}
	turns := max(1, min(20, size/1024))
	for i := range turns {
		var b strings.Builder
		for line := 0; b.Len() < size/turns-60; {
			if dense {
				b.WriteString(strings.Repeat("x", 4+rng.IntN(4)))
				b.WriteString([]string{`"`, `\`, "\n", "中"}[rng.IntN(4)])
				continue
			}
			word := make([]byte, 2+rng.IntN(9))
			for j := range word {
				word[j] = byte('a' + rng.IntN(26))
			}
			b.Write(word)
			if line += len(word) + 1; line >= 80 {
				b.WriteByte('\n')
				line = 0
			} else {
				b.WriteByte(' ')
			}
		}
		body.Messages = append(body.Messages, msg{[]string{"user", "assistant"}[i%2], b.String()})
	}
	out, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return out
}

func forBodies(b *testing.B, run func(b *testing.B, body []byte)) {
	b.Helper()
	for _, size := range []int{1 << 10, 100 << 10, 1 << 20} {
		for _, dense := range []bool{false, true} {
			name := fmt.Sprintf("%dKB/plain", size>>10)
			if dense {
				name = fmt.Sprintf("%dKB/dense", size>>10)
			}
			b.Run(name, func(b *testing.B) {
				body := chatBody(size, dense)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				run(b, body)
			})
		}
	}
}

func BenchmarkScan(b *testing.B) {
	forBodies(b, func(b *testing.B, body []byte) {
		b.Helper()
		var r Request
		for b.Loop() {
			if err := r.Scan(Chat, nil, body); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkScanAndPrepare(b *testing.B) {
	forBodies(b, func(b *testing.B, body []byte) {
		b.Helper()
		var r Request
		var out Prepared
		p := NewPreparer(DefaultConfig(), nil)
		sizes := []int{16}
		for b.Loop() {
			if err := r.Scan(Chat, nil, body); err != nil {
				b.Fatal(err)
			}
			p.Prepare(b.Context(), &r, sizes, &out)
		}
	})
}

func BenchmarkScanTokenIDs(b *testing.B) {
	list, err := json.Marshal(ids(25_000))
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(`{"model":"m","prompt":` + string(list) + `}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var r Request
	var out Prepared
	p := NewPreparer(DefaultConfig(), nil)
	for b.Loop() {
		if err := r.Scan(Completions, nil, body); err != nil {
			b.Fatal(err)
		}
		p.Prepare(b.Context(), &r, []int{16}, &out)
	}
}
