package nats

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the transport's own numbers. None is by worker: the forwarder
// counts attempts.
type metrics struct {
	connected prometheus.Gauge
	connects  prometheus.Counter
	requests  *prometheus.CounterVec
	cancels   prometheus.Counter
	probes    prometheus.Counter
	late      prometheus.Counter
	held      prometheus.GaugeFunc
}

func newMetrics() *metrics {
	return &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pointsman_nats_connected", Help: "Whether there is a connection to the request broker.",
		}),
		connects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_nats_connects_total", Help: "Connections made to the request broker.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_nats_requests_total",
			Help: "Attempts over the request broker by how their head came: answered, failed, timeout, no_responders, no_broker, pending_cap, not_carried or fallback.",
		}, []string{"outcome"}),
		cancels: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_nats_cancels_total", Help: "Requests whose worker was told to stop, repetitions not counted.",
		}),
		probes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_nats_probes_total", Help: "Probes of silent workers.",
		}),
		late: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_nats_late_frames_total", Help: "Frames that came when their request had ended.",
		}),
	}
}

// buffered exports the bytes that wait for slow clients.
func (m *metrics) buffered(n *atomic.Int64) {
	m.held = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pointsman_nats_buffered_bytes", Help: "Bytes of answers that have come and not been taken.",
	}, func() float64 { return float64(n.Load()) })
}

// Register exports the transport's numbers.
func (t *Transport) Register(reg prometheus.Registerer) error {
	m := t.metrics
	return errors.Join(
		reg.Register(m.connected), reg.Register(m.connects), reg.Register(m.requests), reg.Register(m.cancels),
		reg.Register(m.probes), reg.Register(m.late), reg.Register(m.held),
	)
}
