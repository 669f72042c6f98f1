//nolint:gosec // numbers of workers, ids and tokens are small or cut on purpose
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/internal/broker"
	"pointsman/kvindex"
	"pointsman/picker"
	natsreports "pointsman/plugins/reports/nats"
	"pointsman/reports"
)

// scaleRow is what came of one number of replicas.
type scaleRow struct {
	Hit   float64 `json:"hit_ratio"`
	Worst float64 `json:"worst_over_mean"` // tokens prefilled by the worker that did most, over the mean
	Picks float64 `json:"picks_per_s"`     // of one replica, one after the other
}

// scaleConfig is one run. Time runs some ten times as fast as in a real fleet.
type scaleConfig struct {
	policy  string
	weight  float64
	workers int
	rate    float64       // requests per second
	piece   time.Duration // to prefill 512 tokens
	decode  time.Duration
	report  time.Duration
	trace   indexTrace
}

// idTokens is how many tokens an id of a trace stands for.
const idTokens = blockTokens * blocksPerID

// Scale sends a trace to a fleet through 1, 2, 4 and 8 replicas of the picker, each
// of which sees its part of the requests and learns of the others by load reports
// over a real broker. Engines are simulated in this process, with caches that hold
// everything and KV events that need no time.
func Scale(ctx context.Context, args []string, out, log io.Writer) error {
	set := flag.NewFlagSet("bench scale", flag.ContinueOnError)
	set.SetOutput(log)
	path := set.String("trace", "", "JSONL trace with hash_ids; without it, drawn conversations")
	requests := set.Int("requests", 1500, "how many requests of the trace")
	c := scaleConfig{workers: 8, piece: 4 * time.Millisecond, decode: 40 * time.Millisecond}
	set.StringVar(&c.policy, "policy", picker.KVAware, "policy of the pickers")
	set.Float64Var(&c.weight, "weight", 20, "overlap weight, for policy kv-aware")
	set.Float64Var(&c.rate, "rate", 70, "requests per second")
	set.DurationVar(&c.report, "report", 5*time.Millisecond, "least time between two reports; what 50 ms are to a real fleet")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	c.trace = syntheticIndexTrace(*requests)
	if *path != "" {
		t, err := readIndexTrace(*path)
		if err != nil {
			return err
		}
		c.trace = t[:min(len(t), *requests)]
	}
	rows := map[string]scaleRow{}
	for _, n := range [...]int{1, 2, 4, 8} {
		row, err := c.run(ctx, n, log)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(log, "%d replicas: hit ratio %.3f, worst worker %.2f x mean, %.0f picks/s\n", n, row.Hit, row.Worst, row.Picks); err != nil {
			return err
		}
		rows[strconv.Itoa(n)] = row
	}
	return json.NewEncoder(out).Encode(map[string]any{"replicas": rows})
}

// scaleReplica is one picker with what feeds it.
type scaleReplica struct {
	id     string
	picker *picker.Picker
	index  *kvindex.Index
	feeds  map[string]*kvindex.Feed
	mu     sync.Mutex // of the feeds
	board  *reports.Board
}

// Others, First and Done implement [reports.Sink].
func (r *scaleReplica) Others(worker string, rank int, l reports.Other) {
	r.picker.SetExternal(worker, rank, picker.External{
		Requests: float64(l.Requests), Waiting: float64(l.Waiting), PrefillTokens: float64(l.PrefillTokens),
		Decoders: float64(l.Requests - l.Waiting), ContextTokens: float64(l.ContextTokens), ActiveTokens: float64(l.ActiveTokens), Rate: l.Rate,
	}, l.At)
}

// Sent implements a part of [reports.Sink].
func (r *scaleReplica) Sent(s *reports.Sent, at time.Time) {
	r.picker.Foretell(s.Worker, s.Rank, picker.Foreign(s.Ref), picker.Trail(s.Trail), at)
}

// Settled implements a part of [reports.Sink].
func (r *scaleReplica) Settled(ref reports.Ref, began bool, at time.Time) {
	r.picker.Settled(picker.Foreign(ref), began, at)
}
func (*scaleReplica) First(uint64, time.Time)       {}
func (*scaleReplica) Done(*reports.Done, time.Time) {}

// scaleWorker is a simulated engine and the forwarder beside it.
type scaleWorker struct {
	id    string
	tally *reports.Tally

	prefill sync.Mutex // one prompt at a time
	truth   sync.Mutex // of what follows
	have    map[uint64]bool
	coming  map[uint64]int // ids of requests on their way, by how many have them
	work    int            // tokens prefilled
}

// scaleRun is one run.
type scaleRun struct {
	scaleConfig

	replicas []*scaleReplica
	workers  map[string]*scaleWorker
	wg       sync.WaitGroup // of what runs until the end
	calls    sync.WaitGroup

	mu          sync.Mutex
	asked, hits int // tokens
	lost        lost
	failed      error
}

func (c scaleConfig) run(ctx context.Context, n int, log io.Writer) (scaleRow, error) {
	dir, err := os.MkdirTemp("", "pointsman-scale")
	if err != nil {
		return scaleRow{}, fmt.Errorf("scale: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, StoreDir: dir})
	if err != nil {
		return scaleRow{}, fmt.Errorf("scale: broker: %w", err)
	}
	broker.Start()
	defer broker.Shutdown()
	if !broker.ReadyForConnections(20 * time.Second) {
		return scaleRow{}, errors.New("scale: the broker does not start")
	}
	run := &scaleRun{scaleConfig: c, workers: map[string]*scaleWorker{}}
	running, cancel := context.WithCancel(ctx)
	defer run.wg.Wait()
	defer cancel()
	if err := run.start(running, broker.ClientURL(), n); err != nil {
		return scaleRow{}, err
	}
	if err := run.send(ctx); err != nil {
		return scaleRow{}, err
	}
	if _, err := fmt.Fprintln(log, run.lost.String()); err != nil {
		return scaleRow{}, err
	}
	return run.result(), run.failed
}

// start makes workers and replicas, and waits until every replica knows the others.
func (s *scaleRun) start(ctx context.Context, url string, n int) error {
	log := slog.New(slog.DiscardHandler)
	store := new(fleet.Store)
	var ws []*fleet.Worker
	cfg := reports.DefaultConfig()
	cfg.Interval = s.report
	for i := range s.scaleConfig.workers {
		w := &scaleWorker{id: fmt.Sprintf("10.0.0.%d:30000", i+1), have: map[uint64]bool{}, coming: map[uint64]int{}}
		w.tally = reports.NewTally(cfg, fmt.Sprintf("forwarder-%d", i))
		link, err := natsreports.New(broker.Config{Server: url}, nil, w.tally.Refresh, log)
		if err != nil {
			return fmt.Errorf("scale: %w", err)
		}
		s.wg.Go(func() { _ = link.Run(ctx) })
		s.wg.Go(func() { _ = w.tally.Run(ctx, link.Publish) })
		s.workers[w.id] = w
		ws = append(ws, &fleet.Worker{ID: w.id, Host: fmt.Sprintf("10.0.0.%d", i+1), Port: 30000, Model: "m", BlockSize: idTokens, DPRank: -1, KVEvents: "tcp://x:1"})
	}
	fleet.NewFeed(store).Replace(ws)
	for i := range n {
		r := &scaleReplica{id: fmt.Sprintf("replica-%d", i), index: kvindex.New(kvindex.DefaultConfig()), feeds: map[string]*kvindex.Feed{}}
		pc := picker.DefaultConfig()
		pc.Policy, pc.OverlapWeight = s.policy, s.weight
		p, err := picker.New(pc, store, r.index, breaker.NewSet(breaker.DefaultConfig()))
		if err != nil {
			return fmt.Errorf("scale: %w", err)
		}
		r.picker, r.board = p, reports.NewBoard(r.id, r)
		for _, w := range ws {
			r.feeds[w.ID] = r.index.Feed(w.ID)
			r.feeds[w.ID].Connected(time.Now())
		}
		link, err := natsreports.New(broker.Config{Server: url}, r.board, nil, log)
		if err != nil {
			return fmt.Errorf("scale: %w", err)
		}
		s.wg.Go(func() { _ = link.Run(ctx) })
		s.replicas = append(s.replicas, r)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("scale: %w", ctx.Err())
		case now := <-tick.C:
			know := 0
			for _, r := range s.replicas {
				if r.board.Replicas(now) == n && r.board.Sources() == len(ws) {
					know++
				}
			}
			if know == n {
				return nil
			}
		}
	}
}

// send sends the trace, at its rate.
func (s *scaleRun) send(ctx context.Context) error {
	gap := time.Duration(float64(time.Second) / s.rate)
	next := time.Now()
	for i, ids := range s.trace {
		next = next.Add(gap)
		wait := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			wait.Stop()
			s.calls.Wait()
			return fmt.Errorf("scale: %w", ctx.Err())
		case <-wait.C:
		}
		s.calls.Go(func() { s.call(i, ids) })
	}
	s.calls.Wait()
	return nil
}

// tokensOf are an id's tokens: the same for the same id, and no other's.
func tokensOf(ids []uint64) []uint32 {
	out := make([]uint32, 0, len(ids)*idTokens)
	for _, id := range ids {
		for k := range uint32(idTokens) {
			out = append(out, uint32(id)<<9|k)
		}
	}
	return out
}

// call is one request from pick to end.
func (s *scaleRun) call(i int, ids []uint64) {
	r := s.replicas[i%len(s.replicas)]
	tokens := tokensOf(ids)
	best := s.best(ids)
	req := &picker.Request{ID: strconv.Itoa(i), Model: "m", Tokens: len(tokens), Reason: "exact", Blocks: []kvindex.Blocks{{Size: idTokens, Hashes: kvindex.HashTokens(nil, 0, tokens, idTokens)}}}
	believed := r.believed(req.Blocks[0].Hashes)
	d, err := r.picker.Pick(time.Now(), req)
	if err != nil {
		s.mu.Lock()
		s.failed = fmt.Errorf("scale: pick: %w", err)
		s.mu.Unlock()
		return
	}
	w := s.workers[d.Worker.ID]
	w.expect(ids, 1)
	f := w.tally.Open(reports.Pick{Ref: reports.Ref{Picker: r.id, Pick: uint64(i + 1)}, Prompt: d.PromptTokens, Miss: d.MissTokens, Added: d.AddedTokens, Trail: reports.Trail(d.Trail())})
	f.At(time.Now(), w.id, -1, true)
	hit := s.serve(w, ids, tokens)
	w.expect(ids, -1)
	now := time.Now()
	f.First(now)
	d.FirstToken(now)
	time.Sleep(s.decode)
	now = time.Now()
	f.Close(now, &reports.Done{Status: 200})
	d.Done(now, breaker.Success)
	s.mu.Lock()
	s.asked, s.hits = s.asked+len(tokens), s.hits+hit*idTokens
	s.lost.count(len(ids), best, believed, d.HitTokens/idTokens, hit)
	s.mu.Unlock()
}

// serve prefills what the worker has not, tells all replicas of it, and returns how
// many ids it had.
func (s *scaleRun) serve(w *scaleWorker, ids []uint64, tokens []uint32) (hit int) {
	w.prefill.Lock()
	defer w.prefill.Unlock()
	w.truth.Lock()
	for hit < len(ids) && w.have[ids[hit]] {
		hit++
	}
	w.truth.Unlock()
	fresh := ids[hit:]
	time.Sleep(time.Duration(len(fresh)) * s.piece)
	w.work += len(fresh) * idTokens
	if len(fresh) == 0 {
		return hit
	}
	w.truth.Lock()
	for _, id := range fresh {
		w.have[id] = true
	}
	w.truth.Unlock()
	ev := kvindex.Event{Kind: kvindex.Stored, Tokens: tokens[hit*idTokens:], BlockSize: idTokens}
	for _, id := range fresh {
		ev.Hashes = append(ev.Hashes, id+1)
	}
	if hit > 0 {
		ev.Parent, ev.HasParent = ids[hit-1]+1, true
	}
	for _, r := range s.replicas {
		r.mu.Lock()
		gap := r.feeds[w.id].Apply(&kvindex.Batch{Rank: -1, Events: []kvindex.Event{ev}}, time.Now())
		r.mu.Unlock()
		if gap != nil {
			s.mu.Lock()
			s.failed = fmt.Errorf("scale: the index has a gap: %+v", *gap)
			s.mu.Unlock()
		}
	}
	return hit
}

// result sums up, and times picks.
func (s *scaleRun) result() scaleRow {
	worst, sum := 0, 0
	for _, w := range s.workers {
		worst, sum = max(worst, w.work), sum+w.work
	}
	row := scaleRow{Hit: float64(s.hits) / float64(max(s.asked, 1)), Worst: float64(worst) * float64(len(s.workers)) / float64(max(sum, 1))}
	tokens := tokensOf(s.trace[len(s.trace)-1])
	req := &picker.Request{ID: "p", Model: "m", Tokens: len(tokens), Reason: "exact", Blocks: []kvindex.Blocks{{Size: idTokens, Hashes: kvindex.HashTokens(nil, 0, tokens, idTokens)}}}
	const picks = 20_000
	began := time.Now()
	for range picks {
		if d, err := s.replicas[0].picker.Pick(time.Now(), req); err == nil {
			d.Done(time.Now(), breaker.Success)
		}
	}
	row.Picks = picks / time.Since(began).Seconds()
	return row
}
