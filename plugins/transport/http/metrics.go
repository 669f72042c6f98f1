package http

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the transport's own numbers. None is by worker: the forwarder
// counts attempts.
type metrics struct{ connects *prometheus.HistogramVec }

func newMetrics() *metrics {
	return &metrics{connects: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "infera_router_connect_seconds",
		Help:    "Dials of workers, TLS handshake included, by how they ended: ok, refused, timeout or canceled.",
		Buckets: []float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30},
	}, []string{"result"})}
}

// dialed counts a dial that took so long and ended with err.
func (m *metrics) dialed(took time.Duration, err error) {
	result := "ok"
	var limit net.Error
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		result = "canceled"
	case errors.As(err, &limit) && limit.Timeout():
		result = "timeout"
	default:
		result = "refused"
	}
	m.connects.WithLabelValues(result).Observe(took.Seconds())
}

// Register exports the transport's numbers.
func (t *Transport) Register(reg prometheus.Registerer) error {
	return reg.Register(t.dials.metrics.connects)
}
