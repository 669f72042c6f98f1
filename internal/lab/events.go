package lab

import "pointsman/kvindex"

// batch is what one step of an engine changed in its cache, on its way to the
// routers.
type batch struct {
	stored  []int32 // nodes, in the order in which they were computed
	removed []int32
	cleared bool
}

// publisher turns batches into the messages that feeds take. It reuses its memory.
type publisher struct {
	t      *Trace
	tokens []uint32
	hashes []uint64
	gone   []uint64
	events []kvindex.Event
	free   []*batch
}

func (p *publisher) take(w *worker) *batch {
	if len(w.stored) == 0 && len(w.cache.evicted) == 0 {
		return nil
	}
	var b *batch
	if last := len(p.free) - 1; last >= 0 {
		b, p.free = p.free[last], p.free[:last]
	} else {
		b = new(batch)
	}
	b.stored = append(b.stored[:0], w.stored...)
	b.removed = append(b.removed[:0], w.cache.evicted...)
	b.cleared = false
	w.stored, w.cache.evicted = w.stored[:0], w.cache.evicted[:0]
	return b
}

// encode returns b as events: blocks that follow each other are one, as engines
// report a chunk. What was evicted made room for what was stored, so it comes first.
// The engine's own name of a block is the complement of the router's hash.
func (p *publisher) encode(b *batch) kvindex.Batch {
	p.events = p.events[:0]
	if b.cleared {
		p.events = append(p.events, kvindex.Event{Kind: kvindex.Cleared})
	}
	p.gone = p.gone[:0]
	for _, n := range b.removed {
		p.gone = append(p.gone, ^p.t.nodes[n].hash)
	}
	if len(p.gone) > 0 {
		p.events = append(p.events, kvindex.Event{Kind: kvindex.Removed, Hashes: p.gone})
	}
	size := p.t.BlockTokens
	if need := len(b.stored) * size; len(p.tokens) < need {
		p.tokens = make([]uint32, need)
	}
	p.hashes = p.hashes[:0]
	for i, n := range b.stored {
		writeTokens(p.tokens[i*size:(i+1)*size], p.t.nodes[n].id)
		p.hashes = append(p.hashes, ^p.t.nodes[n].hash)
	}
	for from := 0; from < len(b.stored); {
		to := from + 1
		for to < len(b.stored) && p.t.nodes[b.stored[to]].parent == b.stored[to-1] {
			to++
		}
		e := kvindex.Event{Kind: kvindex.Stored, Hashes: p.hashes[from:to], Tokens: p.tokens[from*size : to*size], BlockSize: size}
		if parent := p.t.nodes[b.stored[from]].parent; parent >= 0 {
			e.Parent, e.HasParent = ^p.t.nodes[parent].hash, true
		}
		p.events = append(p.events, e)
		from = to
	}
	return kvindex.Batch{Rank: -1, Events: p.events}
}
