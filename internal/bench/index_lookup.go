package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"pointsman/kvindex"
)

// lookupRounds is how often the latency of all lookups is measured; the fastest
// round counts, because other processes on the machine can only slow one down.
const lookupRounds = 7

// round is one pass of lookups over all prompts.
type round struct {
	sum            int64
	p50, p99, hash float64 // µs; hash is the mean per prompt
	allocs         int     // per lookup
}

// lookupRound looks every prompt up. Hashing comes right before, as in a request,
// and is timed apart.
func (b *indexBench) lookupRound(tokens []uint32, hashes []kvindex.Hash, spent []float64) round {
	var r round
	var s kvindex.Scratch
	b.x.Lookup(hashes[:0], &s) // its memory
	var hashing time.Duration
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i, ids := range b.reqs {
		tokens = tokens[:0]
		for _, id := range ids {
			tokens = appendTokens(tokens, id)
		}
		start := time.Now()
		hashes = kvindex.HashTokens(hashes[:0], 0, tokens, blockTokens)
		hashed := time.Now()
		b.x.Lookup(hashes, &s)
		spent[i] = float64(time.Since(hashed).Nanoseconds()) / 1e3
		hashing += hashed.Sub(start)
		for _, in := range b.ins {
			r.sum += int64(s.Depth(in))
		}
	}
	runtime.ReadMemStats(&after)
	r.allocs = int((after.Mallocs - before.Mallocs) / uint64(len(b.reqs))) //nolint:gosec // a small number
	r.p50, r.p99 = Quantile(spent, 0.5), Quantile(spent, 0.99)
	r.hash = float64(hashing.Nanoseconds()) / 1e3 / float64(len(b.reqs))
	return r
}

func (b *indexBench) lookupMemory() (tokens []uint32, hashes []kvindex.Hash, spent []float64) {
	longest := 0
	for _, ids := range b.reqs {
		longest = max(longest, len(ids)*blocksPerID)
	}
	return make([]uint32, 0, longest*blockTokens), make([]kvindex.Hash, 0, longest), make([]float64, len(b.reqs))
}

func (b *indexBench) lookups(_ context.Context, res *indexResult) error {
	want := naiveSum(b.reqs, b.workers)
	if len(b.reqs) == mooncakeRequests && b.reqs.blocks() == mooncakeBlocks && b.workers == 64 && want != mooncakeSum {
		return fmt.Errorf("the naive count of the Mooncake trace is %d, the peers' is %d", want, mooncakeSum)
	}
	tokens, hashes, spent := b.lookupMemory()
	b.lookupRound(tokens, hashes, spent) // warm up: memory and branches
	var p50s, p99s, hash []float64
	for range lookupRounds {
		r := b.lookupRound(tokens, hashes, spent)
		if r.sum != want {
			return fmt.Errorf("sum of matches is %d, want %d", r.sum, want)
		}
		p50s, p99s, hash = append(p50s, r.p50), append(p99s, r.p99), append(hash, r.hash)
		res.Sum, res.Allocs = r.sum, max(res.Allocs, r.allocs)
	}
	res.P50, res.P99, res.HashPrompt = slices.Min(p50s), slices.Min(p99s), slices.Min(hash)
	return nil
}

// writerPrompts is how many prompts the writer stores and removes in turn, each
// under a system prompt that all lookups pass.
const writerPrompts = 256

// writerBatches prepares the writer's work, so that it does nothing but apply.
func (b *indexBench) writerBatches() (stores, removes []kvindex.Batch) {
	for i := range min(writerPrompts, len(b.reqs)) {
		ids := append([]uint64(nil), b.reqs[i]...)
		for j := 1; j < len(ids); j++ {
			ids[j] = mixBits(ids[j], 0x77726974)
		}
		e := b.storedEvent(ids, b.workers).Events[0]
		e.Tokens = append([]uint32(nil), e.Tokens...)
		e.Hashes = append([]uint64(nil), e.Hashes...)
		stores = append(stores, kvindex.Batch{Rank: -1, Events: []kvindex.Event{e}})
		removes = append(removes, kvindex.Batch{Rank: -1, Events: []kvindex.Event{{Kind: kvindex.Removed, Hashes: e.Hashes}}})
	}
	return stores, removes
}

// lookupsUnderWriter measures lookups while another goroutine, on a worker of its
// own, stores and removes at full speed.
func (b *indexBench) lookupsUnderWriter(_ context.Context, res *indexResult) error {
	stores, removes := b.writerBatches()
	feed := b.x.Feed("writer")
	var stop atomic.Bool
	var written atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i = (i + 1) % len(stores) {
			feed.Apply(&stores[i], b.now)
			feed.Apply(&removes[i], b.now)
			written.Add(int64(2 * len(stores[i].Events[0].Hashes)))
		}
	}()
	tokens, hashes, spent := b.lookupMemory()
	var p99s []float64
	start := time.Now()
	for range lookupRounds {
		r := b.lookupRound(tokens, hashes, spent)
		p99s = append(p99s, r.p99)
		if r.sum != res.Sum {
			stop.Store(true)
			<-done
			return fmt.Errorf("sum of matches beside a writer is %d, want %d", r.sum, res.Sum)
		}
	}
	took := time.Since(start)
	stop.Store(true)
	<-done
	b.x.Forget("writer")
	if written.Load() == 0 {
		return errors.New("the writer did nothing")
	}
	res.P99Writer = slices.Min(p99s)
	res.WriterBlocks = float64(written.Load()) / took.Seconds() / 1e6
	return nil
}
