// Package kvindex knows which prompt blocks each target (a worker, or one rank
// of it) has in its KV cache.
//
// An event's way: plugins/kvevents (bytes off ZMQ or NATS) -> wire.DecodeBatch ->
// [Feed.Apply]. A request's way: [HashTokens], then [Index.Lookup] once per pick;
// [Index.Predict] at the pick and [Index.Present] at the first token.
//
// # What is kept
//
// A block is named by the chained XXH3 hash of its tokens ([HashTokens]); the
// engine's own hash is only a handle for parents and removals. Each target has
// two holdings. The exact one follows the engine's events. The predicted one
// holds what was routed there and expires. [Scratch.Depth] is the larger of both.
//
// Blocks of one chain lie one after the other in runs of at most 512, stored
// once for all targets; a target's holding of a run is one number, how many
// leading blocks of it the target has, plus a bitmap while there are holes. A
// chained hash that is equal at position k proves that all blocks before it are
// equal, so a lookup compares one hash per run, not one per block.
//
// # Rules for events
//
//   - The event's block size counts; a registered one is never used. A target
//     whose events change their block size starts over, and that is counted.
//   - A first block is chained from Event.Extra (0 when absent), any other from
//     its parent. An event with an unknown parent is dropped, counted, and makes
//     the view partial ([Feed.Partial]) until the cache is known to be empty.
//   - An event whose number of hashes is not its number of full token blocks is
//     skipped and counted. (Infera adds its blocks to the view, but then can
//     never remove them: events.py.)
//   - A block is held while one engine hash that names it is on at least one
//     tier. Storing the same hash on the same tier again changes nothing.
//   - What an engine removes is also dropped from the predictions, together with
//     the predicted blocks that follow it in the same run.
//   - Pairs of MTP tokens and cache groups are the decoder's business.
//
// # Concurrency
//
// Lookup, Depth, Mode and BlockSize take no lock and never wait for a writer.
// Each needs its own [Scratch]. A lookup is not a snapshot: each (target, depth)
// was true at some moment during the lookup, for each run it passed; different
// targets and runs may be seen at different moments.
//
// All methods may be called from any goroutine. Batches of one target must
// arrive in order, so one goroutine should own a Feed. Writers share one lock,
// held for at most a few hundred blocks at a time. Nothing here starts a
// goroutine, reads a clock or does I/O: expiry follows the now of the calls.
//
// # Collisions
//
// XXH3 is not keyed: whoever chooses tokens can make two prompts share a hash. A
// collision makes a router prefer the wrong worker; it can never change what an
// engine answers, because engines check blocks by their own hashes.
package kvindex
