package zmq

import (
	"testing"
	"time"

	"pointsman/kvindex"
	"pointsman/wire"
)

// BenchmarkPayloadToView is the whole way of an event behind the socket: decode,
// hash, apply. Each batch stores 64 blocks of 16 tokens and takes away those of
// eight batches ago, so that the view keeps its size.
func BenchmarkPayloadToView(b *testing.B) {
	const size, blocks, held, prompts = 16, 64, 8, 512
	payloads := make([][]byte, prompts)
	hashes := make([][]uint64, prompts)
	for i := range payloads {
		e := kvindex.Event{BlockSize: size}
		for j := range uint64(blocks) {
			e.Hashes = append(e.Hashes, (uint64(i)<<32|j)*0x9e3779b97f4a7c15)
			for k := range uint32(size) {
				e.Tokens = append(e.Tokens, (uint32(i)<<12^uint32(j)<<5^k)*2654435761%151936)
			}
		}
		hashes[i] = e.Hashes
		gone := kvindex.Event{Kind: kvindex.Removed, Hashes: hashes[max(0, i-held)]}
		payloads[i] = wire.AppendVLLM(nil, &kvindex.Batch{Rank: -1, At: 1, Events: []kvindex.Event{gone, e}})
	}
	index := kvindex.New(kvindex.DefaultConfig())
	index.Instance("w")
	feed := index.Feed("w")
	batch := new(kvindex.Batch)
	now := time.Now()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := wire.DecodeBatch(payloads[n%prompts], batch); err != nil {
			b.Fatal(err)
		}
		batch.Seq, batch.HasSeq = uint64(n), true
		if feed.Apply(batch, now) != nil {
			b.Fatal("a gap")
		}
		n++
	}
	b.ReportMetric(float64(n)*blocks/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}
