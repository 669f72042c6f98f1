package breaker

import "time"

// Pair names a prefill worker and a decode worker.
type Pair struct{ Prefill, Decode string }

// Pair returns the circuit of two workers together, a closed one if there was
// none. Only [Transfer] counts in it.
func (s *Set) Pair(prefill, decode string) *Circuit {
	id := Pair{prefill, decode}
	if c := s.pair(id); c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.pairs[id]; c != nil {
		return c
	}
	c := &Circuit{set: s, id: prefill, peer: decode, hash: hashID(prefill) ^ mix(hashID(decode))}
	s.pairs[id] = c
	return c
}

func (s *Set) pair(id Pair) *Circuit {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pairs[id]
}

// Troubled reports whether some pair's circuit is not closed: without one, no pair
// need be asked about.
func (s *Set) Troubled() bool { return s.troubled.Load() > 0 }

// OpenPairs appends the pairs that may get no request at now.
func (s *Set) OpenPairs(now time.Time, dst []Pair) []Pair {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, c := range s.pairs {
		if !c.Allows(now) {
			dst = append(dst, id)
		}
	}
	return dst
}

// Trusts reports whether the pair's circuit is closed and has been since the given
// time.
func (s *Set) Trusts(prefill, decode string, since time.Time) bool {
	c := s.pair(Pair{prefill, decode})
	return c == nil || c.Closed() && !c.Recovered().After(since)
}

// PairPermit is leave to send one request to a pair: a value. The zero PairPermit
// does nothing. A pair that never failed has no circuit and costs no lock.
type PairPermit struct {
	set    *Set
	id     Pair
	permit Permit // zero for a pair that had not failed yet
	canary bool
}

// AcquirePair asks to send a request to the pair at now, and takes its probe if
// one is due.
func (s *Set) AcquirePair(now time.Time, prefill, decode string) (PairPermit, bool) {
	p := PairPermit{set: s, id: Pair{prefill, decode}}
	c := s.pair(p.id)
	if c == nil {
		return p, true
	}
	var ok bool
	p.permit, ok = c.Acquire(now)
	return p, ok
}

// ForcePair returns a permit whatever the state of the pair.
func (s *Set) ForcePair(now time.Time, prefill, decode string) PairPermit {
	p := PairPermit{set: s, id: Pair{prefill, decode}}
	if c := s.pair(p.id); c != nil {
		p.permit = c.Force(now)
	}
	return p
}

// FirstToken says at now that the pair's answer has begun: it closes the circuit.
func (p *PairPermit) FirstToken(now time.Time) {
	if p.set == nil {
		return
	}
	if p.permit.c != nil {
		p.permit.FirstToken(now)
	} else if c := p.set.pair(p.id); c != nil { // it has failed meanwhile
		early := Permit{c: c}
		early.FirstToken(now)
	}
	p.set.vouch(p.id)
}

// Done says how the pair's request ended. Only [Transfer] and [Success] are news
// of the two together. It returns whom of them the fault speaks against alone:
// another partner of that worker has failed with it too within [Config].PeerWindow.
// That worker's own permit is to be told Transfer; the other's, Neutral.
func (p PairPermit) Done(now time.Time, o Outcome) (prefill, decode bool) {
	s := p.set
	if s == nil || !s.pairTuning.Load().on || s.pairTuning.Load().limits == 0 {
		return false, false
	}
	switch o {
	case Transfer:
		prefill, decode = s.witness(p.id, now)
		if prefill || decode {
			break // the worker's own circuit answers for it
		}
		if p.permit.c == nil {
			p.permit = Permit{c: s.Pair(p.id.Prefill, p.id.Decode)}
		}
	case Success:
		p.FirstToken(now)
	default:
	}
	if p.permit.c != nil {
		p.permit.Done(now, p.verdict(o, prefill || decode))
	}
	return prefill, decode
}

// witness notes that the two failed together at now, and says whether other
// partners speak against one of them. Of two suspects the one with more partners
// against it is to blame; both, if that decides nothing.
func (s *Set) witness(id Pair, now time.Time) (prefill, decode bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	against := s.testify(id.Prefill, id.Decode, now)
	other := s.testify(id.Decode, id.Prefill, now)
	return against >= 2 && against >= other, other >= 2 && other >= against
}

// testify notes that worker failed with partner, and returns how many partners it
// failed with lately. The mutex is held.
func (s *Set) testify(worker, partner string, now time.Time) int {
	partners := s.peers[worker]
	if partners == nil {
		partners = make(map[string]time.Time)
		s.peers[worker] = partners
	}
	partners[partner] = now
	window := time.Duration(s.peerWindow.Load())
	for other, at := range partners {
		if now.Sub(at) > window {
			delete(partners, other)
		}
	}
	return len(partners)
}

// vouch clears two workers that have just served together: what others say
// against one of them is about those others, or about the two.
func (s *Set) vouch(id Pair) {
	s.mu.RLock()
	suspect := s.peers[id.Prefill] != nil || s.peers[id.Decode] != nil
	s.mu.RUnlock()
	if !suspect {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, id.Prefill)
	delete(s.peers, id.Decode)
}
