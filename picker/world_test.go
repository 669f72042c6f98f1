package picker_test

import (
	"hash/fnv"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a picker with a fleet written by hand and a clock that stands still.
type world struct {
	testing.TB
	store *fleet.Store
	feed  *fleet.Feed
	index *kvindex.Index
	set   *breaker.Set
	reg   *prometheus.Registry
	p     *picker.Picker
	now   time.Time
}

func config(policy string, weight float64) picker.Config {
	cfg := picker.DefaultConfig()
	cfg.Policy, cfg.OverlapWeight, cfg.Seed = policy, weight, 1
	return cfg
}

func newWorld(tb testing.TB, cfg picker.Config, workers ...*fleet.Worker) *world {
	tb.Helper()
	breakers := breaker.DefaultConfig()
	breakers.Jitter = 0
	w := &world{
		TB: tb, store: new(fleet.Store), index: kvindex.New(kvindex.Config{}),
		set: breaker.NewSet(breakers), reg: prometheus.NewPedanticRegistry(), now: t0,
	}
	w.feed = fleet.NewFeed(w.store)
	w.feed.Replace(workers)
	p, err := picker.New(cfg, w.store, w.index, w.set)
	if err != nil {
		tb.Fatal(err)
	}
	w.p = p
	for _, room := range []interface {
		Register(reg prometheus.Registerer) error
	}{p, w.set} {
		if err := room.Register(w.reg); err != nil {
			tb.Fatal(err)
		}
	}
	return w
}

// worker is an active mixed worker of model m with blocks of 16 tokens.
func worker(id string) *fleet.Worker {
	return &fleet.Worker{ID: id, Host: id, Port: 9000, Model: "m", BlockSize: 16, DPRank: -1}
}

// workers is worker for each ID.
func workers(ids ...string) []*fleet.Worker {
	list := make([]*fleet.Worker, len(ids))
	for i, id := range ids {
		list[i] = worker(id)
	}
	return list
}

// tokens makes a prompt of named pieces: "sys:128+q1:32" is 128 tokens that all
// prompts beginning with "sys" share, then 32 of q1.
func tokens(tb testing.TB, prompt string) []uint32 {
	tb.Helper()
	var ids []uint32
	if prompt == "" {
		return nil
	}
	for piece := range strings.SplitSeq(prompt, "+") {
		name, length, _ := strings.Cut(piece, ":")
		n, err := strconv.Atoi(length)
		if err != nil {
			tb.Fatalf("prompt %q: %v", prompt, err)
		}
		h := fnv.New32a()
		h.Write([]byte(name))
		for i := range n {
			ids = append(ids, h.Sum32()+uint32(i)*2654435761)
		}
	}
	return ids
}

// request is a request of model m whose tokens are known.
func (w *world) request(prompt string) *picker.Request {
	w.Helper()
	req := &picker.Request{ID: "r", Model: "m", Reason: "exact"}
	w.fill(req, prompt)
	return req
}

// fill sets req's tokens and blocks.
func (w *world) fill(req *picker.Request, prompt string) {
	w.Helper()
	ids := tokens(w, prompt)
	req.Tokens, req.Blocks = len(ids), nil
	for _, size := range w.p.BlockSizes(req.Model, nil) {
		req.Blocks = append(req.Blocks, kvindex.Blocks{Size: size, Hashes: kvindex.HashTokens(nil, 0, ids, size)})
	}
}

// hold lets the engine of the target report the prompt's full blocks.
func (w *world) hold(key, prompt string, size int) {
	w.Helper()
	f := w.index.Feed(key)
	f.Connected(w.now)
	ids := tokens(w, prompt)
	hashes := kvindex.HashTokens(nil, 0, ids, size)
	gap := f.Apply(&kvindex.Batch{Rank: -1, Events: []kvindex.Event{{
		Kind: kvindex.Stored, Hashes: hashes, Tokens: ids[:len(hashes)*size], BlockSize: size,
	}}}, w.now)
	if gap != nil {
		w.Fatalf("hold %s: gap %v", key, gap)
	}
}

// pick picks, or fails the test.
func (w *world) pick(req *picker.Request) picker.Decision {
	w.Helper()
	d, err := w.p.Pick(w.now, req)
	if err != nil {
		w.Fatalf("pick: %v", err)
	}
	return d
}

// served picks, sees the first token and ends well.
func (w *world) served(req *picker.Request) picker.Decision {
	w.Helper()
	d := w.pick(req)
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	return d
}
