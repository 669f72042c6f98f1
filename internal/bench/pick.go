package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

// What a pick is measured with: an index that knows warmPrompts prompts, half of
// the requests asking for one of them and half for one never seen.
const (
	pickBlocks     = 256
	pickBlockSize  = 16
	pickShared     = 32 // leading blocks that all prompts share: a system prompt
	warmPrompts    = 2048
	pickInFlight   = 64 // requests held open, so that the ledger is not empty
	pickRounds     = 25 // the median counts
	picksPerRound  = 1_000
	pickWarmRounds = 10
)

// PickRow is the cost of one pick with its first token and its end.
type PickRow struct {
	Policy   string  `json:"policy"`
	Workers  int     `json:"workers"`
	Blocks   int     `json:"blocks"`
	Us       float64 `json:"us"` // CPU time of a pick, its first token and its end
	Allocs   float64 `json:"allocs"`
	HitShare float64 `json:"hit_share"` // picks whose whole prompt was on the chosen worker
	NewShare float64 `json:"new_share"` // picks of prompts never seen
	Picks    int     `json:"picks"`
}

// Pick measures the kv-aware pick and prints {"rows":[…]}. It takes no arguments.
func Pick(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("bench pick takes no arguments, got %q", args)
	}
	var result struct {
		Rows []PickRow `json:"rows"`
	}
	for _, workers := range []int{8, 200, 1000} {
		row, err := measurePick(ctx, workers)
		if err != nil {
			return fmt.Errorf("bench pick, %d workers: %w", workers, err)
		}
		fmt.Fprintf(log, "%d workers: %.2f us, %g allocations\n", workers, row.Us, row.Allocs)
		result.Rows = append(result.Rows, row)
	}
	return PrintJSON(out, result)
}

func measurePick(ctx context.Context, workers int) (PickRow, error) {
	p, load, err := newPickLoad(workers)
	if err != nil {
		return PickRow{}, err
	}
	row := PickRow{Policy: picker.KVAware, Workers: workers, Blocks: pickBlocks}
	var us []float64
	var total pickStats
	for round := range pickWarmRounds + pickRounds {
		if err := ctx.Err(); err != nil {
			return PickRow{}, err
		}
		cost, stats, err := load.measure(p)
		if err != nil {
			return PickRow{}, err
		}
		if round < pickWarmRounds {
			continue
		}
		us = append(us, cost.us)
		row.Allocs = max(row.Allocs, cost.allocs)
		row.Picks += picksPerRound
		total.hits += stats.hits
		total.fresh += stats.fresh
	}
	row.Us = Round(Median(us), 2)
	row.HitShare = Round(float64(total.hits)/float64(row.Picks), 3)
	row.NewShare = Round(float64(total.fresh)/float64(row.Picks), 3)
	if row.HitShare < 0.4 || row.NewShare < 0.4 || row.Us <= 0 {
		return PickRow{}, fmt.Errorf("measured something else: %+v", row)
	}
	return row, nil
}

type pickCost struct {
	us     float64 // CPU time of the process per pick: others on the machine do not count
	allocs float64 // whole allocations per pick, as testing.AllocsPerRun counts
}

// measure does one round of picks. What is less than one allocation a pick is the
// index taking memory for the new prompts, a chunk for thousands of blocks.
func (l *pickLoad) measure(p *picker.Picker) (pickCost, pickStats, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, err := CPUTime()
	if err != nil {
		return pickCost{}, pickStats{}, err
	}
	stats, err := l.run(p, picksPerRound)
	if err != nil {
		return pickCost{}, pickStats{}, err
	}
	end, err := CPUTime()
	if err != nil {
		return pickCost{}, pickStats{}, err
	}
	runtime.ReadMemStats(&after)
	return pickCost{
		us:     float64((end - start).Nanoseconds()) / 1e3 / picksPerRound,
		allocs: math.Floor(float64(after.Mallocs-before.Mallocs) / picksPerRound),
	}, stats, nil
}

// pickLoad is a stream of requests: its clock runs a millisecond a request.
type pickLoad struct {
	known [][]kvindex.Hash
	fresh []kvindex.Hash
	rng   uint64
	n     int
	now   time.Time
	open  [pickInFlight]picker.Decision
	req   picker.Request
	lists [1]kvindex.Blocks
}

func newPickLoad(workers int) (*picker.Picker, *pickLoad, error) {
	store := new(fleet.Store)
	list := make([]*fleet.Worker, workers)
	for i := range list {
		list[i] = &fleet.Worker{
			ID: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Host: fmt.Sprintf("10.0.%d.%d", i/250, i%250),
			Port: 8000, Model: "m", BlockSize: pickBlockSize, DPRank: -1,
		}
	}
	fleet.NewFeed(store).Replace(list)
	index := kvindex.New(kvindex.DefaultConfig())
	cfg := picker.DefaultConfig()
	cfg.OverlapWeight, cfg.Seed = 20, 1
	p, err := picker.New(cfg, store, index, breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		return nil, nil, err
	}
	l := &pickLoad{rng: 1, now: time.Unix(1_800_000_000, 0), fresh: make([]kvindex.Hash, pickBlocks)}
	l.lists[0].Size = pickBlockSize
	l.req = picker.Request{
		ID: "bench", Model: "m", Tokens: pickBlocks * pickBlockSize, Blocks: l.lists[:], Reason: "exact",
	}
	l.warm(index, list)
	return p, l, nil
}

// warm lets every worker's engine report its share of the known prompts.
func (l *pickLoad) warm(index *kvindex.Index, workers []*fleet.Worker) {
	tokens := make([]uint32, pickBlocks*pickBlockSize)
	for i := range tokens {
		tokens[i] = uint32(l.random() >> 32)
	}
	copy(l.fresh, kvindex.HashTokens(nil, 0, tokens[:pickShared*pickBlockSize], pickBlockSize))
	feeds := make([]*kvindex.Feed, len(workers))
	for i, w := range workers {
		feeds[i] = index.Feed(w.ID)
		feeds[i].Connected(l.now)
	}
	for i := range warmPrompts {
		for j := pickShared * pickBlockSize; j < len(tokens); j++ {
			tokens[j] = uint32(l.random() >> 32)
		}
		hashes := kvindex.HashTokens(nil, 0, tokens, pickBlockSize)
		l.known = append(l.known, hashes)
		feeds[i%len(feeds)].Apply(&kvindex.Batch{Rank: -1, Events: []kvindex.Event{{
			Kind: kvindex.Stored, Hashes: hashes, Tokens: tokens, BlockSize: pickBlockSize,
		}}}, l.now)
	}
}

// random is SplitMix64.
func (l *pickLoad) random() uint64 {
	l.rng += 0x9e3779b97f4a7c15
	x := l.rng
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

type pickStats struct{ hits, fresh int }

var errNoDecision = errors.New("a pick named no worker")

// run does n picks, each with the first token and the end of the one that was
// begun pickInFlight picks before.
func (l *pickLoad) run(p *picker.Picker, n int) (pickStats, error) {
	var st pickStats
	for range n {
		l.n++
		l.now = l.now.Add(time.Millisecond)
		known := l.n%2 == 0
		if known {
			l.lists[0].Hashes = l.known[l.random()%warmPrompts]
		} else {
			for i := pickShared; i < pickBlocks; i++ {
				l.fresh[i] = l.random()
			}
			l.lists[0].Hashes = l.fresh
		}
		slot := &l.open[l.n%pickInFlight]
		slot.FirstToken(l.now)
		slot.Done(l.now, breaker.Success)
		d, err := p.Pick(l.now, &l.req)
		if err != nil {
			return st, err
		}
		if d.Worker == nil {
			return st, errNoDecision
		}
		switch {
		case known && d.HitTokens == pickBlocks*pickBlockSize:
			st.hits++
		case !known:
			st.fresh++
		}
		*slot = d
	}
	return st, nil
}
