package breaker

import (
	"cmp"
	"slices"
	"time"
)

// What [Config].PairCanary can be.
const (
	// CanaryOff lets the first request behind a cooldown be a pair's probe.
	CanaryOff = "off"
	// CanaryOnRecovery leaves probes of pairs to canaries.
	CanaryOnRecovery = "on-recovery"
)

// Canaries returns the values that [Config].PairCanary takes.
func Canaries() []string { return []string{CanaryOff, CanaryOnRecovery} }

// Canary reports whether the probes of pairs are left to canaries.
func (s *Set) Canary() bool {
	t := s.pairTuning.Load()
	return t.canary && t.on && t.limits != 0
}

// Due says that nothing is known of the two any more, for one of them has come
// (back): they get no requests together until a canary has gone well. It is a
// half-open circuit whose probe waits for [Set.AcquireCanary]. Permits that are out
// say nothing. A pair that is not closed stays as it is, and so does each while
// [Config].PairCanary is off.
func (s *Set) Due(prefill, decode string) {
	if s.Canary() {
		s.Pair(prefill, decode).due()
	}
}

func (c *Circuit) due() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped || !c.Closed() {
		return
	}
	c.count(1)
	epoch, _, _ := unpack(c.word.Load())
	c.until, c.failedAt, c.failed, c.probe = time.Time{}, time.Time{}, 0, 0
	c.word.Store(pack(epoch+1, 0, HalfOpen))
}

// DuePairs appends the pairs that a canary may probe at now, those that failed
// longest ago first; of equal ones, in the order of their names. Without
// [Config].PairCanary there are none.
func (s *Set) DuePairs(now time.Time, dst []Pair) []Pair {
	if !s.Canary() {
		return dst
	}
	type due struct {
		id Pair
		at time.Time
	}
	var all []due
	s.mu.RLock()
	for id, c := range s.pairs {
		if !c.Closed() && c.canaryFree(now) {
			all = append(all, due{id, c.FailedAt()})
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b due) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id.Decode, b.id.Decode), cmp.Compare(a.id.Prefill, b.id.Prefill))
	})
	for _, d := range all {
		dst = append(dst, d.id)
	}
	return dst
}

func (c *Circuit) canaryFree(now time.Time) bool {
	t := c.tuning()
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.Closed() && c.mayProbe(now, t)
}

// AcquireCanary takes the probe of a pair whose cooldown is over, or that is due.
// Whatever its request comes to but a first token opens the pair's circuit again,
// for twice as long.
func (s *Set) AcquireCanary(now time.Time, prefill, decode string) (PairPermit, bool) {
	p := PairPermit{set: s, id: Pair{prefill, decode}, canary: true}
	c := s.pair(p.id)
	if c == nil {
		return p, true
	}
	t := c.tuning()
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch, _, state := unpack(c.word.Load())
	switch {
	case state == Closed:
		p.permit = Permit{c: c, epoch: epoch}
	case c.mayProbe(now, t):
		p.permit = c.lend(now, epoch)
	default:
		return PairPermit{}, false
	}
	return p, true
}

// verdict returns what the end o of the pair's request is to its own circuit, when
// a worker is charged with it or not.
func (p *PairPermit) verdict(o Outcome, charged bool) Outcome {
	switch {
	case p.canary && p.permit.Probe() && o != Success:
		return Transfer
	case charged:
		return Neutral
	}
	return o
}
