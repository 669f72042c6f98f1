package breaker

import (
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// The word of a circuit, from the lowest bit: state 8 | faults 24 | epoch 32.
// One load answers the hot questions, and a permit remembers the epoch it was
// taken in.
const (
	stateBits  = 8
	faultBits  = 24
	stateMask  = 1<<stateBits - 1
	maxFaults  = 1<<faultBits - 1
	epochShift = stateBits + faultBits
)

func pack(epoch uint32, faults int, s State) uint64 {
	return uint64(epoch)<<epochShift | uint64(faults)<<stateBits | uint64(s) //nolint:gosec // 0 to maxFaults
}

func unpack(w uint64) (epoch uint32, faults int, s State) {
	return uint32(w >> epochShift), int(w >> stateBits & maxFaults), State(w & stateMask)
}

// Circuit is one worker's breaker. It outlives nothing: a Circuit of a worker
// that [Set.Retain] dropped still works for the requests that hold its permits.
type Circuit struct {
	set  *Set
	id   string
	hash uint64 // of id, for the jitter

	word  atomic.Uint64 // state, faults and epoch; written under mu
	trips atomic.Uint64

	mu       sync.Mutex
	until    time.Time     // end of the cooldown, while not closed
	cooldown time.Duration // the next one
	probe    uint32        // number of the probe under way; 0 for none
	probes   uint32        // number of the last probe
	probeAt  time.Time     // when the probe under way was let through
}

// State returns how the circuit stands at now. An open circuit whose cooldown
// is over is half-open, whether or not a probe is under way.
func (c *Circuit) State(now time.Time) State {
	_, _, s := unpack(c.word.Load())
	if s != Open {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, _, s = unpack(c.word.Load()); s == Open && !now.Before(c.until) {
		return HalfOpen
	}
	return s
}

// Allows reports whether [Circuit.Acquire] would succeed at now. It claims
// nothing.
func (c *Circuit) Allows(now time.Time) bool {
	return State(c.word.Load()&stateMask) == Closed || c.probeFree(now)
}

func (c *Circuit) probeFree(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, s := unpack(c.word.Load())
	return s == Closed || c.mayProbe(now)
}

// mayProbe is called with mu held, on a circuit that is not closed.
func (c *Circuit) mayProbe(now time.Time) bool {
	if now.Before(c.until) {
		return false
	}
	return c.probe == 0 || now.Sub(c.probeAt) >= c.set.cfg.ProbeTimeout
}

// Acquire asks to send a request at now. A circuit whose cooldown is over lends
// one probe at a time; [Permit.Done] gives it back, and a probe that is never
// answered loses its slot after the probe timeout.
func (c *Circuit) Acquire(now time.Time) (Permit, bool) {
	if epoch, _, s := unpack(c.word.Load()); s == Closed {
		return Permit{c: c, epoch: epoch}, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch, _, s := unpack(c.word.Load())
	if s == Closed {
		return Permit{c: c, epoch: epoch}, true
	}
	if !c.mayProbe(now) {
		return Permit{}, false
	}
	return c.lend(now, epoch), true
}

// Force returns a permit whatever the state: when every candidate is open, a
// probably bad worker beats no worker (seed, Circuit breaker). Its success
// closes the circuit; its fault, unless it is the probe, changes nothing.
func (c *Circuit) Force(now time.Time) Permit {
	if p, ok := c.Acquire(now); ok {
		return p
	}
	epoch, _, _ := unpack(c.word.Load())
	return Permit{c: c, epoch: epoch, kind: forced}
}

// lend lets a probe through, with mu held.
func (c *Circuit) lend(now time.Time, epoch uint32) Permit {
	if c.probes++; c.probes == 0 {
		c.probes = 1 // 0 stands for none
	}
	c.probe, c.probeAt = c.probes, now
	c.word.Store(pack(epoch, 0, HalfOpen))
	return Permit{c: c, epoch: epoch, probe: c.probe, kind: probing}
}

type kind uint8

const (
	regular kind = iota
	probing
	forced
)

// Permit is leave to send one request: a value. The zero Permit's Done does
// nothing. Done is to be called once; a permit that is never done costs nothing
// but, if it is a probe, the probe timeout.
type Permit struct {
	c     *Circuit
	epoch uint32
	probe uint32
	kind  kind
}

// Probe reports whether the request is the one that tests a tripped worker.
func (p Permit) Probe() bool { return p.kind == probing }

// Done says how the request ended. A permit from before the circuit last
// changed its state says nothing about the worker as it is: it is ignored, be
// it a late success or a late fault (Infera defect P18).
func (p Permit) Done(now time.Time, o Outcome) {
	c := p.c
	if c == nil || c.set.cfg.Threshold == 0 {
		return
	}
	if p.kind == regular && o != Fault {
		if epoch, faults, _ := unpack(c.word.Load()); o == Neutral || epoch != p.epoch || faults == 0 {
			return
		}
	}
	if t, changed := c.settle(p, now, o); changed {
		c.set.announce(t)
	}
}

// settle applies the outcome of p and reports a change that operators act on.
func (c *Circuit) settle(p Permit, now time.Time, o Outcome) (transition, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch, faults, s := unpack(c.word.Load())
	if p.epoch != epoch {
		return transition{}, false
	}
	switch {
	case s == Closed && o == Success:
		c.word.Store(pack(epoch, 0, Closed))
	case s == Closed && o == Fault:
		if faults++; faults >= c.set.cfg.Threshold {
			return c.trip(epoch, now), true
		}
		c.word.Store(pack(epoch, faults, Closed))
	case s == Closed:
	case o == Success: // of a probe, even one that took too long, or of a forced request
		return c.recover(epoch), true
	case p.kind != probing || p.probe != c.probe: // the probe under way decides
	case o == Fault:
		c.cooldown = min(2*c.cooldown, c.set.cfg.MaxCooldown)
		return c.trip(epoch, now), true
	default: // proved nothing: the next request may probe
		c.probe = 0
	}
	return transition{}, false
}

// trip opens the circuit, with mu held.
func (c *Circuit) trip(epoch uint32, now time.Time) transition {
	n := c.trips.Add(1)
	wait := c.cooldown + c.jitter(n)
	c.until, c.probe = now.Add(wait), 0
	c.word.Store(pack(epoch+1, 0, Open))
	return transition{id: c.id, open: true, trips: n, cooldown: wait}
}

// recover closes the circuit, with mu held.
func (c *Circuit) recover(epoch uint32) transition {
	c.cooldown, c.probe = c.set.cfg.Cooldown, 0
	c.word.Store(pack(epoch+1, 0, Closed))
	return transition{id: c.id, trips: c.trips.Load()}
}

// jitter returns the share by which the n-th cooldown is longer: the same for
// the same seed, worker and n.
func (c *Circuit) jitter(n uint64) time.Duration {
	u := float64(mix(c.set.cfg.Seed^c.hash^mix(n))>>11) / (1 << 53) // [0, 1)
	extra := float64(c.cooldown) * c.set.cfg.Jitter * u
	return time.Duration(math.Round(extra))
}

// mix is the finalizer of SplitMix64: every bit of x sways every bit of it.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

type transition struct {
	id       string
	open     bool
	trips    uint64
	cooldown time.Duration
}

func (t transition) log(log *slog.Logger) {
	if t.open {
		log.Info("circuit opened: the worker gets no requests until its cooldown is over",
			slog.String("worker_id", t.id), slog.Duration("cooldown", t.cooldown), slog.Uint64("trips", t.trips))
		return
	}
	log.Info("circuit closed: the worker is back",
		slog.String("worker_id", t.id), slog.Uint64("trips", t.trips))
}
