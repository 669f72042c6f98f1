package breaker

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Set holds one circuit per worker ID, and one per pair that has failed. Make it
// with [NewSet].
type Set struct {
	log          atomic.Pointer[slog.Logger]
	workerTuning atomic.Pointer[tuning]
	pairTuning   atomic.Pointer[tuning]
	peerWindow   atomic.Int64 // nanoseconds

	stale     atomic.Uint64
	allOpen   atomic.Uint64
	pairTrips atomic.Uint64
	probes    [probeResults]atomic.Uint64
	troubled  atomic.Int32 // pairs that are not closed

	mu       sync.RWMutex
	circuits map[string]*Circuit
	pairs    map[Pair]*Circuit
	peers    map[string]map[string]time.Time // worker, partner: last transfer fault
}

// NewSet returns an empty set. cfg is expected to be valid.
func NewSet(cfg Config) *Set {
	s := &Set{
		circuits: make(map[string]*Circuit),
		pairs:    make(map[Pair]*Circuit),
		peers:    make(map[string]map[string]time.Time),
	}
	s.tune(cfg)
	return s
}

func (s *Set) tune(cfg Config) {
	worker, pair := cfg.tunings()
	s.workerTuning.Store(worker)
	s.pairTuning.Store(pair)
	s.peerWindow.Store(int64(cfg.PeerWindow))
}

// SetConfig replaces the tuning. Running cooldowns keep their end, and a request
// that ends is judged by the new thresholds. A breaker that is switched off
// forgets everything. Seed 0 keeps the seed. An invalid cfg changes nothing.
func (s *Set) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Seed == 0 {
		cfg.Seed = s.workerTuning.Load().seed
	}
	s.tune(cfg)
	if cfg.Enable && cfg.PairThreshold > 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.pairs {
		c.reset()
	}
	if cfg.Enable {
		return nil
	}
	for _, c := range s.circuits {
		c.reset()
	}
	return nil
}

// Enabled reports whether workers are judged.
func (s *Set) Enabled() bool { return s.workerTuning.Load().on }

// SetLogger makes s log one line at each trip and each recovery. Without it s
// is silent.
func (s *Set) SetLogger(log *slog.Logger) { s.log.Store(log) }

// AllOpen counts a request that was sent although every candidate was open.
func (s *Set) AllOpen() { s.allOpen.Add(1) }

// Circuit returns the circuit of the worker with the given ID, a closed one if
// there was none.
func (s *Set) Circuit(id string) *Circuit {
	s.mu.RLock()
	c := s.circuits[id]
	s.mu.RUnlock()
	if c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c = s.circuits[id]; c != nil {
		return c
	}
	c = &Circuit{set: s, id: id, hash: hashID(id)}
	s.circuits[id] = c
	return c
}

// Retain drops the circuits of the workers that keep does not want, and of their
// pairs. A worker that comes back starts with a closed one.
func (s *Set) Retain(keep func(id string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.circuits {
		if !keep(id) {
			delete(s.circuits, id)
		}
	}
	for id, c := range s.pairs {
		if !keep(id.Prefill) || !keep(id.Decode) {
			c.drop()
			delete(s.pairs, id)
		}
	}
	for id, partners := range s.peers {
		if !keep(id) {
			delete(s.peers, id)
			continue
		}
		for partner := range partners {
			if !keep(partner) {
				delete(partners, partner)
			}
		}
	}
}

func (s *Set) announce(t transition) {
	if log := s.log.Load(); log != nil {
		t.log(log)
	}
}

// hashID is FNV-1a: the same in every process, so that a seed replays.
func hashID(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	return h
}
