package breaker

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// Set holds one circuit per worker ID. Make it with [NewSet].
type Set struct {
	cfg Config
	log atomic.Pointer[slog.Logger]

	mu       sync.RWMutex
	circuits map[string]*Circuit
}

// NewSet returns an empty set. cfg is expected to be valid.
func NewSet(cfg Config) *Set {
	return &Set{cfg: cfg, circuits: make(map[string]*Circuit)}
}

// SetLogger makes s log one line at each trip and each recovery. Without it s
// is silent.
func (s *Set) SetLogger(log *slog.Logger) { s.log.Store(log) }

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
	c = &Circuit{set: s, id: id, hash: hashID(id), cooldown: s.cfg.Cooldown}
	s.circuits[id] = c
	return c
}

// Retain drops the circuits of the workers that keep does not want. A worker
// that comes back starts with a closed one.
func (s *Set) Retain(keep func(id string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.circuits {
		if !keep(id) {
			delete(s.circuits, id)
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
