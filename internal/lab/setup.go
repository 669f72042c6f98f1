package lab

import (
	"errors"
	"fmt"
	"time"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/kvindex"
	"pointsman/picker"
)

// Setup is everything about one run but the trace. Start from [DefaultSetup].
type Setup struct {
	Policy Policy
	Seed   uint64 // of jitter, ties, losses and the choice among routers

	Workers     int     // engines. Default 8
	Engine      Engine  // of each. Default [DefaultPreset]
	CacheBlocks int     // blocks of each engine's cache; see [CacheFor]
	Rate        float64 // requests per second on average; 0 for the trace's own times

	Slow     []Slowness    // engines that differ
	Failures []Failure     // engines that die
	Loss     float64       // share of KV event batches that no one misses although they never come
	EventLag time.Duration // from a step's end to the routers' knowing of its KV events. Default 50 ms
	Notice   time.Duration // the same for first tokens and ends. Default 50 ms

	Routers        int           // pickers that share the fleet, each with its part of the requests. Default 1
	ReportInterval time.Duration // how often each worker's forwarder reports its load; 0 for never

	Picker    PickerSetup
	Index     kvindex.Config
	Breaker   breaker.Config
	Admission admission.Config

	Samples int // how often the queues are looked at in a run; 0 for never
}

// PickerSetup is what the picker is given beside its policy.
type PickerSetup struct {
	WorkerCap int            // requests in flight on one worker; 0 for no limit
	Latency   picker.Latency // tuning of policy least-latency; zero for its defaults
}

// Slowness makes an engine slower.
type Slowness struct {
	Worker int           // from 0
	Factor float64       // everything takes so many times as long; below 1 is faster
	From   time.Duration // into the run
}

// Failure kills an engine: what it was doing is lost, and so is its cache.
type Failure struct {
	Worker int           // from 0
	From   time.Duration // into the run
	For    time.Duration // until it is back, empty
}

// DefaultSetup returns the fleet of findings/policy.md §1 under policy kv-aware.
func DefaultSetup() Setup {
	engine, _ := Preset(DefaultPreset)
	return Setup{
		Policy: Policy{Label: "infera_w1", Name: "kv-aware", Weight: 1},
		Seed:   1, Workers: 8, Engine: engine, CacheBlocks: 4096,
		EventLag: 50 * time.Millisecond, Notice: 50 * time.Millisecond,
		Routers: 1, Index: kvindex.DefaultConfig(), Breaker: breaker.DefaultConfig(), Admission: admission.DefaultConfig(),
	}
}

// Bounds of a setup.
const (
	maxWorkers = 4096
	maxRouters = 256
	maxFactor  = 1000
)

// Validate reports all faults of s.
func (s *Setup) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	errs = append(errs, s.Engine.Validate(), s.Index.Validate(), s.Breaker.Validate(), s.Admission.Validate(), s.Picker.Latency.Validate())
	check(s.Workers >= 1 && s.Workers <= maxWorkers, "%d workers: give 1 to %d", s.Workers, maxWorkers)
	check(s.CacheBlocks >= 1, "cache of %d blocks: give at least 1", s.CacheBlocks)
	check(s.Rate >= 0 && s.Rate <= 1e6, "rate of %g requests/s: give 0 (the trace's own) to 1000000", s.Rate)
	check(s.Loss >= 0 && s.Loss <= 1, "event loss %g: give 0 to 1", s.Loss)
	check(s.EventLag >= 0 && s.EventLag <= time.Hour, "event lag %v: give 0 to 1h", s.EventLag)
	check(s.Notice >= 0 && s.Notice <= time.Hour, "notice lag %v: give 0 to 1h", s.Notice)
	check(s.Routers >= 1 && s.Routers <= maxRouters, "%d routers: give 1 to %d", s.Routers, maxRouters)
	check(s.ReportInterval == 0 || s.ReportInterval >= time.Millisecond, "report interval %v: give 0 (none) or at least 1ms", s.ReportInterval)
	check(s.Picker.WorkerCap >= 0, "worker cap %d: give 0 (no limit) or more", s.Picker.WorkerCap)
	check(s.Samples >= 0 && s.Samples <= 10_000, "%d samples: give 0 to 10000", s.Samples)
	for _, slow := range s.Slow {
		check(slow.Worker >= 0 && slow.Worker < s.Workers, "slow worker %d: give 0 to %d", slow.Worker, s.Workers-1)
		check(slow.Factor > 0 && slow.Factor <= maxFactor, "slowness %g: give more than 0, up to %d", slow.Factor, maxFactor)
		check(slow.From >= 0, "slow from %v: give 0 or more", slow.From)
	}
	for _, f := range s.Failures {
		check(f.Worker >= 0 && f.Worker < s.Workers, "failing worker %d: give 0 to %d", f.Worker, s.Workers-1)
		check(f.From >= 0 && f.For > 0, "failure from %v for %v: give 0 or more, and more than 0", f.From, f.For)
	}
	return errors.Join(errs...)
}

// minCache is the least blocks per worker that [CacheFor] gives
// (findings/policy.md §1).
const minCache = 450

// CacheFor returns the blocks per worker of a cache that holds the given percentage
// of the trace's different blocks over the whole fleet; at least 450, and at least
// what the largest request needs.
func CacheFor(t *Trace, workers int, percent float64) int {
	largest, _ := t.largest()
	return max(minCache, largest, int(float64(t.UniqueBlocks())*percent/100/float64(max(1, workers))))
}
