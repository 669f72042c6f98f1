//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import (
	"sync"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// PrefixCache remembers the ids of stretches of text, so that a conversation that
// grows costs its new turn. It is bounded; what is not used falls out first.
//
// A text is cut about every KiB, at its start every 256 bytes, at places where the tokens on either side do not
// depend on the other side, and each stretch is remembered by a 128 bit hash of
// its bytes, seeded per tokenizer. A stretch is therefore found again wherever it
// stands. What follows the last such place is encoded anew each time.
//
// It may be shared by goroutines and tokenizers.
type PrefixCache struct {
	step   int // the least size of a stretch in bytes
	shards [prefixShards]prefixShard
}

const (
	prefixShards = 16
	stretchBytes = 1024
	leastRing    = 1 << 15
)

type prefixShard struct {
	mu    sync.Mutex
	at    map[xxh3.Uint128]prefixEntry // guarded by mu
	ids   []uint32                     // guarded by mu: a ring
	order []prefixKeep                 // guarded by mu: a queue, oldest at tail
	head  int                          // guarded by mu: next free place of ids
	tail  int                          // guarded by mu: of order
	next  uint64                       // guarded by mu: ids written so far
}

// prefixEntry is where a stretch's ids are.
type prefixEntry struct {
	from, n int
	age     uint64 // prefixShard.next when it was written
}

type prefixKeep struct {
	key xxh3.Uint128
	age uint64
}

// NewPrefixCache returns a cache that holds at most about size bytes. A cached id
// costs 4 bytes, a stretch about 100 more.
func NewPrefixCache(size int) *PrefixCache {
	c := &PrefixCache{step: stretchBytes}
	for i := range c.shards {
		s := &c.shards[i]
		s.at = map[xxh3.Uint128]prefixEntry{}
		s.ids = make([]uint32, max(size/prefixShards/5, leastRing))
	}
	return c
}

// Encode is [Tokenizer.Encode] of t, taking what it can from the cache.
func (c *PrefixCache) Encode(t *Tokenizer, dst []uint32, text []byte, specials Specials) ([]uint32, error) {
	return c.EncodeUntil(Stop{}, t, dst, text, specials)
}

// EncodeUntil is Encode, given up with [ErrStopped] soon after stop says so: within
// the time for some 16 KiB of text. What was encoded until then is remembered.
func (c *PrefixCache) EncodeUntil(stop Stop, t *Tokenizer, dst []uint32, text []byte, specials Specials) ([]uint32, error) {
	if !utf8.Valid(text) {
		return dst, ErrInvalidText
	}
	if t.chunked && !t.oneChunk(text) {
		return t.encode(stop, dst, text, specials)
	}
	had := len(dst)
	e := t.borrow()
	defer t.giveBack(e)
	e.stop = stop
	if specials {
		dst = append(dst, t.around.before...)
	}
	from, pause := 0, stopBytes
	for {
		step := c.step
		if from < step {
			step = max(1, step/4) // so that a short prompt has stretches, too
		}
		to := t.nextCut(text, from+step)
		if to < 0 {
			break
		}
		if from >= pause {
			if e.halt() {
				return dst[:had], ErrStopped
			}
			pause = from + stopBytes
		}
		dst = c.stretch(t, e, dst, text[from:to], from > 0)
		from = to
	}
	if from < len(text) {
		dst = t.stretch(e, dst, text[from:], from > 0)
	}
	if e.stopped {
		return dst[:had], ErrStopped
	}
	if specials {
		dst = append(dst, t.around.after...)
	}
	return dst, nil
}

// stretch appends the ids of text, which ends at a place to cut.
func (c *PrefixCache) stretch(t *Tokenizer, e *encoder, dst []uint32, text []byte, continued bool) []uint32 {
	seed := t.seed
	if continued {
		seed = ^seed
	}
	key := xxh3.Hash128Seed(text, seed)
	s := &c.shards[key.Hi%prefixShards]
	dst, ok := s.get(dst, key)
	if ok {
		return dst
	}
	had := len(dst)
	if dst = t.stretch(e, dst, text, continued); !e.stopped {
		s.put(key, dst[had:])
	}
	return dst
}

// get appends the ids of key to dst. One that is about to fall out is written anew.
func (s *prefixShard) get(dst []uint32, key xxh3.Uint128) ([]uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, ok := s.at[key]
	if !ok {
		return dst, false
	}
	had := len(dst)
	dst = append(dst, s.ids[entry.from:entry.from+entry.n]...)
	if s.next-entry.age > uint64(len(s.ids)/2) {
		s.write(key, dst[had:])
	}
	return dst, true
}

func (s *prefixShard) put(key xxh3.Uint128, ids []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.at[key]; !there && len(ids) <= len(s.ids)/2 {
		s.write(key, ids)
	}
}

// write puts ids at the head of the ring and forgets what it overwrites.
func (s *prefixShard) write(key xxh3.Uint128, ids []uint32) {
	if s.head+len(ids) > len(s.ids) {
		s.next += uint64(len(s.ids) - s.head)
		s.head = 0
	}
	end := s.next + uint64(len(ids))
	for s.tail < len(s.order) {
		old := s.order[s.tail]
		if old.age+uint64(len(s.ids)) >= end {
			break
		}
		if now, ok := s.at[old.key]; ok && now.age == old.age {
			delete(s.at, old.key)
		}
		s.tail++
	}
	if s.tail > 64 && s.tail > len(s.order)/2 {
		s.order = s.order[:copy(s.order, s.order[s.tail:])]
		s.tail = 0
	}
	copy(s.ids[s.head:], ids)
	s.at[key] = prefixEntry{from: s.head, n: len(ids), age: s.next}
	s.order = append(s.order, prefixKeep{key: key, age: s.next})
	s.head += len(ids)
	s.next = end
}
