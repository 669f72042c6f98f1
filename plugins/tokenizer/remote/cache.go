package remote

import (
	"container/list"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// cacheKey names a question and the tokenizer it was for. Two questions with one
// key are as good as impossible by chance, and the seed is not known to clients.
type cacheKey = xxh3.Uint128

// entryBytes is the memory of an entry besides its ids, about.
const entryBytes = 240

type entry struct {
	key  cacheKey
	ids  []uint32
	born time.Time
}

func (e *entry) bytes() int { return entryBytes + 4*cap(e.ids) }

// call is a question that is being asked. Its fields are set before done is
// closed.
type call struct {
	done chan struct{}
	ids  []uint32
	ok   bool
}

// cache keeps the answers used last within a number of bytes, and knows which
// questions are being asked.
type cache struct {
	limit int
	ttl   time.Duration

	mu      sync.Mutex
	entries map[cacheKey]*list.Element // of *entry
	recent  list.List                  // most recent first
	used    int
	asking  map[cacheKey]*call
}

func newCache(limit int, ttl time.Duration) *cache {
	return &cache{limit: limit, ttl: ttl, entries: map[cacheKey]*list.Element{}, asking: map[cacheKey]*call{}}
}

// get appends a known answer to dst. Without one it returns the call that asks
// the question; if lead, that call is the caller's own, who must end it.
func (c *cache) get(key cacheKey, now time.Time, dst []uint32) (ids []uint32, asking *call, lead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.entries[key]; el != nil {
		e := el.Value.(*entry)
		if now.Sub(e.born) < c.ttl {
			c.recent.MoveToFront(el)
			return append(dst, e.ids...), nil, false
		}
		c.drop(el)
	}
	if asking = c.asking[key]; asking != nil {
		return dst, asking, false
	}
	asking = &call{done: make(chan struct{})}
	c.asking[key] = asking
	return dst, asking, true
}

// end ends the call for key: with its answer if ok, which is kept. ids stays the
// caller's.
func (c *cache) end(key cacheKey, asked *call, now time.Time, ids []uint32, ok bool) {
	if asked.ok = ok; ok {
		asked.ids = append(make([]uint32, 0, len(ids)), ids...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asking, key)
	close(asked.done)
	e := &entry{key: key, ids: asked.ids, born: now}
	if !ok || e.bytes() > c.limit {
		return
	}
	c.entries[key] = c.recent.PushFront(e)
	c.used += e.bytes()
	for c.used > c.limit {
		c.drop(c.recent.Back())
	}
}

func (c *cache) drop(el *list.Element) {
	e := c.recent.Remove(el).(*entry)
	delete(c.entries, e.key)
	c.used -= e.bytes()
}

// bytes returns the memory in use.
func (c *cache) bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
