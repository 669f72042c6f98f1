package picker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

// TestConcurrent picks, answers and ends from many goroutines while the fleet
// changes all the time. At the end every load is exactly zero, on workers that
// stayed and on those that left with requests in flight and came back.
func TestConcurrent(t *testing.T) {
	for _, policy := range picker.Policies() {
		t.Run(policy, func(t *testing.T) { concurrent(t, policy) })
	}
}

func concurrent(t *testing.T, policy string) {
	t.Helper()
	const size, goroutines, requests = 8, 8, 400
	all := make([]*fleet.Worker, 12)
	for i := range all {
		all[i] = worker(fmt.Sprint("w", i))
		all[i].BlockSize = size
		if i%4 == 3 {
			all[i].DPSize = 2
		}
	}
	w := newWorld(t, config(policy, 20), all...)
	ctx, cancel := context.WithCancel(t.Context())
	var background, clients sync.WaitGroup
	background.Go(func() {
		if err := w.p.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	background.Go(func() { churn(ctx, w, all) })
	background.Go(func() {
		for ctx.Err() == nil {
			w.p.Records()
			w.p.Held(time.Now(), 0)
			w.p.BlockSizes("m", nil)
			w.p.Dry(time.Now(), &picker.Request{Model: "m"})
			if _, err := w.reg.Gather(); err != nil {
				t.Errorf("gather: %v", err)
			}
		}
	})
	var served atomic.Int64
	for g := range goroutines {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			prompts := newPrompts(rand.New(rand.NewPCG(uint64(g%2), 4)), size)
			var open []picker.Decision
			for range requests {
				p := prompts.next()
				req := &picker.Request{ID: "r", Model: "m", Tokens: len(p.tokens), Blocks: []kvindex.Blocks{{Size: size, Hashes: p.hashes}}}
				var d picker.Decision
				var err error
				if rng.IntN(10) == 0 {
					d, err = w.p.Direct(time.Now(), fmt.Sprint("w", rng.IntN(len(all))), "", req)
				} else {
					d, err = w.p.Pick(time.Now(), req)
				}
				if err == nil {
					served.Add(1)
					open = append(open, d)
				}
				if len(open) > 3 {
					end(rng, &open)
				}
			}
			for len(open) > 0 {
				end(rng, &open)
			}
		})
	}
	clients.Wait()
	cancel()
	background.Wait()
	w.feed.Replace(all)
	for _, h := range w.p.Held(time.Now(), 0) {
		t.Errorf("still held: %+v", h)
	}
	checkIdle(t, w)
	if served.Load() < goroutines*requests/2 {
		t.Errorf("only %d of %d requests were served", served.Load(), goroutines*requests)
	}
}

func end(rng *rand.Rand, open *[]picker.Decision) {
	k := rng.IntN(len(*open))
	d := (*open)[k]
	*open = append((*open)[:k], (*open)[k+1:]...)
	var wg sync.WaitGroup
	copied := d
	if rng.IntN(3) > 0 {
		wg.Go(func() { copied.FirstToken(time.Now()) }) // races with the end, as streams do
	}
	d.Done(time.Now(), breaker.Outcome(rng.IntN(3)))
	wg.Wait()
}

// churn takes workers out, drains them and puts them back until ctx is done.
func churn(ctx context.Context, w *world, all []*fleet.Worker) {
	rng := rand.New(rand.NewPCG(9, 9))
	for ctx.Err() == nil {
		victim := all[rng.IntN(len(all)-2)] // two stay
		switch rng.IntN(3) {
		case 0:
			w.feed.Delete(victim.ID)
		case 1:
			drains := *victim
			drains.Status = fleet.Draining
			w.feed.Put(&drains)
		default:
			w.feed.Put(victim)
		}
	}
}

// checkIdle fails unless every target of the fleet has no load whatsoever.
func checkIdle(t *testing.T, w *world) {
	t.Helper()
	for _, c := range w.p.Dry(time.Now(), &picker.Request{Model: "m"}).Candidates {
		if c.Active != 0 || c.Requests != 0 || c.Waiting != 0 || c.Decoders != 0 || c.Context != 0 {
			t.Errorf("at the end: %+v", c)
		}
	}
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "infera_policy_active_blocks", "pointsman_router_in_flight", "pointsman_router_waiting_tokens", "pointsman_router_oldest_reservation_seconds":
			for _, m := range f.GetMetric() {
				if m.GetGauge().GetValue() != 0 {
					t.Errorf("at the end %s is %v", f.GetName(), m)
				}
			}
		}
	}
}

// Concurrent picks see each other's reservations: they never herd (Infera P5). Of
// other routers' formulae that is not asked.
func TestSimultaneousPicksSpread(t *testing.T) {
	ids := []string{"A", "B", "C", "D", "E", "F", "G", "H"}
	for _, policy := range []string{picker.KVAware, picker.LeastLatency, picker.RoundRobin, picker.LeastLoad} {
		w := newWorld(t, config(policy, 20), workers(ids...)...)
		reqs := make([]*picker.Request, 400)
		for i := range reqs {
			reqs[i] = w.request(fmt.Sprintf("sys:4096+own%d:1024", i))
		}
		var mu sync.Mutex
		got := map[string]int{}
		var wg sync.WaitGroup
		for _, req := range reqs {
			wg.Go(func() {
				d, err := w.p.Pick(w.now, req)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got[d.Worker.ID]++
			})
		}
		wg.Wait()
		for _, id := range ids {
			if got[id] < 45 || got[id] > 55 {
				t.Errorf("%s: 400 at once went to %v, want some 50 each", policy, got)
				break
			}
		}
	}
}

// The prefix of a burst is on every worker that took part: the requests that
// follow hit it.
func TestHitsAfterABurst(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 20), workers("A", "B", "C", "D", "E", "F", "G", "H")...)
	var burst []picker.Decision
	for i := range 400 {
		burst = append(burst, w.pick(w.request(fmt.Sprintf("sys:4096+own%d:64", i))))
	}
	for i := range burst {
		burst[i].FirstToken(w.now)
		burst[i].Done(w.now, breaker.Success)
	}
	hit, total := 0, 0
	for i := range 400 {
		req := w.request(fmt.Sprintf("sys:4096+next%d:64", i))
		d := w.served(req)
		hit, total = hit+d.HitTokens, total+req.Tokens
	}
	if ratio := float64(hit) / float64(total); ratio < 0.95 {
		t.Errorf("hit ratio %.3f of the following 400, want 0.95 of which 0.985 can be had", ratio)
	}
}
