package picker_test

import (
	"fmt"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

// Two turns of a conversation: the second goes to the worker that served the
// first.
func ExamplePicker_Pick() {
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{
		{ID: "10.0.0.1:8000", Model: "llama", BlockSize: 4, DPRank: -1},
		{ID: "10.0.0.2:8000", Model: "llama", BlockSize: 4, DPRank: -1},
	})
	cfg := picker.DefaultConfig()
	cfg.OverlapWeight, cfg.Seed = 20, 1
	p, err := picker.New(cfg, store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	turn := func(tokens []uint32) picker.Decision {
		req := &picker.Request{Model: "llama", Tokens: len(tokens), Reason: "exact"}
		for _, size := range p.BlockSizes(req.Model, nil) {
			req.Blocks = append(req.Blocks, kvindex.Blocks{Size: size, Hashes: kvindex.HashTokens(nil, 0, tokens, size)})
		}
		d, err := p.Pick(now, req)
		if err != nil {
			fmt.Println(err)
			return d
		}
		d.FirstToken(now)                             // the engine answers
		d.Done(now.Add(time.Second), breaker.Success) // and is done
		return d
	}
	first := turn([]uint32{1, 2, 3, 4, 5, 6, 7, 8})
	second := turn([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	fmt.Println(first.HitTokens, second.HitTokens, first.Worker == second.Worker)
	// Output: 0 8 true
}

// A dry run says what a pick would do and why.
func ExamplePicker_Dry() {
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{
		{ID: "a", Model: "llama", DPRank: -1, Status: fleet.Draining},
		{ID: "b", Model: "llama", DPRank: -1},
	})
	p, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		fmt.Println(err)
		return
	}
	rec := p.Dry(time.Now(), &picker.Request{Model: "llama"})
	fmt.Println(rec.Chosen)
	for _, c := range rec.Candidates {
		fmt.Printf("%s cost=%g excluded=%q\n", c.Worker, c.Cost, c.Excluded)
	}
	// Output:
	// b
	// b cost=0 excluded=""
	// a cost=0 excluded="not_active"
}
