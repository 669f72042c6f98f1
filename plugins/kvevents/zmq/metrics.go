package zmq

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts over all subscriptions; what is known of each target is the
// index's to export.
type metrics struct {
	subscriptions, connected           prometheus.Gauge
	messages, bytes, ignored           prometheus.Counter
	decodeErrors, reconnects, replayed prometheus.Counter
	replays                            *prometheus.CounterVec // outcome: complete, failed
}

func newMetrics() *metrics {
	transport := prometheus.Labels{"transport": "zmq"}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "pointsman_kvevents_" + name, Help: help, ConstLabels: transport})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "pointsman_kvevents_" + name, Help: help, ConstLabels: transport})
	}
	return &metrics{
		subscriptions: gauge("subscriptions", "Targets whose KV events are followed."),
		connected:     gauge("connected", "Subscriptions whose publisher is reached."),
		messages:      counter("messages_total", "Messages of KV events taken."),
		bytes:         counter("bytes_total", "Bytes of the messages taken."),
		ignored:       counter("ignored_messages_total", "Messages of another topic, or of one frame."),
		decodeErrors:  counter("decode_errors_total", "Messages that are no batch of KV events."),
		reconnects:    counter("reconnects_total", "Connections that failed or broke."),
		replayed:      counter("replayed_messages_total", "Messages of the past that publishers sent again."),
		replays: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_kvevents_replays_total", Help: "Requests for past KV events, by how they ended.", ConstLabels: transport,
		}, []string{"outcome"}),
	}
}

// Register exports the subscriber's numbers on reg.
func (s *Subscriber) Register(reg prometheus.Registerer) error {
	m := s.metrics
	var errs []error
	for _, c := range []prometheus.Collector{
		m.subscriptions, m.connected, m.messages, m.bytes, m.ignored, m.decodeErrors, m.reconnects, m.replayed, m.replays,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}
