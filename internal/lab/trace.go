package lab

import (
	"errors"
	"fmt"
	"time"

	"pointsman/kvindex"
)

// Bounds of what is held in memory. A trace that has more is cut by
// [ReadConfig].Requests, or refused.
const (
	MaxRequests = 2_000_000
	maxBlocks   = 64_000_000 // of all prompts together
	maxTokens   = 4_000_000  // of one prompt or answer
)

// Request is one request of a trace.
type Request struct {
	At     time.Duration // when it is sent, from the start of the trace
	Prompt int           // tokens
	Output int           // tokens, at least 1
	Probe  bool          // of an extra burst: measured apart

	blocks []int32        // nodes of the prompt's full blocks
	hashes []kvindex.Hash // the same, as the router sees them
}

// Trace is requests in the order of their times, with the prefixes they share.
// It is not changed once it is made.
type Trace struct {
	Name        string
	BlockTokens int // tokens of a block: the engines' page size
	Requests    []Request

	nodes []node // every distinct prefix
	warm  int    // the first requests, which are not measured
}

// node is one block with all that is before it.
type node struct {
	hash   kvindex.Hash
	parent int32 // -1 for none
	id     uint64
}

// Duration returns the time between the first request and the last.
func (t *Trace) Duration() time.Duration {
	if len(t.Requests) == 0 {
		return 0
	}
	return t.Requests[len(t.Requests)-1].At - t.Requests[0].At
}

// UniqueBlocks returns how many different blocks the prompts have.
func (t *Trace) UniqueBlocks() int { return len(t.nodes) }

// Ceiling returns the share of the prompt tokens that one shared cache which
// forgets nothing would have had: no policy can hit more.
func (t *Trace) Ceiling() float64 {
	seen := make([]bool, len(t.nodes))
	var hit, all int64
	for i := range t.Requests {
		r := &t.Requests[i]
		all += int64(r.Prompt)
		following := true
		for k, b := range r.blocks {
			following = following && seen[b] && (k+1)*t.BlockTokens < r.Prompt
			if following {
				hit += int64(t.BlockTokens)
			}
			seen[b] = true
		}
	}
	if all == 0 {
		return 0
	}
	return float64(hit) / float64(all)
}

// Means returns the mean prompt and answer in tokens.
func (t *Trace) Means() (prompt, output float64) {
	for i := range t.Requests {
		prompt += float64(t.Requests[i].Prompt)
		output += float64(t.Requests[i].Output)
	}
	n := float64(max(1, len(t.Requests)))
	return prompt / n, output / n
}

// largest returns the most blocks that one request occupies.
func (t *Trace) largest() (blocks, request int) {
	for i := range t.Requests {
		r := &t.Requests[i]
		if n := blocksFor(r.Prompt+r.Output, t.BlockTokens); n > blocks {
			blocks, request = n, i
		}
	}
	return blocks, request
}

func blocksFor(tokens, size int) int { return (tokens + size - 1) / size }

// builder makes a trace of requests that come in order.
type builder struct {
	t      *Trace
	at     map[link]int32
	total  int
	tokens []uint32
}

// link is a block by what is before it and its content.
type link struct {
	parent int32
	id     uint64
}

func newBuilder(name string, blockTokens int) *builder {
	return &builder{
		t:      &Trace{Name: name, BlockTokens: blockTokens},
		at:     map[link]int32{},
		tokens: make([]uint32, blockTokens),
	}
}

var errTooMuch = errors.New("more than fits in memory: take the first so many with --requests")

// add appends a request whose prompt's blocks have the given contents. Contents
// beyond the prompt's full blocks are ignored: an engine caches full blocks only.
func (b *builder) add(r Request, ids []uint64) error {
	full := min(len(ids), r.Prompt/b.t.BlockTokens)
	if b.total += full; b.total > maxBlocks || len(b.t.Requests) >= MaxRequests {
		return errTooMuch
	}
	r.blocks = make([]int32, full)
	r.hashes = make([]kvindex.Hash, full)
	parent := int32(-1)
	for i, id := range ids[:full] {
		n, ok := b.at[link{parent, id}]
		if !ok {
			n = int32(len(b.t.nodes)) //nolint:gosec // at most maxBlocks
			b.at[link{parent, id}] = n
			b.t.nodes = append(b.t.nodes, node{hash: b.hash(parent, id), parent: parent, id: id})
		}
		r.blocks[i], r.hashes[i] = n, b.t.nodes[n].hash
		parent = n
	}
	b.t.Requests = append(b.t.Requests, r)
	return nil
}

// hash is the chained hash of a block, made as the router makes it.
func (b *builder) hash(parent int32, id uint64) kvindex.Hash {
	seed := kvindex.Hash(0)
	if parent >= 0 {
		seed = b.t.nodes[parent].hash
	}
	writeTokens(b.tokens, id)
	var out [1]kvindex.Hash
	return kvindex.HashTokens(out[:0], seed, b.tokens, b.t.BlockTokens)[0]
}

// writeTokens makes a block's tokens of its content's number: any that differ when
// the numbers do. The rest of dst is left as it is, zero.
func writeTokens(dst []uint32, id uint64) {
	dst[0] = uint32(id) //nolint:gosec // the lower half
	if len(dst) > 1 {
		dst[1] = uint32(id >> 32)
	}
}

// done returns the trace. warm is the share of requests that only warm the caches.
func (b *builder) done(warm float64) (*Trace, error) {
	t := b.t
	if len(t.Requests) == 0 {
		return nil, fmt.Errorf("%s: no requests in it", t.Name)
	}
	t.warm = min(len(t.Requests)-1, int(warm*float64(len(t.Requests))))
	return t, nil
}
