package wire

import (
	"math/rand/v2"
	"testing"

	"pointsman/kvindex"
)

// benchBatch is events, each of as many blocks of 16 tokens, with token ids
// spread as a vocabulary of 128 Ki is used.
func benchBatch(events, blocks int) *kvindex.Batch {
	rng := rand.New(rand.NewPCG(1, 2))
	b := &kvindex.Batch{Rank: -1, At: 1.5}
	for range events {
		e := kvindex.Event{BlockSize: 16, Tier: kvindex.Device}
		for range blocks {
			e.Hashes = append(e.Hashes, rng.Uint64())
			for range 16 {
				e.Tokens = append(e.Tokens, rng.Uint32N(1<<rng.UintN(18)))
			}
		}
		b.Events = append(b.Events, e)
	}
	return b
}

func benchmarkDecode(b *testing.B, encode func([]byte, *kvindex.Batch) []byte) {
	b.Helper()
	const events, blocks = 4, 64
	payload := encode(nil, benchBatch(events, blocks))
	batch := new(kvindex.Batch)
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if err := DecodeBatch(payload, batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(events*blocks), "ns/block")
}

func BenchmarkDecodeVLLM(b *testing.B)   { benchmarkDecode(b, AppendVLLM) }
func BenchmarkDecodeSGLang(b *testing.B) { benchmarkDecode(b, AppendSGLang) }

func BenchmarkEncodeVLLM(b *testing.B) {
	batch := benchBatch(4, 64)
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendVLLM(dst[:0], batch)
	}
}
