//nolint:gosec // G115: numbers of workers, ids and tokens are small or cut on purpose
package bench

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"

	"pointsman/kvindex"
	"pointsman/wire"
)

// removePiece is how many hashes one event of the removal step removes.
const removePiece = 512

// removals empties the workers, a third of them tail first, a third head first, a
// third in random order, and reports the slowest.
func (b *indexBench) removals(ctx context.Context, res *indexResult) error {
	var spent [3]work
	var blocks [3]int
	r := rand.New(rand.NewPCG(3, 4)) // reproducible on purpose
	for w := range b.workers {
		held := b.heldBy(w)
		order := w % 3
		switch order {
		case 0:
			slices.Reverse(held)
		case 2:
			r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		}
		blocks[order] += len(held)
		for piece := range slices.Chunk(held, removePiece) {
			batch := b.oneEvent(kvindex.Event{Kind: kvindex.Removed, Hashes: piece})
			if err := spent[order].do(func() error { return b.apply(w, batch) }); err != nil {
				return err
			}
		}
	}
	res.Remove = math.Inf(1)
	for i, n := range blocks {
		if n > 0 {
			b.logRate(ctx, [3]string{"removal, tail first", "removal, head first", "removal, random"}[i], n, &spent[i])
			res.Remove = min(res.Remove, spent[i].rate(n))
		}
	}
	return b.mustBeEmpty()
}

// heldBy returns the engine hashes that a worker holds, in the order stored.
func (b *indexBench) heldBy(w int) []uint64 {
	seen := map[uint64]struct{}{}
	var held []uint64
	for i := w; i < len(b.reqs); i += b.workers {
		b.engine = appendEngineHashes(b.engine[:0], b.reqs[i], w)
		for _, e := range b.engine {
			if _, dup := seen[e]; !dup {
				seen[e] = struct{}{}
				held = append(held, e)
			}
		}
	}
	return held
}

func (b *indexBench) mustBeEmpty() error {
	tokens, hashes, spent := b.lookupMemory()
	if r := b.lookupRound(tokens, hashes, spent); r.sum != 0 {
		return fmt.Errorf("%d blocks are still found after all were removed", r.sum)
	}
	return nil
}

// decodeApply measures the way of an event from its bytes into an empty index.
func (b *indexBench) decodeApply(ctx context.Context, res *indexResult) error {
	b.open()
	var payload []byte
	var decoded kvindex.Batch
	var spent work
	for i, ids := range b.reqs {
		payload = wire.AppendVLLM(payload[:0], b.storedEvent(ids, i%b.workers))
		err := spent.do(func() error {
			if err := wire.DecodeBatch(payload, &decoded); err != nil {
				return err
			}
			return b.apply(i%b.workers, &decoded)
		})
		if err != nil {
			return err
		}
	}
	b.logRate(ctx, "decode and apply", b.reqs.blocks(), &spent)
	res.DecodeApply = spent.rate(b.reqs.blocks())
	tokens, hashes, durations := b.lookupMemory()
	if r := b.lookupRound(tokens, hashes, durations); r.sum != res.Sum {
		return fmt.Errorf("sum of matches after decoding is %d, want %d", r.sum, res.Sum)
	}
	return nil
}

// churnTarget is the blocks that each worker holds in the churn step.
const churnTarget = 36_000

// churner keeps one worker's cache full with prompts that no one else has, under
// one shared system prompt that stays.
type churner struct {
	live int
	fifo []churnPrompt
	next uint64
}

type churnPrompt struct {
	salt uint64
	ids  int
}

// churnAll runs the churn and compares resident memory after the first tenth with
// that at the end.
func (b *indexBench) churnAll(ctx context.Context, res *indexResult) error {
	b.open()
	workers := make([]churner, b.workers)
	ops, first := 0, int64(0)
	warm := b.churn / 10
	for req := 0; ops < b.churn; req++ {
		if req%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		w := req % b.workers
		n, err := b.churnOne(&workers[w], w, min(len(b.reqs[req%len(b.reqs)]), 64))
		if err != nil {
			return err
		}
		ops += n
		if first == 0 && ops >= warm {
			if first, err = settledRSS(); err != nil {
				return err
			}
		}
	}
	last, err := settledRSS()
	if err != nil {
		return err
	}
	if first > 0 {
		res.ChurnDrift = 100 * float64(last-first) / float64(first)
	}
	b.log.LogAttrs(ctx, slog.LevelInfo, "churned", slog.Int("operations", ops),
		slog.Int64("rss_mib_first", first>>20), slog.Int64("rss_mib_last", last>>20))
	return nil
}

// churnOne stores one prompt of so many ids on a worker and removes the oldest
// ones beyond its size, tail first on every second worker as vLLM does.
func (b *indexBench) churnOne(c *churner, w, ids int) (ops int, err error) {
	c.next++
	p := churnPrompt{salt: c.next<<16 | uint64(w), ids: max(ids, 2)}
	batch := b.storedEvent(p.prompt(), w)
	ops = len(batch.Events[0].Hashes)
	if err = b.apply(w, batch); err != nil {
		return 0, err
	}
	c.fifo = append(c.fifo, p)
	c.live += (p.ids - 1) * blocksPerID
	for c.live > churnTarget && len(c.fifo) > 1 {
		old := c.fifo[0]
		c.fifo = slices.Delete(c.fifo, 0, 1)
		c.live -= (old.ids - 1) * blocksPerID
		b.engine = appendEngineHashes(b.engine[:0], old.prompt(), w)
		gone := b.engine[blocksPerID:]
		if w%2 == 0 {
			slices.Reverse(gone)
		}
		ops += len(gone)
		if err = b.apply(w, b.oneEvent(kvindex.Event{Kind: kvindex.Removed, Hashes: gone})); err != nil {
			return 0, err
		}
	}
	return ops, nil
}

func (p churnPrompt) prompt() []uint64 {
	ids := make([]uint64, p.ids)
	for i := 1; i < len(ids); i++ {
		ids[i] = mixBits(p.salt, uint64(i))
	}
	return ids
}
