//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

// shortWord is up to how many symbols a word is merged by scanning an array;
// longer ones use a heap. Where the two cost the same.
const shortWord = 64

// merger is the scratch space of merging. It belongs to one call at a time.
type merger struct {
	ids   []uint32
	ranks []uint32
	prev  []int32
	next  []int32
	heap  []uint64 // rank<<32 | position, smallest first
	stopper
}

// merge appends the tokens of b, which no merge crosses: again and again the pair
// of the lowest rank, of equal ones the leftmost, becomes one.
func (s *merger) merge(m *bpe, dst []uint32, b []byte) []uint32 {
	s.ids = m.symbols(s.ids[:0], b)
	if len(s.ids) > shortWord {
		return s.mergeHeap(m, dst)
	}
	return s.mergeScan(m, dst, b)
}

func (s *merger) mergeScan(m *bpe, dst []uint32, b []byte) []uint32 {
	ids, n := s.ids, len(s.ids)
	var store [shortWord]uint32
	ranks := store[:]
	if m.byteRank != nil {
		for i := range n - 1 {
			ranks[i] = m.byteRank[int(b[i])<<8|int(b[i+1])]
		}
	} else {
		for i := range n - 1 {
			ranks[i] = m.pairs.rank(ids[i], ids[i+1])
		}
	}
	for n > 1 {
		best, at := noRank, 0
		for i, r := range ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == noRank {
			break
		}
		ids[at] = m.pairs.made[best]
		copy(ids[at+1:n-1], ids[at+2:n])
		n--
		if at+1 < n {
			copy(ranks[at+1:n-1], ranks[at+2:n])
			ranks[at] = m.pairs.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = m.pairs.rank(ids[at-1], ids[at])
		}
	}
	return append(dst, ids[:n]...)
}

// mergeHeap merges s.ids with a heap of the possible merges. Entries that a merge
// made stale stay in the heap and are told by their rank.
func (s *merger) mergeHeap(m *bpe, dst []uint32) []uint32 {
	n := len(s.ids)
	s.grow(n)
	s.heap = s.heap[:0]
	for i := range n {
		s.prev[i], s.next[i] = int32(i-1), int32(i+1)
		s.ranks[i] = noRank
		if i+1 < n {
			if r := m.pairs.rank(s.ids[i], s.ids[i+1]); r != noRank {
				s.ranks[i] = r
				s.heap = append(s.heap, uint64(r)<<32|uint64(i))
			}
		}
	}
	for i := len(s.heap)/heapArity + 1; i > 0; i-- {
		s.down(i - 1)
	}
	for turn := 1; len(s.heap) > 0; turn++ {
		if turn%stopMerges == 0 && s.halt() {
			break
		}
		top := s.heap[0]
		at, rank := int32(top), uint32(top>>32)
		if s.ranks[at] != rank {
			s.pop()
			continue
		}
		s.join(m, at, m.pairs.made[rank], int32(n))
	}
	for i := int32(0); i < int32(n); i = s.next[i] {
		dst = append(dst, s.ids[i])
	}
	return dst
}

// join makes the symbol at position at and its right neighbour one; at is on top
// of the heap.
func (s *merger) join(m *bpe, at int32, id uint32, n int32) {
	gone := s.next[at]
	after := s.next[gone]
	s.ids[at] = id
	s.next[at] = after
	s.ranks[gone] = noRank
	s.ranks[at] = noRank
	replaced := false
	if after < n {
		s.prev[after] = at
		if r := m.pairs.rank(id, s.ids[after]); r != noRank {
			s.ranks[at] = r
			s.heap[0] = uint64(r)<<32 | uint64(at)
			s.down(0)
			replaced = true
		}
	}
	if !replaced {
		s.pop()
	}
	if before := s.prev[at]; before >= 0 {
		r := m.pairs.rank(s.ids[before], id)
		s.ranks[before] = r
		if r != noRank {
			s.push(uint64(r)<<32 | uint64(before))
		}
	}
}

func (s *merger) grow(n int) {
	if cap(s.ranks) < n {
		s.ranks = make([]uint32, n+n/2)
		s.prev = make([]int32, n+n/2)
		s.next = make([]int32, n+n/2)
	}
	s.ranks, s.prev, s.next = s.ranks[:cap(s.ranks)], s.prev[:cap(s.prev)], s.next[:cap(s.next)]
}

const heapArity = 4

func (s *merger) push(v uint64) {
	s.heap = append(s.heap, v)
	h := s.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / heapArity
		if h[up] <= v {
			break
		}
		h[i], h[up] = h[up], v
		i = up
	}
}

func (s *merger) pop() {
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	s.down(0)
}

func (s *merger) down(i int) {
	h := s.heap
	if i >= len(h) {
		return
	}
	v := h[i]
	for {
		first := i*heapArity + 1
		if first >= len(h) {
			break
		}
		least := first
		for c := first + 1; c < min(first+heapArity, len(h)); c++ {
			if h[c] < h[least] {
				least = c
			}
		}
		if h[least] >= v {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = v
}
