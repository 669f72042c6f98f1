package breaker

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config is the breaker's tuning. The zero value disables it.
type Config struct {
	// Enable is whether workers and pairs are judged at all. Without it nothing is
	// left out for its faults, and there are no states to export. Default true.
	Enable bool
	// Threshold is how many consecutive faults of kind [Connect] trip a worker's
	// circuit; 0 for never, up to 100. Default 3.
	Threshold int
	// OriginThreshold is the same for [Origin]. Default 3.
	OriginThreshold int
	// StreamThreshold is the same for [Stream]. Default 3.
	StreamThreshold int
	// Cooldown is how long a tripped worker is left out before a probe. Default 5 s.
	Cooldown time.Duration
	// MaxCooldown caps the doubling after failed probes. Default 60 s.
	MaxCooldown time.Duration
	// ProbeTimeout is how long a probe may go unanswered before another request
	// may probe. Default 60 s.
	ProbeTimeout time.Duration
	// Jitter makes each cooldown longer or shorter by up to this share of it, so
	// that several routers do not probe a worker at the same instant (Infera defect
	// P25). 0 for none; default 0.1.
	Jitter float64
	// Seed makes routers differ in their jitter. Any number; routers of one
	// fleet want different ones.
	Seed uint64

	// PairThreshold is how many consecutive faults of kind [Transfer] trip a pair's
	// circuit; 0 for never, up to 100. Default 2.
	PairThreshold int
	// PairCooldown is how long a tripped pair is left out before a probe. Default 10 s.
	PairCooldown time.Duration
	// PairMaxCooldown caps the doubling. Default 120 s.
	PairMaxCooldown time.Duration
	// PairCanary says who probes a pair: [CanaryOff], the default and what "" is, the
	// first request behind its cooldown; [CanaryOnRecovery], a canary that somebody
	// has to send ([Set.AcquireCanary]), without whom such a pair gets no request.
	PairCanary string
	// PeerWindow is the time within which transfer faults with two or more
	// partners speak against the worker that they have in common. Default 60 s.
	PeerWindow time.Duration

	// BusyTTL is how long a worker is left out that had enough to do; 0 for not at
	// all. It does not depend on Enable. Default 1 s.
	BusyTTL time.Duration
}

// DefaultConfig returns the values the Infera routers ship with, and those of
// failover §2A where Infera has none.
func DefaultConfig() Config {
	return Config{
		Enable:          true,
		Threshold:       3,
		OriginThreshold: 3,
		StreamThreshold: 3,
		Cooldown:        5 * time.Second,
		MaxCooldown:     time.Minute,
		ProbeTimeout:    time.Minute,
		Jitter:          0.1,
		PairThreshold:   2,
		PairCooldown:    10 * time.Second,
		PairMaxCooldown: 2 * time.Minute,
		PairCanary:      CanaryOff,
		PeerWindow:      time.Minute,
		BusyTTL:         time.Second,
	}
}

// Validate reports every bad field, not only the first. A disabled breaker needs
// no other field than BusyTTL.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.BusyTTL < 0 || c.BusyTTL > time.Minute {
		bad("busy time %v: want 0 (off) to 1m", c.BusyTTL)
	}
	threshold := func(name string, n int) {
		if n < 0 || n > maxThreshold {
			bad("%s threshold %d: want 0 (off) to %d", name, n, maxThreshold)
		}
	}
	threshold("breaker failure", c.Threshold)
	threshold("origin error", c.OriginThreshold)
	threshold("stream error", c.StreamThreshold)
	threshold("pair breaker", c.PairThreshold)
	if c.Jitter < 0 || c.Jitter > 1 || c.Jitter != c.Jitter {
		bad("breaker jitter %g: want 0 to 1", c.Jitter)
	}
	if c.PairCanary != "" && !slices.Contains(Canaries(), c.PairCanary) {
		bad("pair canary %q: want %s or %s", c.PairCanary, CanaryOff, CanaryOnRecovery)
	}
	if !c.Enable {
		return errors.Join(errs...)
	}
	cooldown := func(name string, first, most time.Duration) {
		if first <= 0 {
			bad("%s cooldown %v: want more than 0", name, first)
		}
		if most < first {
			bad("%s maximum cooldown %v: want at least the cooldown, %v", name, most, first)
		}
	}
	cooldown("breaker", c.Cooldown, c.MaxCooldown)
	if c.ProbeTimeout <= 0 {
		bad("breaker probe timeout %v: want more than 0", c.ProbeTimeout)
	}
	if c.PairThreshold > 0 {
		cooldown("pair breaker", c.PairCooldown, c.PairMaxCooldown)
	}
	return errors.Join(errs...)
}

// tuning is what a circuit goes by. It never changes: [Set.SetConfig] puts another
// in its place.
type tuning struct {
	on       bool
	limits   streaks // faults of each kind that trip; 0 for never
	cooldown time.Duration
	most     time.Duration
	probe    time.Duration
	busy     time.Duration
	jitter   float64
	seed     uint64
	canary   bool // probes are not for requests
}

// wait returns the cooldown after the given number of failed probes in a row.
func (t *tuning) wait(failed int) time.Duration {
	d := t.cooldown
	for range failed {
		if d >= t.most/2 {
			return t.most
		}
		d *= 2
	}
	return min(d, t.most)
}

// tunings returns what the circuits of workers and of pairs go by.
func (c *Config) tunings() (worker, pair *tuning) {
	common := tuning{on: c.Enable, probe: c.ProbeTimeout, jitter: c.Jitter, seed: c.Seed}
	w, p := common, common
	w.cooldown, w.most, w.busy = c.Cooldown, c.MaxCooldown, c.BusyTTL
	w.limits = w.limits.with(Connect, c.Threshold).with(Origin, c.OriginThreshold).with(Stream, c.StreamThreshold)
	// What two partners say against a worker is a failure of its own.
	w.limits = w.limits.with(Transfer, c.OriginThreshold)
	p.cooldown, p.most = c.PairCooldown, c.PairMaxCooldown
	p.canary = c.PairCanary == CanaryOnRecovery
	p.limits = p.limits.with(Transfer, c.PairThreshold)
	return &w, &p
}
