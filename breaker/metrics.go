package breaker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// How a probe can end.
const (
	probeOK = iota
	probeFault
	probeNothing
	probeTimedOut
	probeResults
)

var probeNames = [probeResults]string{"ok", "fault", "inconclusive", "timeout"} //nolint:gochecknoglobals // an immutable table

// Register exports on reg every circuit's state (0 closed, 1 half-open, 2 open),
// trips and streaks, the pairs that are not closed, and counters. The series are
// those of the circuits in the set: a worker that [Set.Retain] drops takes its
// series along. A disabled breaker has no states.
func (s *Set) Register(reg prometheus.Registerer) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	// The names and the state's numbers are Infera's where it has them (seed,
	// Circuit breaker), and failover §2A's otherwise.
	return reg.Register(&collector{
		set:     s,
		state:   desc("infera_router_worker_breaker_state", "State of the worker's circuit: 0 closed, 1 half-open, 2 open.", "worker_id"),
		trips:   desc("infera_router_worker_breaker_trips_total", "How often the worker's circuit opened, failed probes included.", "worker_id"),
		streak:  desc("infera_router_worker_breaker_streak", "Consecutive faults of the class.", "worker_id", "class"),
		until:   desc("infera_router_worker_breaker_open_until_seconds", "When the cooldown of the worker's circuit ends, in seconds since 1970; 0 while it is closed.", "worker_id"),
		probes:  desc("infera_router_worker_breaker_probes_total", "Requests that tested a tripped worker or pair, by how that ended.", "result"),
		stale:   desc("infera_router_worker_breaker_stale_results_total", "Results ignored because the circuit had changed its state since the request was sent."),
		allOpen: desc("infera_router_worker_breaker_all_open_total", "Requests sent although the circuits of all candidates were open."),
		pair:    desc("infera_router_pair_breaker_state", "State of the pair's circuit, unless it is closed: 1 half-open, 2 open.", "prefill", "decode"),
		parted:  desc("infera_router_pair_breaker_open_until_seconds", "When the cooldown of the pair's circuit ends, in seconds since 1970, unless it is closed.", "prefill", "decode"),
		pairs:   desc("infera_router_pair_trips_total", "How often a pair's circuit opened, failed probes included."),
	})
}

type collector struct {
	set                                                                      *Set
	state, trips, streak, until, probes, stale, allOpen, pair, parted, pairs *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.trips, c.streak, c.until, c.probes, c.stale, c.allOpen, c.pair, c.parted, c.pairs} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. It reads the clock, because a
// scrape hands over no time and an open circuit turns half-open by itself.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, now := c.set, time.Now()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		send(ch, d, prometheus.CounterValue, float64(n), labels...)
	}
	for i, name := range probeNames {
		count(c.probes, s.probes[i].Load(), name)
	}
	count(c.stale, s.stale.Load())
	count(c.allOpen, s.allOpen.Load())
	count(c.pairs, s.pairTrips.Load())
	if !s.Enabled() {
		return
	}
	s.mu.RLock()
	all := make([]*Circuit, 0, len(s.circuits))
	for _, circuit := range s.circuits {
		all = append(all, circuit)
	}
	pairs := make([]*Circuit, 0, len(s.pairs))
	for _, circuit := range s.pairs {
		pairs = append(pairs, circuit)
	}
	s.mu.RUnlock()
	for _, circuit := range all {
		send(ch, c.state, prometheus.GaugeValue, float64(circuit.State(now)), circuit.id)
		count(c.trips, circuit.trips.Load(), circuit.id)
		send(ch, c.until, prometheus.GaugeValue, circuit.openUntil(), circuit.id)
		_, st, _ := unpack(circuit.word.Load())
		for _, o := range []Outcome{Connect, Origin, Stream, Transfer} {
			send(ch, c.streak, prometheus.GaugeValue, float64(st.of(o)), circuit.id, o.String())
		}
	}
	for _, circuit := range pairs {
		if state := circuit.State(now); state != Closed {
			send(ch, c.pair, prometheus.GaugeValue, float64(state), circuit.id, circuit.peer)
			send(ch, c.parted, prometheus.GaugeValue, circuit.openUntil(), circuit.id, circuit.peer)
		}
	}
}

// openUntil returns the end of the cooldown in seconds since 1970, 0 while closed.
func (c *Circuit) openUntil() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Closed() {
		return 0
	}
	return float64(c.until.UnixMilli()) / 1000
}

// send leaves out what cannot be a series: an ID that is not UTF-8 would make
// the whole scrape fail.
func send(ch chan<- prometheus.Metric, d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
	if m, err := prometheus.NewConstMetric(d, t, v, labels...); err == nil {
		ch <- m
	}
}
