package fleet

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Register exports on reg what discovery says and how well it is doing:
// infera_active_workers{disagg_mode} (Infera infera/server/metrics.py),
// pointsman_fleet_connected, pointsman_fleet_staleness_seconds (absent until
// the first whole listing), pointsman_fleet_records_skipped_total{reason} and
// pointsman_discovery_conflicts_total.
func (s *Store) Register(reg prometheus.Registerer) error {
	return reg.Register(&collector{
		store: s,
		active: prometheus.NewDesc("infera_active_workers",
			"Active workers by their role.", []string{"disagg_mode"}, nil),
		connected: prometheus.NewDesc("pointsman_fleet_connected",
			"1 while discovery is in step, 0 when the fleet is the last known one.", nil, nil),
		staleness: prometheus.NewDesc("pointsman_fleet_staleness_seconds",
			"Time since discovery last proved that it is in step.", nil, nil),
		skipped: prometheus.NewDesc("pointsman_fleet_records_skipped_total",
			"Worker records that could not be used, by the field at fault.", []string{"reason"}, nil),
		conflicts: prometheus.NewDesc("pointsman_discovery_conflicts_total",
			"Records that claimed the ID of a worker which another record has.", nil, nil),
	})
}

type collector struct {
	store                                            *Store
	active, connected, staleness, skipped, conflicts *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.active
	ch <- c.connected
	ch <- c.staleness
	ch <- c.skipped
	ch <- c.conflicts
}

// Collect implements [prometheus.Collector]. It reads the clock, because a
// scrape hands over no time.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	var active [Decode + 1]int
	for _, w := range c.store.Snapshot().Workers {
		if w.Status == Active && int(w.Role) < len(active) {
			active[w.Role]++
		}
	}
	for role, n := range active {
		ch <- prometheus.MustNewConstMetric(c.active, prometheus.GaugeValue, float64(n), Role(role).String())
	}
	connected := 0.0
	if c.store.Connected() {
		connected = 1
	}
	ch <- prometheus.MustNewConstMetric(c.connected, prometheus.GaugeValue, connected)
	if age, ok := c.store.Staleness(time.Now()); ok {
		ch <- prometheus.MustNewConstMetric(c.staleness, prometheus.GaugeValue, age.Seconds())
	}
	ch <- prometheus.MustNewConstMetric(c.conflicts, prometheus.CounterValue, float64(c.store.Conflicts()))
	for reason, n := range c.store.Skipped() {
		ch <- prometheus.MustNewConstMetric(c.skipped, prometheus.CounterValue, float64(n), reason)
	}
}
