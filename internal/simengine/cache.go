package simengine

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"pointsman/kvindex"
	"pointsman/wire"
)

// changes is what happened to a cache, in order. keys[i] belongs to events[i].
type changes struct {
	events []kvindex.Event
	keys   []wire.Keys
}

func (c *changes) add(e kvindex.Event, k wire.Keys) {
	c.events = append(c.events, e)
	c.keys = append(c.keys, k)
}

// block is one cached block. It is linked into the eviction list while no
// sequence holds it.
type block struct {
	hash       uint64
	ref        int
	orphan     bool // the cache was cleared while a sequence held it
	prev, next *block
}

// cache is a block KV cache with prefix reuse. A block is in it once all its
// tokens have been computed; what a sequence has reserved but not yet filled is
// counted in private. Blocks that nobody holds stay until memory is needed and
// leave oldest first, a chain's tail before its head.
//
// Every change of content is recorded in order; take hands the record over. A
// cache has no lock: its scheduler's guards it.
type cache struct {
	size, capacity int
	blocks         map[uint64]*block
	lru            block // sentinel: lru.next leaves first
	idle           int   // blocks in the list
	private        int
	epoch          int // counts clears
	changed        changes

	queries, hits uint64 // tokens looked up and found
}

func newCache(size, capacity int) *cache {
	c := &cache{size: size, capacity: capacity, blocks: make(map[uint64]*block)}
	c.lru.prev, c.lru.next = &c.lru, &c.lru
	return c
}

// lease is what one sequence holds in the cache.
type lease struct {
	held    []*block // a prefix of the sequence's blocks
	private int
	epoch   int
}

// chainHashes returns the engine's own chained hash of each full block. It
// depends on the engine's seed and on what keeps prompts apart.
func chainHashes(seed uint64, keys wire.Keys, tokens []uint32, size int) []uint64 {
	out := make([]uint64, 0, len(tokens)/size)
	prev := seed ^ xxh3.HashString(keys.LoRA+"\x00"+keys.Salt)
	buf := make([]byte, 8+4*size)
	for len(tokens) >= size {
		binary.LittleEndian.PutUint64(buf, prev)
		for i, t := range tokens[:size] {
			binary.LittleEndian.PutUint32(buf[8+4*i:], t)
		}
		prev = xxh3.HashSeed(buf, seed)
		out = append(out, prev)
		tokens = tokens[size:]
	}
	return out
}

// match returns how many leading blocks of hashes are cached.
func (c *cache) match(hashes []uint64) int {
	for i, h := range hashes {
		if _, ok := c.blocks[h]; !ok {
			return i
		}
	}
	return len(hashes)
}

// used returns the blocks that running sequences hold or have reserved.
func (c *cache) used() int { return len(c.blocks) - c.idle + c.private }

// acquire pins the cached part of a prompt of promptTokens tokens and reserves
// total blocks in all. It reports false, having changed nothing, when the memory
// that could be freed is not enough. At least one prompt token is always left to
// compute, as an engine needs it to produce the first output.
func (c *cache) acquire(hashes []uint64, promptTokens, total int) (lease, bool) {
	full := min(len(hashes), max(0, promptTokens-1)/c.size)
	hit := c.match(hashes[:full])
	pinned := 0 // of the hit blocks, those that are evictable until we pin them
	for _, h := range hashes[:hit] {
		if c.blocks[h].ref == 0 {
			pinned++
		}
	}
	need := total - hit
	if need > c.capacity-c.used()-pinned {
		return lease{}, false
	}
	l := lease{held: make([]*block, 0, total), private: need, epoch: c.epoch}
	for _, h := range hashes[:hit] {
		b := c.blocks[h]
		c.pin(b)
		l.held = append(l.held, b)
	}
	c.private += need
	for len(c.blocks)+c.private > c.capacity {
		c.evict()
	}
	c.queries += uint64(promptTokens) //nolint:gosec // not negative
	c.hits += uint64(hit * c.size)    //nolint:gosec // not negative
	return l, true
}

func (c *cache) pin(b *block) {
	if b.ref == 0 {
		b.prev.next, b.next.prev = b.next, b.prev
		b.prev, b.next = nil, nil
		c.idle--
	}
	b.ref++
}

// evict drops the block that has been idle longest.
func (c *cache) evict() {
	b := c.lru.next
	b.prev.next, b.next.prev = b.next, b.prev
	c.idle--
	delete(c.blocks, b.hash)
	ev := c.changed.events
	if n := len(ev); n > 0 && ev[n-1].Kind == kvindex.Removed {
		ev[n-1].Hashes = append(ev[n-1].Hashes, b.hash)
		return
	}
	c.changed.add(kvindex.Event{Kind: kvindex.Removed, Hashes: []uint64{b.hash}, Tier: kvindex.Device}, wire.Keys{})
}

// commit publishes the blocks of l that computed tokens have filled. tokens and
// hashes are the sequence's and must not change afterwards. After a clear, the
// sequence's blocks stay private: their parents are gone.
func (c *cache) commit(l *lease, hashes []uint64, tokens []uint32, computed int, keys wire.Keys) {
	if l.epoch != c.epoch {
		return
	}
	for i := len(l.held); i < len(hashes) && (i+1)*c.size <= computed; i++ {
		l.private--
		c.private--
		if b, ok := c.blocks[hashes[i]]; ok { // another sequence was first
			c.pin(b)
			l.held = append(l.held, b)
			continue
		}
		b := &block{hash: hashes[i], ref: 1}
		c.blocks[b.hash] = b
		l.held = append(l.held, b)
		c.stored(hashes, tokens, i, keys)
	}
}

// stored records block i of a sequence, growing the last event when it is the
// same sequence's block i-1.
func (c *cache) stored(hashes []uint64, tokens []uint32, i int, keys wire.Keys) {
	if n := len(c.changed.events); n > 0 && i > 0 {
		last := &c.changed.events[n-1]
		k := len(last.Hashes)
		if last.Kind == kvindex.Stored && last.Hashes[k-1] == hashes[i-1] {
			last.Hashes = append(last.Hashes, hashes[i])
			last.Tokens = append(last.Tokens, tokens[i*c.size:(i+1)*c.size]...)
			return
		}
	}
	e := kvindex.Event{
		Kind:      kvindex.Stored,
		Hashes:    []uint64{hashes[i]},
		Tokens:    slices.Clone(tokens[i*c.size : (i+1)*c.size]),
		BlockSize: c.size,
		Tier:      kvindex.Device,
	}
	if i > 0 {
		e.Parent, e.HasParent = hashes[i-1], true
	}
	c.changed.add(e, keys)
}

// release gives back everything l holds. Tails become evictable before heads.
func (c *cache) release(l *lease) {
	for _, b := range slices.Backward(l.held) {
		if b.ref--; b.ref > 0 {
			continue
		}
		if b.orphan {
			c.private--
			continue
		}
		b.prev, b.next = c.lru.prev, &c.lru
		b.prev.next, b.next.prev = b, b
		c.idle++
	}
	c.private -= l.private
	*l = lease{}
}

// clear empties the cache. Blocks that sequences hold keep their memory until
// released but can't be hit any more.
func (c *cache) clear() {
	for _, b := range c.blocks {
		if b.ref > 0 {
			b.orphan = true
			c.private++
		}
	}
	clear(c.blocks)
	c.lru.prev, c.lru.next = &c.lru, &c.lru
	c.idle = 0
	c.epoch++
	c.changed.add(kvindex.Event{Kind: kvindex.Cleared}, wire.Keys{})
}

// take returns the changes since the last call.
func (c *cache) take() changes {
	ch := c.changed
	c.changed = changes{}
	return ch
}
