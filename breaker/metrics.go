package breaker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The names and the state's numbers are Infera's (seed, Circuit breaker).
const (
	stateName = "infera_router_worker_breaker_state"
	tripsName = "infera_router_worker_breaker_trips_total"
)

// Register exports every circuit's state (0 closed, 1 half-open, 2 open) and
// trips on reg. The series are those of the circuits in the set: a worker that
// [Set.Retain] drops takes its series along.
func (s *Set) Register(reg prometheus.Registerer) error {
	return reg.Register(&collector{
		set: s,
		state: prometheus.NewDesc(stateName,
			"State of the worker's circuit: 0 closed, 1 half-open, 2 open.", []string{"worker_id"}, nil),
		trips: prometheus.NewDesc(tripsName,
			"How often the worker's circuit opened, failed probes included.", []string{"worker_id"}, nil),
	})
}

type collector struct {
	set          *Set
	state, trips *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.state
	ch <- c.trips
}

// Collect implements [prometheus.Collector]. It reads the clock, because a
// scrape hands over no time and an open circuit turns half-open by itself.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	c.set.mu.RLock()
	all := make([]*Circuit, 0, len(c.set.circuits))
	for _, circuit := range c.set.circuits {
		all = append(all, circuit)
	}
	c.set.mu.RUnlock()
	for _, circuit := range all {
		send(ch, c.state, prometheus.GaugeValue, float64(circuit.State(now)), circuit.id)
		send(ch, c.trips, prometheus.CounterValue, float64(circuit.trips.Load()), circuit.id)
	}
}

// send leaves out what cannot be a series: an ID that is not UTF-8 would make
// the whole scrape fail.
func send(ch chan<- prometheus.Metric, d *prometheus.Desc, t prometheus.ValueType, v float64, id string) {
	if m, err := prometheus.NewConstMetric(d, t, v, id); err == nil {
		ch <- m
	}
}
