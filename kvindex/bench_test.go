package kvindex

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// benchFleet is an index in which each worker holds a shared system prompt and
// some prompts of its own, exactly and by prediction.
func benchFleet(tb testing.TB, workers int) (x *Index, ins []Instance, prompts [][]Hash) {
	tb.Helper()
	x = New(Config{})
	now := time.Unix(1, 0)
	for w := range workers {
		key := fmt.Sprint("w", w)
		ins = append(ins, x.Instance(key))
		f := x.Feed(key)
		for p := range 4 {
			tokens := benchPrompt(w*4 + p)
			hs := HashTokens(nil, 0, tokens, 16)
			f.Apply(&Batch{Events: []Event{{Kind: Stored, BlockSize: 16, Tokens: tokens, Hashes: handlesOf(hs)}}}, now)
			x.Predict(ins[w], hs, now, time.Hour)
			prompts = append(prompts, hs)
		}
	}
	return x, ins, prompts
}

// benchPrompt is 256 blocks of 16, the first 32 of which all prompts share.
func benchPrompt(n int) []uint32 {
	tokens := make([]uint32, 256*16)
	for i := range tokens {
		tokens[i] = uint32(i)
		if i >= 32*16 {
			tokens[i] = uint32(n+1)<<16 | uint32(i)
		}
	}
	return tokens
}

func BenchmarkLookup(b *testing.B) {
	for _, workers := range []int{8, 200, 1000} {
		b.Run(fmt.Sprint(workers, "-workers"), func(b *testing.B) {
			x, _, prompts := benchFleet(b, workers)
			var s Scratch
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.Lookup(prompts[i%len(prompts)], &s)
			}
		})
	}
}

func BenchmarkPredict(b *testing.B) {
	for _, workers := range []int{8, 200, 1000} {
		b.Run(fmt.Sprint(workers, "-workers"), func(b *testing.B) {
			x, ins, prompts := benchFleet(b, workers)
			now := time.Unix(2, 0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now = now.Add(time.Millisecond)
				x.Predict(ins[i%len(ins)], prompts[(i%len(ins))*4], now, 0)
			}
		})
	}
}

// Each prompt is new but for its shared beginning, as in an agent fleet's worst
// hour; the bound on predictions per worker is reached and stays.
func BenchmarkPredictNewPrompts(b *testing.B) {
	x, ins, _ := benchFleet(b, 200)
	now := time.Unix(2, 0)
	hs := HashTokens(nil, 0, benchPrompt(0), 16)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for j := 32; j < len(hs); j++ {
			hs[j] = uint64(i)<<16 + uint64(j)*golden
		}
		now = now.Add(time.Millisecond)
		x.Predict(ins[i%len(ins)], hs, now, 0)
	}
}

// What a pick waits for the writer's lock while another goroutine applies events
// at full speed.
func BenchmarkPredictBesideAWriter(b *testing.B) {
	x, ins, prompts := benchFleet(b, 200)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		f := x.Feed("writer")
		tokens := benchPrompt(1 << 14)
		hashes := handlesOf(HashTokens(nil, 0, tokens, 16))
		for !stop.Load() {
			f.Apply(&Batch{Events: []Event{
				{Kind: Stored, BlockSize: 16, Tokens: tokens, Hashes: hashes},
				{Kind: Removed, Hashes: hashes},
			}}, time.Unix(1, 0))
		}
	}()
	now := time.Unix(2, 0)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		x.Predict(ins[i%len(ins)], prompts[(i%len(ins))*4], now, time.Hour)
		took = append(took, time.Since(start))
	}
	stop.Store(true)
	<-done
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-us")
}

func BenchmarkApplyStored(b *testing.B) {
	for _, blocks := range []int{1, 8, 256} {
		b.Run(fmt.Sprint(blocks, "-blocks"), func(b *testing.B) {
			x := New(Config{})
			f := x.Feed("w")
			tokens := make([]uint32, blocks*16)
			hashes := make([]uint64, blocks)
			batch := Batch{Events: []Event{
				{Kind: Stored, BlockSize: 16, Tokens: tokens, Hashes: hashes},
				{Kind: Removed, Hashes: hashes},
			}}
			now := time.Unix(1, 0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tokens[0] = uint32(i)
				for j := range hashes {
					hashes[j] = uint64(i)<<20 | uint64(j)
				}
				f.Apply(&batch, now)
			}
		})
	}
}

func BenchmarkHashTokens(b *testing.B) {
	for _, size := range []int{16, 64, 512} {
		b.Run(fmt.Sprint("size-", size), func(b *testing.B) {
			tokens, dst := make([]uint32, 256*16), make([]Hash, 0, 256)
			b.SetBytes(int64(4 * len(tokens)))
			b.ReportAllocs()
			for b.Loop() {
				HashTokens(dst, 0, tokens, size)
			}
		})
	}
}

func TestThePathsOfARequestDoNotAllocate(t *testing.T) {
	x, ins, prompts := benchFleet(t, 20)
	now := time.Unix(2, 0)
	var s Scratch
	x.Lookup(prompts[0], &s)
	x.Present(ins[0], prompts[0], now)
	for name, f := range map[string]func(){
		"lookup":  func() { x.Lookup(prompts[7], &s) },
		"predict": func() { x.Predict(ins[0], prompts[0], now, 0) },
		"present": func() { x.Present(ins[0], prompts[0], now) },
		"mode":    func() { x.Mode(ins[0], now) },
		"expire":  func() { x.Expire(now) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}
