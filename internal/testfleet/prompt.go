package testfleet

import "pointsman/kvindex"

// BlockSize is that of a [Prompt], in tokens.
const BlockSize = 4

// Prompt is a conversation of its own, as an engine's cache events tell of it and as
// the index looks it up.
type Prompt struct {
	Tokens []uint32
	Hashes []uint64       // the engine's, one a block
	Ours   []kvindex.Hash // one a block
}

// NewPrompt returns the prompt of n blocks that base tells apart from all others.
func NewPrompt(base uint32, n int) *Prompt {
	p := &Prompt{}
	for i := range uint32(n) * BlockSize { //nolint:gosec // a handful
		p.Tokens = append(p.Tokens, base*1000+i)
	}
	for i := range uint64(n) { //nolint:gosec // as above
		p.Hashes = append(p.Hashes, uint64(base)<<32|i)
	}
	p.Ours = kvindex.HashTokens(nil, 0, p.Tokens, BlockSize)
	return p
}

// Stored is the batch of an engine without ranks that took the blocks from..to
// (excluded) into its cache, by its clock at.
func (p *Prompt) Stored(at float64, from, to int) *kvindex.Batch {
	e := kvindex.Event{Hashes: p.Hashes[from:to], Tokens: p.Tokens[from*BlockSize : to*BlockSize], BlockSize: BlockSize}
	if from > 0 {
		e.HasParent, e.Parent = true, p.Hashes[from-1]
	}
	return &kvindex.Batch{Rank: -1, At: at, Events: []kvindex.Event{e}}
}

// Removed is the batch that dropped them.
func (p *Prompt) Removed(from, to int) *kvindex.Batch {
	return &kvindex.Batch{Rank: -1, At: 1, Events: []kvindex.Event{{Kind: kvindex.Removed, Hashes: p.Hashes[from:to]}}}
}
