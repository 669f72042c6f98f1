package kvindex

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// TransportMetrics are the numbers that every transport of KV events counts, over all
// its publishers. They have one name over all transports, and the label transport.
type TransportMetrics struct {
	Subscriptions prometheus.Gauge
	Connected     prometheus.Gauge
	Messages      prometheus.Counter
	Bytes         prometheus.Counter
	Ignored       prometheus.Counter
	DecodeErrors  prometheus.Counter
	Reconnects    prometheus.Counter
	Replayed      prometheus.Counter
	Replays       *prometheus.CounterVec // outcome: complete, failed
}

// NewTransportMetrics returns the numbers of the transport of that name.
func NewTransportMetrics(transport string) *TransportMetrics {
	label := prometheus.Labels{"transport": transport}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "pointsman_kvevents_" + name, Help: help, ConstLabels: label})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "pointsman_kvevents_" + name, Help: help, ConstLabels: label})
	}
	return &TransportMetrics{
		Subscriptions: gauge("subscriptions", "Targets whose KV events are followed."),
		Connected:     gauge("connected", "Subscriptions whose publisher is reached."),
		Messages:      counter("messages_total", "Messages of KV events taken."),
		Bytes:         counter("bytes_total", "Bytes of the messages taken."),
		Ignored:       counter("ignored_messages_total", "Messages of another topic, or of one frame."),
		DecodeErrors:  counter("decode_errors_total", "Messages that are no batch of KV events."),
		Reconnects:    counter("reconnects_total", "Connections that failed or broke."),
		Replayed:      counter("replayed_messages_total", "Messages of the past that publishers sent again."),
		Replays: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_kvevents_replays_total", Help: "Requests for past KV events, by how they ended.", ConstLabels: label,
		}, []string{"outcome"}),
	}
}

// Register exports the numbers on reg.
func (m *TransportMetrics) Register(reg prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{
		m.Subscriptions, m.Connected, m.Messages, m.Bytes, m.Ignored, m.DecodeErrors, m.Reconnects, m.Replayed, m.Replays,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}
