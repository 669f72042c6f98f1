package breaker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Circuit is one worker's breaker, or one pair's. It outlives nothing: a Circuit
// of a worker that [Set.Retain] dropped still works for the requests that hold its
// permits.
type Circuit struct {
	set  *Set
	id   string // the worker's; of a pair, the prefill worker's
	peer string // of a pair, the decode worker's; "" otherwise
	hash uint64 // of the IDs, for the jitter

	word      atomic.Uint64 // state, streaks and epoch; written under mu
	trips     atomic.Uint64
	busyUntil atomic.Int64 // nanoseconds since 1970
	recovered atomic.Int64 // when it last closed after a trip, the same; 0 for never

	mu       sync.Mutex
	until    time.Time // end of the cooldown, while not closed
	failedAt time.Time // of the last fault
	failed   int       // probes in a row
	probe    uint32    // number of the probe under way; 0 for none
	probes   uint32    // number of the last probe
	probeAt  time.Time // when the probe under way was let through
	dropped  bool      // no longer in the set
}

func (c *Circuit) tuning() *tuning {
	if c.peer != "" {
		return c.set.pairTuning.Load()
	}
	return c.set.workerTuning.Load()
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

// Closed reports whether requests pass freely.
func (c *Circuit) Closed() bool { return State(c.word.Load()&stateMask) == Closed }

// Allows reports whether [Circuit.Acquire] would succeed at now. It claims
// nothing.
func (c *Circuit) Allows(now time.Time) bool {
	return c.Closed() || c.probeFree(now)
}

func (c *Circuit) probeFree(now time.Time) bool {
	t := c.tuning()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, s := unpack(c.word.Load())
	return s == Closed || !t.canary && c.mayProbe(now, t)
}

// mayProbe is called with mu held, on a circuit that is not closed.
func (c *Circuit) mayProbe(now time.Time, t *tuning) bool {
	if now.Before(c.until) {
		return false
	}
	return c.probe == 0 || now.Sub(c.probeAt) >= t.probe
}

// Busy reports whether the worker said less than [Config].BusyTTL ago that it has
// enough to do.
func (c *Circuit) Busy(now time.Time) bool {
	until := c.busyUntil.Load()
	return until != 0 && now.UnixNano() < until
}

// FailedAt returns when the last fault was reported; zero for never.
func (c *Circuit) FailedAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failedAt
}

// Recovered returns when the circuit last closed after a trip; zero for never.
func (c *Circuit) Recovered() time.Time {
	if at := c.recovered.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Acquire asks to send a request at now. A circuit whose cooldown is over lends
// one probe at a time; [Permit.Done] gives it back, and a probe that is never
// answered loses its slot after the probe timeout. Probes of pairs are canaries'
// alone where [Config].PairCanary says so.
func (c *Circuit) Acquire(now time.Time) (Permit, bool) {
	if epoch, _, s := unpack(c.word.Load()); s == Closed {
		return Permit{c: c, epoch: epoch}, true
	}
	t := c.tuning()
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch, _, s := unpack(c.word.Load())
	if s == Closed {
		return Permit{c: c, epoch: epoch}, true
	}
	if t.canary || !c.mayProbe(now, t) {
		return Permit{}, false
	}
	return c.lend(now, epoch), true
}

// Force returns a permit whatever the state: when every candidate is open, a
// probably bad worker beats no worker (seed, Circuit breaker). Its success
// closes the circuit; its fault, unless it is the probe, changes nothing but the
// order in which open workers are tried.
func (c *Circuit) Force(now time.Time) Permit {
	if p, ok := c.Acquire(now); ok {
		return p
	}
	epoch, _, _ := unpack(c.word.Load())
	return Permit{c: c, epoch: epoch, kind: forced}
}

// lend lets a probe through, with mu held.
func (c *Circuit) lend(now time.Time, epoch uint32) Permit {
	if c.probe != 0 {
		c.set.probes[probeTimedOut].Add(1)
	}
	if c.probes++; c.probes == 0 {
		c.probes = 1 // 0 stands for none
	}
	c.probe, c.probeAt = c.probes, now
	c.word.Store(pack(epoch, 0, HalfOpen))
	return Permit{c: c, epoch: epoch, probe: c.probe, kind: probing}
}

// settle applies the outcome of p and reports a change that operators act on.
func (c *Circuit) settle(p *Permit, now time.Time, o Outcome) (transition, bool) {
	t := c.tuning()
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch, st, s := unpack(c.word.Load())
	if p.epoch != epoch {
		c.set.stale.Add(1)
		return transition{}, false
	}
	fault := o.Fault() && t.limits.of(o) > 0
	if fault {
		c.failedAt = now
	}
	current := p.kind == probing && p.probe == c.probe
	switch {
	case s == Closed && o == Success:
		c.word.Store(pack(epoch, 0, Closed))
	case s == Closed && fault:
		if st = st.failed(o); st.of(o) >= t.limits.of(o) {
			return c.trip(epoch, now, o, t), true
		}
		c.word.Store(pack(epoch, st, Closed))
	case s == Closed:
	case o == Success: // of a probe, even one that took too long, or of a forced request
		if current {
			c.set.probes[probeOK].Add(1)
		}
		return c.recover(epoch, now), true
	case !current: // the probe under way decides
	case fault:
		c.set.probes[probeFault].Add(1)
		c.failed++
		return c.trip(epoch, now, o, t), true
	default: // proved nothing: the next request may probe
		c.set.probes[probeNothing].Add(1)
		c.probe = 0
	}
	return transition{}, false
}

// begin applies a first token, or an answer without one, to a closed circuit.
func (c *Circuit) begin(epoch uint32, after func(streaks) streaks) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, st, s := unpack(c.word.Load()); now == epoch && s == Closed {
		c.word.Store(pack(epoch, after(st), Closed))
	}
}

// trip opens the circuit, with mu held.
func (c *Circuit) trip(epoch uint32, now time.Time, o Outcome, t *tuning) transition {
	if c.Closed() {
		c.count(1)
	}
	n := c.trips.Add(1)
	wait := t.wait(c.failed)
	wait += c.jitter(n, wait, t)
	c.until, c.probe = now.Add(wait), 0
	c.word.Store(pack(epoch+1, 0, Open))
	if c.peer != "" {
		c.set.pairTrips.Add(1)
	}
	return transition{c: c, open: true, class: o, trips: n, cooldown: wait}
}

// recover closes the circuit, with mu held.
func (c *Circuit) recover(epoch uint32, now time.Time) transition {
	c.close(epoch)
	c.recovered.Store(now.UnixNano())
	return transition{c: c, trips: c.trips.Load()}
}

// close is recover without a word of it, with mu held.
func (c *Circuit) close(epoch uint32) {
	if !c.Closed() {
		c.count(-1)
	}
	c.failed, c.probe = 0, 0
	c.word.Store(pack(epoch+1, 0, Closed))
}

// count keeps the number of the set's pairs that are not closed, with mu held.
func (c *Circuit) count(n int32) {
	if c.peer != "" && !c.dropped {
		c.set.troubled.Add(n)
	}
}

// drop closes c for good measure, and counts it no more.
func (c *Circuit) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Closed() {
		c.count(-1)
	}
	c.dropped = true
}

// reset forgets whatever the circuit had learned; permits that are out say nothing.
func (c *Circuit) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch, _, _ := unpack(c.word.Load())
	c.close(epoch)
	c.failedAt = time.Time{}
}

// jitter returns by how much the n-th cooldown is longer, or shorter: the same for
// the same seed, worker and n.
func (c *Circuit) jitter(n uint64, wait time.Duration, t *tuning) time.Duration {
	u := float64(mix(t.seed^c.hash^mix(n))>>11)/(1<<52) - 1 // [-1, 1)
	return time.Duration(math.Round(float64(wait) * t.jitter * u))
}

// mix is the finalizer of SplitMix64: every bit of x sways every bit of it.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
