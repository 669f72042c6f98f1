package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"pointsman/kvindex"
)

// The Mooncake conversation trace and what four peers' indexes agree on for it.
const (
	mooncakeRequests = 12031
	mooncakeBlocks   = 9232000
	mooncakeSum      = 49878080
)

// indexResult is the line that the index bench prints.
type indexResult struct {
	Sum          int64   `json:"sum"`                    // matching blocks, all prompts and workers
	P50          float64 `json:"p50_us"`                 // of a lookup
	P99          float64 `json:"p99_us"`                 //
	Ingest       float64 `json:"ingest_mblocks_s"`       // hash and apply, one core
	BytesPerAdd  float64 `json:"bytes_per_add"`          // resident memory after GC
	P99Writer    float64 `json:"p99_us_under_writer"`    // of a lookup while one goroutine stores and removes
	DecodeApply  float64 `json:"decode_apply_mblocks_s"` // msgpack to index, one core
	Remove       float64 `json:"remove_mblocks_s"`       // the slowest of three orders
	ChurnDrift   float64 `json:"churn_drift_percent"`    // resident memory over 50 M operations
	Allocs       int     `json:"allocs"`                 // per lookup
	WriterBlocks float64 `json:"writer_mblocks_s"`       // what the writer did meanwhile
	HashPrompt   float64 `json:"hash_us"`                // hashing a mean prompt
}

type indexOptions struct {
	trace    string
	workers  int
	requests int
	churn    int
}

// indexBench is the state of one run.
type indexBench struct {
	indexOptions
	reqs  indexTrace
	now   time.Time
	log   *slog.Logger
	x     *kvindex.Index
	feeds []*kvindex.Feed
	ins   []kvindex.Instance

	tokens []uint32
	engine []uint64
	batch  kvindex.Batch
}

// Index measures package kvindex on a trace: request i is stored on worker
// i mod 64, then every prompt is looked up. It fails when an answer is wrong.
func Index(ctx context.Context, args []string, out, log io.Writer) error {
	b, err := newIndexBench(args, log)
	if err != nil {
		return err
	}
	var res indexResult
	steps := []struct {
		name string
		run  func(context.Context, *indexResult) error
	}{
		{"ingest", b.ingest},
		{"lookup", b.lookups},
		{"lookup beside a writer", b.lookupsUnderWriter},
		{"removal", b.removals},
		{"decode and apply", b.decodeApply},
		{"churn", b.churnAll},
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := time.Now()
		if err := step.run(ctx, &res); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		b.log.LogAttrs(ctx, slog.LevelInfo, "step done", slog.String("step", step.name), slog.Duration("took", time.Since(start)))
	}
	return PrintJSON(out, res.rounded())
}

func newIndexBench(args []string, log io.Writer) (*indexBench, error) {
	b := &indexBench{now: time.Now(), log: slog.New(slog.NewTextHandler(log, nil))}
	fs := flag.NewFlagSet("bench index", flag.ContinueOnError)
	fs.SetOutput(log)
	fs.StringVar(&b.trace, "trace", "", "JSONL trace with hash_ids; empty for a synthetic one")
	fs.IntVar(&b.workers, "workers", 64, "number of workers")
	fs.IntVar(&b.requests, "requests", 0, "use only the first so many requests; 0 for all (synthetic: 3,000)")
	fs.IntVar(&b.churn, "churn-ops", 50_000_000, "operations of the churn step")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if b.workers < 1 || b.requests < 0 || b.churn < 0 {
		return nil, errors.New("workers must be positive, requests and churn-ops not negative")
	}
	var err error
	if b.trace == "" {
		if b.requests == 0 {
			b.requests = 3000
		}
		b.reqs = syntheticIndexTrace(b.requests)
	} else if b.reqs, err = readIndexTrace(b.trace); err != nil {
		return nil, err
	}
	if b.requests > 0 && b.requests < len(b.reqs) {
		b.reqs = b.reqs[:b.requests]
	}
	return b, nil
}

// open starts with an empty index.
func (b *indexBench) open() {
	b.x = kvindex.New(kvindex.DefaultConfig())
	b.feeds, b.ins = b.feeds[:0], b.ins[:0]
	for w := range b.workers {
		key := fmt.Sprint("worker-", w)
		b.ins = append(b.ins, b.x.Instance(key))
		b.feeds = append(b.feeds, b.x.Feed(key))
	}
}

// storedEvent makes b.batch the event that stores a prompt on a worker.
func (b *indexBench) storedEvent(ids []uint64, worker int) *kvindex.Batch {
	b.tokens = b.tokens[:0]
	for _, id := range ids {
		b.tokens = appendTokens(b.tokens, id)
	}
	b.engine = appendEngineHashes(b.engine[:0], ids, worker)
	return b.oneEvent(kvindex.Event{Kind: kvindex.Stored, Tokens: b.tokens, Hashes: b.engine, BlockSize: blockTokens})
}

func (b *indexBench) oneEvent(e kvindex.Event) *kvindex.Batch {
	b.batch.Rank = -1
	b.batch.Events = append(b.batch.Events[:0], e)
	return &b.batch
}

// work sums up what the measured parts of a step cost. Rates are per second of
// this process's CPU time, its garbage collector included, so that they are those
// of one core whoever else uses the machine.
type work struct{ cpu, wall time.Duration }

// do runs one measured part.
func (w *work) do(part func() error) error {
	before, err := CPUTime()
	if err != nil {
		return err
	}
	start := time.Now()
	if err = part(); err != nil {
		return err
	}
	w.wall += time.Since(start)
	after, err := CPUTime()
	w.cpu += after - before
	return err
}

// rate returns millions of blocks per second of CPU time.
func (w *work) rate(blocks int) float64 { return float64(blocks) / w.cpu.Seconds() / 1e6 }

func (b *indexBench) logRate(ctx context.Context, what string, blocks int, w *work) {
	b.log.LogAttrs(ctx, slog.LevelInfo, "rate", slog.String("of", what),
		slog.Float64("mblocks_per_cpu_s", Round(w.rate(blocks), 2)),
		slog.Float64("mblocks_per_wall_s", Round(float64(blocks)/w.wall.Seconds()/1e6, 2)))
}

// apply applies a batch to a worker's feed.
func (b *indexBench) apply(worker int, batch *kvindex.Batch) error {
	if gap := b.feeds[worker].Apply(batch, b.now); gap != nil {
		return fmt.Errorf("unexpected gap %d-%d", gap.From, gap.To)
	}
	return nil
}

func (b *indexBench) ingest(ctx context.Context, res *indexResult) error {
	before, err := settledRSS()
	if err != nil {
		return err
	}
	b.open()
	var spent work
	for i, ids := range b.reqs {
		batch := b.storedEvent(ids, i%b.workers)
		if err = spent.do(func() error { return b.apply(i%b.workers, batch) }); err != nil {
			return err
		}
	}
	after, err := settledRSS()
	if err != nil {
		return err
	}
	blocks := b.reqs.blocks()
	b.logRate(ctx, "ingest", blocks, &spent)
	res.Ingest = spent.rate(blocks)
	res.BytesPerAdd = float64(after-before) / float64(blocks)
	return nil
}

// settledRSS returns the resident memory once garbage is collected and given back.
func settledRSS() (int64, error) {
	runtime.GC()
	debug.FreeOSMemory()
	return RSS(0)
}

func (r indexResult) rounded() indexResult {
	for _, v := range []*float64{
		&r.P50, &r.P99, &r.Ingest, &r.BytesPerAdd, &r.P99Writer, &r.DecodeApply, &r.Remove, &r.ChurnDrift, &r.WriterBlocks, &r.HashPrompt,
	} {
		*v = Round(*v, 2)
	}
	return r
}
