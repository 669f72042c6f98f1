package simengine

import (
	"testing"

	"pointsman/wire"
)

func BenchmarkTokenize2MB(b *testing.B) {
	text := words(400_000)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var dst []uint32
	for b.Loop() {
		dst = appendTokens(dst[:0], text)
	}
}

func BenchmarkStepOf64Decoders(b *testing.B) {
	s := newScheduler(TimeConfig{PrefillRate: 1, ChunkTokens: 1 << 20, MaxSeqs: 64}, newCache(16, 1<<20), func(changes) {})
	for i := range 64 {
		tokens := tokensOf(i, 1000)
		q := &sequence{tokens: tokens, hashes: chainHashes(1, wire.Keys{}, tokens, 16), prompt: 100, out: 1 << 22, notify: make(chan struct{}, 1)}
		s.waiting = append(s.waiting, q)
	}
	s.cache.capacity = 1 << 30
	b.ReportAllocs()
	for b.Loop() {
		s.plan()
		s.finish()
	}
}

func BenchmarkAdmitAWarmPromptOf1000Blocks(b *testing.B) {
	c := newCache(16, 4096)
	tokens := tokensOf(1, 16_000)
	hashes := chainHashes(1, wire.Keys{}, tokens, 16)
	l, _ := c.acquire(hashes, len(tokens), 1000)
	c.commit(&l, hashes, tokens, len(tokens), wire.Keys{})
	c.release(&l)
	b.ReportAllocs()
	for b.Loop() {
		l, _ := c.acquire(hashes, len(tokens), 1001)
		c.release(&l)
	}
}
