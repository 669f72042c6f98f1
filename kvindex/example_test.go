package kvindex_test

import (
	"fmt"
	"time"

	"pointsman/kvindex"
)

// A worker stores a prompt of three blocks; another prompt shares two of them.
func ExampleNew() {
	index := kvindex.New(kvindex.DefaultConfig())
	worker := index.Instance("10.0.0.1:8000")
	feed := index.Feed("10.0.0.1:8000")
	now := time.Unix(1_800_000_000, 0)

	feed.Connected(now)
	feed.Apply(&kvindex.Batch{HasSeq: true, Seq: 0, Rank: -1, Events: []kvindex.Event{{
		Kind:      kvindex.Stored,
		Hashes:    []uint64{901, 902, 903}, // the engine's names
		Tokens:    []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		BlockSize: 4,
	}}}, now)

	prompt := kvindex.HashTokens(nil, 0, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 99, 98, 97, 96}, index.BlockSize(worker))
	var scratch kvindex.Scratch
	index.Lookup(prompt, &scratch)
	fmt.Println(scratch.Depth(worker), "of", len(prompt), "blocks,", index.Mode(worker, now))
	// Output: 2 of 3 blocks, exact
}

// A prompt that was just sent somewhere counts as being there.
func ExampleIndex_Predict() {
	index := kvindex.New(kvindex.DefaultConfig())
	worker := index.Instance("w")
	prompt := kvindex.HashTokens(nil, 0, make([]uint32, 64), 16)
	now := time.Unix(1_800_000_000, 0)

	var scratch kvindex.Scratch
	index.Predict(worker, prompt, now, 0)
	index.Lookup(prompt, &scratch)
	fmt.Println(scratch.Depth(worker), index.Mode(worker, now))

	later := now.Add(time.Minute)
	index.Expire(later)
	index.Lookup(prompt, &scratch)
	fmt.Println(scratch.Depth(worker), index.Mode(worker, later))
	// Output:
	// 4 predicted
	// 0 none
}

// A source that misses batches fills the gap by replay.
func ExampleFeed() {
	index := kvindex.New(kvindex.DefaultConfig())
	feed := index.Feed("w")
	now := time.Unix(1_800_000_000, 0)
	batch := func(seq uint64) *kvindex.Batch { return &kvindex.Batch{HasSeq: true, Seq: seq, Rank: -1} }

	feed.Apply(batch(0), now)
	if gap := feed.Apply(batch(3), now); gap != nil {
		fmt.Println("missed", gap.From, "to", gap.To)
		for seq := gap.From; seq <= gap.To; seq++ {
			feed.ApplyReplayed(batch(seq), now)
		}
	}
	fmt.Println(feed.Apply(batch(3), now) == nil, feed.Partial())
	// Output:
	// missed 1 to 2
	// true false
}

func ExampleHashTokens() {
	for _, h := range kvindex.HashTokens(nil, 0, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4) {
		fmt.Printf("%016x\n", h)
	}
	// Output:
	// 341839abbe30be0b
	// 37b6de0623bdb5ca
}
