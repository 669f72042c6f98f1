package lab

import "slices"

// cache is one engine's block cache: least recently used blocks leave first, of
// one sequence its end before its beginning; blocks of running sequences stay.
type cache struct {
	capacity int
	free     int             // blocks that hold nothing
	at       map[int32]int32 // node to slot
	slots    []slot          // slot 0 is the list's head
	unused   []int32
	idle     int     // cached blocks that no sequence holds
	evicted  []int32 // nodes, until taken
}

// slot is one cached block; those that no sequence holds form a ring, the one to
// leave next first.
type slot struct {
	node       int32
	refs       int32
	prev, next int32
}

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, free: capacity, at: make(map[int32]int32), slots: make([]slot, 1)}
}

// lookup returns how many leading blocks are cached, at most limit.
func (c *cache) lookup(blocks []int32, limit int) int {
	n := 0
	for n < min(len(blocks), limit) {
		if _, ok := c.at[blocks[n]]; !ok {
			break
		}
		n++
	}
	return n
}

// acquire holds the first hit blocks, which are cached, and takes total-hit more
// for what is to be computed. It reports whether there was room.
func (c *cache) acquire(blocks []int32, hit, total int) bool {
	idle := 0
	for _, b := range blocks[:hit] {
		if c.slots[c.at[b]].refs == 0 {
			idle++
		}
	}
	if c.free+c.idle-idle < total-hit {
		return false
	}
	for _, b := range blocks[:hit] {
		c.hold(c.at[b])
	}
	for need := total - hit; need > c.free; {
		c.evict()
	}
	c.free -= total - hit
	return true
}

func (c *cache) hold(i int32) {
	s := &c.slots[i]
	if s.refs++; s.refs == 1 {
		c.slots[s.prev].next, c.slots[s.next].prev = s.next, s.prev
		c.idle--
	}
}

func (c *cache) evict() {
	i := c.slots[0].next
	s := &c.slots[i]
	c.slots[0].next, c.slots[s.next].prev = s.next, 0
	c.idle--
	c.free++
	delete(c.at, s.node)
	c.evicted = append(c.evicted, s.node)
	c.unused = append(c.unused, i)
}

// commit makes one taken block the cached one of a node. It reports whether the
// sequence's own block is the cached one: another may have computed the same
// meanwhile, and is held too then.
func (c *cache) commit(n int32) (own bool) {
	if i, ok := c.at[n]; ok {
		c.hold(i)
		return false
	}
	var i int32
	if last := len(c.unused) - 1; last >= 0 {
		i, c.unused = c.unused[last], c.unused[:last]
	} else {
		i = int32(len(c.slots)) //nolint:gosec // at most capacity
		c.slots = append(c.slots, slot{})
	}
	c.slots[i] = slot{node: n, refs: 1}
	c.at[n] = i
	return true
}

// release lets go of blocks that are held, and of spare taken ones.
func (c *cache) release(blocks []int32, spare int) {
	c.free += spare
	for _, b := range slices.Backward(blocks) {
		i := c.at[b]
		s := &c.slots[i]
		if s.refs--; s.refs > 0 {
			continue
		}
		s.next, s.prev = 0, c.slots[0].prev
		c.slots[s.prev].next, c.slots[0].prev = i, i
		c.idle++
	}
}

// used returns the share of the blocks that running sequences hold.
func (c *cache) used() float64 { return 1 - float64(c.free+c.idle)/float64(c.capacity) }
