package reports

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	received  *prometheus.CounterVec
	taken     prometheus.Counter
	old       prometheus.Counter
	malformed prometheus.Counter
	excess    prometheus.Counter
	gaps      prometheus.Counter
	sources   prometheus.GaugeFunc
	replicas  prometheus.GaugeFunc
}

func newMetrics(b *Board) *metrics {
	m := &metrics{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_load_reports_received_total",
			Help: "Load reports of forwarders by what became of them: taken, old (known already, by another way), malformed, excess (of more forwarders, or workers, than are kept).",
		}, []string{"result"}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_load_report_gaps_total",
			Help: "Load reports that were missing before one that came; the next heartbeat makes up for them.",
		}),
		sources: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pointsman_load_report_sources",
			Help: "Forwarders whose load reports come in.",
		}, func() float64 { return float64(b.Sources()) }),
		replicas: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pointsman_replicas",
			Help: "Pickers that are known to live, this one included; pool-wide limits are divided among them.",
		}, func() float64 { return float64(b.Replicas(time.Now())) }),
	}
	m.taken, m.old, m.malformed = m.received.WithLabelValues("taken"), m.received.WithLabelValues("old"), m.received.WithLabelValues("malformed")
	m.excess = m.received.WithLabelValues("excess")
	return m
}

// Malformed counts a report that could not be read.
func (b *Board) Malformed() { b.metrics.malformed.Inc() }

// Register exports the board's metrics on reg.
func (b *Board) Register(reg prometheus.Registerer) error {
	m := b.metrics
	return errors.Join(reg.Register(m.received), reg.Register(m.gaps), reg.Register(m.sources), reg.Register(m.replicas))
}
