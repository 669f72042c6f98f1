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
	pickTurn       = 5 // rounds of one policy before the next has its turn
)

// PickRow is the cost of one pick with its first token and its end.
type PickRow struct {
	Policy   string  `json:"policy"`
	Shadow   string  `json:"shadow,omitempty"` // a second policy that is asked too
	Workers  int     `json:"workers"`
	Blocks   int     `json:"blocks"`
	Us       float64 `json:"us"` // CPU time of a pick, its first token and its end
	Allocs   float64 `json:"allocs"`
	HitShare float64 `json:"hit_share"` // picks whose whole prompt was on the chosen worker
	NewShare float64 `json:"new_share"` // picks of prompts never seen
	Picks    int     `json:"picks"`

	// OverKVAware is Us over that of kv-aware beside the same workers, measured in
	// turns with it.
	OverKVAware float64 `json:"over_kv_aware,omitempty"`
}

// pickCases are the policies that are measured.
var pickCases = [...]struct{ policy, shadow string }{ //nolint:gochecknoglobals // an immutable table
	{picker.KVAware, ""},
	{picker.LeastLatency, ""},
	{picker.KVAware, picker.LeastLatency},
}

// Pick measures picks by kv-aware, by least-latency, and by the one with the other as
// its shadow, and prints {"rows":[…]}. It takes no arguments.
func Pick(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("bench pick takes no arguments, got %q", args)
	}
	var result struct {
		Rows []PickRow `json:"rows"`
	}
	for _, workers := range []int{8, 200, 1000} {
		rows, err := measurePicks(ctx, workers)
		if err != nil {
			return fmt.Errorf("bench pick, %d workers: %w", workers, err)
		}
		for i := range rows {
			r := &rows[i]
			fmt.Fprintf(log, "%d workers, %s%s: %.2f us, %g allocations\n", workers, r.Policy, r.beside(), r.Us, r.Allocs)
		}
		result.Rows = append(result.Rows, rows...)
	}
	return PrintJSON(out, result)
}

func (r *PickRow) beside() string {
	if r.Shadow == "" {
		return ""
	}
	return " with the shadow " + r.Shadow
}

// measurePicks measures the cases some rounds each in turn, so that what else the machine
// does falls on all of them.
func measurePicks(ctx context.Context, workers int) ([]PickRow, error) {
	runs := make([]pickRun, len(pickCases))
	for i, c := range pickCases {
		p, load, err := newPickLoad(workers, c.policy, c.shadow)
		if err != nil {
			return nil, err
		}
		runs[i] = pickRun{p: p, load: load, row: PickRow{Policy: c.policy, Shadow: c.shadow, Workers: workers, Blocks: pickBlocks}}
	}
	for turn := range (pickWarmRounds + pickRounds) / pickTurn {
		for i := range runs {
			for range pickTurn {
				if err := runs[i].round(ctx, turn >= pickWarmRounds/pickTurn); err != nil {
					return nil, err
				}
			}
		}
	}
	rows := make([]PickRow, len(runs))
	for i := range runs {
		var err error
		if rows[i], err = runs[i].result(); err != nil {
			return nil, err
		}
		if i > 0 {
			rows[i].OverKVAware = Round(rows[i].Us/rows[0].Us, 2)
		}
	}
	return rows, nil
}

// pickRun is the measurement of one case.
type pickRun struct {
	p     *picker.Picker
	load  *pickLoad
	row   PickRow
	us    []float64
	total pickStats
}

// round does one round, which counts or only warms.
func (r *pickRun) round(ctx context.Context, counts bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cost, stats, err := r.load.measure(r.p) //nolint:contextcheck // a pick has no context to pass
	if err != nil || !counts {
		return err
	}
	r.us = append(r.us, cost.us)
	r.row.Allocs = max(r.row.Allocs, cost.allocs)
	r.row.Picks += picksPerRound
	r.total.hits += stats.hits
	r.total.fresh += stats.fresh
	return nil
}

func (r *pickRun) result() (PickRow, error) {
	row := r.row
	row.Us = Round(Median(r.us), 2)
	row.HitShare = Round(float64(r.total.hits)/float64(row.Picks), 3)
	row.NewShare = Round(float64(r.total.fresh)/float64(row.Picks), 3)
	if row.HitShare < 0.3 || row.NewShare < 0.4 || row.Us <= 0 {
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

func newPickLoad(workers int, policy, shadow string) (*picker.Picker, *pickLoad, error) {
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
	cfg.Policy, cfg.Shadow, cfg.OverlapWeight, cfg.Seed = policy, shadow, 20, 1
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
