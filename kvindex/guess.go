//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

// A guess is that a target holds the first depth blocks of a run until a time.
// The guesses of one target about one run form a stair, deepest first: each next
// one is shallower and lasts longer, because whoever predicts a prompt predicts
// all its beginnings too. The deepest is the depth of the predicted record, whose
// ext is its index.
type guess struct {
	until  int64  // unix nanoseconds
	target uint32 // target slot
	run    uint32
	heapAt uint32 // place in guesses.heap
	next   uint32 // the shallower guess; 0 for none
	older  uint32 // the target's guesses by last use; 0 for none
	newer  uint32
	depth  uint16
}

// due is when to look at a guess. A guess that was prolonged stays where it is
// in the heap and is put back when its turn comes: prolonging costs one store.
type due struct {
	at int64
	g  uint32
}

// guesses is the slab of guesses and the heap of when they end. Writer only.
type guesses struct {
	all  []guess // index 0 is never given out
	free []uint32
	heap []due // 4-ary, earliest first
}

func (s *guesses) init() { s.all = make([]guess, 1) }

func (s *guesses) alloc() uint32 {
	if n := len(s.free); n > 0 {
		g := s.free[n-1]
		s.free = s.free[:n-1]
		return g
	}
	s.all = append(s.all, guess{})
	return uint32(len(s.all) - 1)
}

func (s *guesses) push(g uint32, at int64) {
	s.heap = append(s.heap, due{})
	s.up(len(s.heap)-1, due{at: at, g: g})
}

// up places d at i or above, moving later ones down.
func (s *guesses) up(i int, d due) {
	for i > 0 {
		parent := (i - 1) / 4
		if s.heap[parent].at <= d.at {
			break
		}
		s.set(i, s.heap[parent])
		i = parent
	}
	s.set(i, d)
}

// down places d at i or below, moving earlier ones up.
func (s *guesses) down(i int, d due) {
	for {
		first := 4*i + 1
		if first >= len(s.heap) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(s.heap)); c++ {
			if s.heap[c].at < s.heap[least].at {
				least = c
			}
		}
		if d.at <= s.heap[least].at {
			break
		}
		s.set(i, s.heap[least])
		i = least
	}
	s.set(i, d)
}

func (s *guesses) set(i int, d due) {
	s.heap[i] = d
	s.all[d.g].heapAt = uint32(i)
}

// take removes the heap's entry i.
func (s *guesses) take(i int) {
	last := s.heap[len(s.heap)-1]
	s.heap = s.heap[:len(s.heap)-1]
	if i == len(s.heap) {
		return
	}
	if i > 0 && last.at < s.heap[(i-1)/4].at {
		s.up(i, last)
		return
	}
	s.down(i, last)
}

// ended returns a guess that is over at now, or 0. It puts prolonged ones back.
func (s *guesses) ended(now int64) uint32 {
	for len(s.heap) > 0 && s.heap[0].at <= now {
		g := s.heap[0].g
		if until := s.all[g].until; until > now {
			s.down(0, due{at: until, g: g})
			continue
		}
		return g
	}
	return 0
}

// recent is a target's guesses by last use.
type recent struct{ oldest, newest uint32 }

// insert puts g just before the guess newer, or last when that is 0.
func (l *recent) insert(s *guesses, g, newer uint32) {
	older := l.newest
	if newer != 0 {
		older = s.all[newer].older
		s.all[newer].older = g
	} else {
		l.newest = g
	}
	if older != 0 {
		s.all[older].newer = g
	} else {
		l.oldest = g
	}
	s.all[g].older, s.all[g].newer = older, newer
}

func (l *recent) remove(s *guesses, g uint32) {
	older, newer := s.all[g].older, s.all[g].newer
	if older != 0 {
		s.all[older].newer = newer
	} else {
		l.oldest = newer
	}
	if newer != 0 {
		s.all[newer].older = older
	} else {
		l.newest = older
	}
}
