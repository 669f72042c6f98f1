//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import "math/bits"

// engineMap maps one target's engine hashes to the refs of their blocks: 12 bytes
// per entry and no pointers. Buckets are one cache line; a bucket counts the
// entries whose probe passed over it, so that deleting needs no tombstones and a
// probe ends at the first bucket that nothing passed over.
type engineMap struct {
	buckets []bucket
	count   int
}

type bucket struct {
	keys   [bucketSize]uint64
	refs   [bucketSize]uint32
	n      uint16
	passed uint16 // saturated at maxPassed, then kept
}

const (
	bucketSize = 5
	minBuckets = 8
	maxPassed  = 1<<16 - 1
)

// home maps a hash to a bucket so that order is kept, roughly, when the table
// grows: filling the new one then walks both tables forwards.
func (m *engineMap) home(key uint64) int {
	key ^= key >> 32
	key *= golden
	key ^= key >> 29
	hi, _ := bits.Mul64(key, uint64(len(m.buckets)))
	return int(hi)
}

func (m *engineMap) get(key uint64) (ref uint32, ok bool) {
	if m.count == 0 {
		return 0, false
	}
	i := m.home(key)
	for range m.buckets { // bounded: in a tiny table every bucket may have been passed
		b := &m.buckets[i]
		for j := range int(b.n) {
			if b.keys[j] == key {
				return b.refs[j], true
			}
		}
		if b.passed == 0 {
			return 0, false
		}
		if i++; i == len(m.buckets) {
			i = 0
		}
	}
	return 0, false
}

// put makes key name ref, and returns what it named before.
func (m *engineMap) put(key uint64, ref uint32) (old uint32, existed bool) {
	if m.count >= len(m.buckets)*bucketSize*85/100 {
		m.grow()
	}
	home := m.home(key)
	i := home
	for range m.buckets {
		b := &m.buckets[i]
		for j := range int(b.n) {
			if b.keys[j] == key {
				old, b.refs[j] = b.refs[j], ref
				return old, true
			}
		}
		if b.passed == 0 {
			break
		}
		if i++; i == len(m.buckets) {
			i = 0
		}
	}
	m.insert(home, key, ref)
	m.count++
	return 0, false
}

// insert places a key that is not in the table.
func (m *engineMap) insert(i int, key uint64, ref uint32) {
	for {
		b := &m.buckets[i]
		if b.n < bucketSize {
			b.keys[b.n], b.refs[b.n] = key, ref
			b.n++
			return
		}
		if b.passed < maxPassed {
			b.passed++
		}
		if i++; i == len(m.buckets) {
			i = 0
		}
	}
}

// del removes key and returns what it named.
func (m *engineMap) del(key uint64) (ref uint32, ok bool) {
	if m.count == 0 {
		return 0, false
	}
	home := m.home(key)
	i := home
	for range m.buckets {
		b := &m.buckets[i]
		for j := range int(b.n) {
			if b.keys[j] == key {
				ref = b.refs[j]
				b.n--
				b.keys[j], b.refs[j] = b.keys[b.n], b.refs[b.n]
				m.unpass(home, i)
				m.count--
				return ref, true
			}
		}
		if b.passed == 0 {
			return 0, false
		}
		if i++; i == len(m.buckets) {
			i = 0
		}
	}
	return 0, false
}

func (m *engineMap) unpass(from, to int) {
	for i := from; i != to; {
		if p := &m.buckets[i].passed; *p < maxPassed {
			*p--
		}
		if i++; i == len(m.buckets) {
			i = 0
		}
	}
}

func (m *engineMap) grow() {
	old := m.buckets
	m.buckets = make([]bucket, max(minBuckets, len(old)+len(old)/2))
	for i := range old {
		b := &old[i]
		for j := range int(b.n) {
			m.insert(m.home(b.keys[j]), b.keys[j], b.refs[j])
		}
	}
}
