package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the prober's (failover 2A).
type metrics struct {
	results     map[result]prometheus.Counter
	probes      *prometheus.CounterVec
	duration    prometheus.Histogram
	transitions prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		results: map[result]prometheus.Counter{},
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_probe_total", Help: "Health probes that have ended, by result.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "infera_router_probe_duration_seconds", Help: "How long health probes took.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 2, 5, 10, 60},
		}),
		transitions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "infera_router_health_transitions_total", Help: "How often a worker turned from up to down or back, by its probes.",
		}),
	}
	for _, r := range results() {
		m.results[r] = m.probes.WithLabelValues(string(r))
	}
	return m
}

func (m *metrics) probed(r result, took time.Duration) {
	m.results[r].Inc()
	if r != skipped {
		m.duration.Observe(took.Seconds())
	}
}

// Register exports the prober's metrics on reg. The series of a worker go with
// it.
func (p *Prober) Register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{p.metrics.probes, p.metrics.duration, p.metrics.transitions, &collector{
		prober: p,
		health: prometheus.NewDesc("infera_router_worker_health", "Whether the worker answers its health probes: 1 yes or not known yet, 0 no.", []string{"worker_id", "role"}, nil),
	}} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

type collector struct {
	prober *Prober
	health *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.health }

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.prober.mu.Lock()
	defer c.prober.mu.Unlock()
	for id, is := range c.prober.watched {
		up := 1.0
		if is.down {
			up = 0
		}
		// An ID that is not UTF-8 cannot be a label; it would fail the scrape.
		if m, err := prometheus.NewConstMetric(c.health, prometheus.GaugeValue, up, id, is.worker.Role.String()); err == nil {
			ch <- m
		}
	}
}
