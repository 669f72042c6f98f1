// Package breaker remembers which workers fail, across requests.
//
// A worker that accepts connections and answers its health check, but fails
// every request, is invisible to discovery. After a number of consecutive
// faults its [Circuit] opens: the picker leaves the worker out until a cooldown
// is over, then one request may probe it. (Seed "Routing & transport", Circuit
// breaker.) It is the router's private opinion and never writes the fleet.
//
// Who asks: picker calls [Circuit.Allows] for each candidate and
// [Circuit.Acquire] for the chosen one only, so that a probe slot is never held
// for a worker that gets no request (Infera defect P17). Who answers: whoever
// finished the request calls [Permit.Done].
//
// The time is an argument and no goroutine is started, so a scenario replays
// exactly.
//
// # Concurrency
//
// Everything is safe for concurrent use. A closed circuit costs one atomic load
// to ask and one to report a success; only faults and open circuits lock.
package breaker

import (
	"errors"
	"fmt"
	"time"
)

// State is a worker's standing. The numbers are the exported metric's values.
type State uint8

// The numbers match infera_router_worker_breaker_state.
const (
	Closed   State = iota // requests pass
	HalfOpen              // the cooldown is over: one probe may pass, or is under way
	Open                  // no request passes
)

// String returns closed, half-open or open.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Outcome is what a finished attempt says about its worker.
type Outcome uint8

// A 4xx is news about the request and a 429 about load: neither about the
// worker's health. (Seed, Circuit breaker: "Two exclusions are deliberate".)
const (
	Neutral Outcome = iota
	Success
	Fault
)

// String returns neutral, success or fault.
func (o Outcome) String() string {
	switch o {
	case Neutral:
		return "neutral"
	case Success:
		return "success"
	case Fault:
		return "fault"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// OutcomeOf maps an HTTP status to an outcome: 5xx is a fault, 4xx is neutral,
// anything below is a success. 0 stands for no answer at all (refused, reset,
// timed out) and is a fault. (Infera breaker.py: a fault is "status >= 500 or 0".)
func OutcomeOf(status int) Outcome {
	switch {
	case status <= 0, status >= 500:
		return Fault
	case status >= 400:
		return Neutral
	}
	return Success
}

// Config is the breaker's tuning. The zero value disables it.
type Config struct {
	// Threshold is how many consecutive faults trip a circuit; 0 disables the
	// breaker. Default 3.
	Threshold int
	// Cooldown is how long a tripped worker is left out before a probe. Default 5 s.
	Cooldown time.Duration
	// MaxCooldown caps the doubling after failed probes. Default 60 s.
	MaxCooldown time.Duration
	// ProbeTimeout is how long a probe may go unanswered before another request
	// may probe. Default 60 s.
	ProbeTimeout time.Duration
	// Jitter lengthens each cooldown by up to this share of it, so that several
	// routers do not probe a worker at the same instant (Infera defect P25).
	// 0 for none; default 0.1.
	Jitter float64
	// Seed makes routers differ in their jitter. Any number; routers of one
	// fleet want different ones.
	Seed uint64
}

// DefaultConfig returns the values the Infera routers ship with.
func DefaultConfig() Config {
	return Config{
		Threshold:    3,
		Cooldown:     5 * time.Second,
		MaxCooldown:  time.Minute,
		ProbeTimeout: time.Minute,
		Jitter:       0.1,
	}
}

// Validate reports every bad field, not only the first. A disabled breaker
// (Threshold 0) needs no other field.
func (c Config) Validate() error {
	var errs []error
	if c.Threshold < 0 || c.Threshold > maxFaults {
		errs = append(errs, fmt.Errorf("breaker threshold %d: want 0 (off) to %d", c.Threshold, maxFaults))
	}
	if c.Jitter < 0 || c.Jitter > 1 || c.Jitter != c.Jitter {
		errs = append(errs, fmt.Errorf("breaker jitter %g: want 0 to 1", c.Jitter))
	}
	if c.Threshold == 0 {
		return errors.Join(errs...)
	}
	if c.Cooldown <= 0 {
		errs = append(errs, fmt.Errorf("breaker cooldown %v: want more than 0", c.Cooldown))
	}
	if c.MaxCooldown < c.Cooldown {
		errs = append(errs, fmt.Errorf("breaker maximum cooldown %v: want at least the cooldown, %v", c.MaxCooldown, c.Cooldown))
	}
	if c.ProbeTimeout <= 0 {
		errs = append(errs, fmt.Errorf("breaker probe timeout %v: want more than 0", c.ProbeTimeout))
	}
	return errors.Join(errs...)
}
