package nats

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts over the whole fleet; what is known of each target is the
// index's to export.
type metrics struct {
	subscriptions, connected, heldBytes, heldMessages prometheus.Gauge
	messages, bytes, ignored, decodeErrors            prometheus.Counter
	reconnects, replayed, gaps                        prometheus.Counter
	heldDropped, stale                                prometheus.Counter
	seeded, bucketErrors                              prometheus.Counter
	replays                                           *prometheus.CounterVec // outcome: complete, failed
}

func newMetrics() *metrics {
	transport := prometheus.Labels{"transport": "nats"}
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
		gaps:         counter("stream_gaps_total", "Times that the stream no longer had what was to come next."),
		heldMessages: gauge("held_messages", "Messages kept for workers that may be, or become, new processes."),
		heldBytes:    gauge("held_bytes", "Memory of the messages kept."),
		heldDropped:  counter("held_dropped_total", "Messages kept for a worker not known yet that were dropped for want of room."),
		stale:        counter("stale_messages_total", "Messages left out because an earlier process of their worker sent them."),
		seeded:       counter("seeded_blocks_total", "Blocks assumed to be held because the bucket lists them."),
		bucketErrors: counter("bucket_errors_total", "Entries of the bucket that could not be read."),
	}
}

// Register exports the subscriber's numbers on reg.
func (s *Subscriber) Register(reg prometheus.Registerer) error {
	m := s.metrics
	var errs []error
	for _, c := range []prometheus.Collector{
		m.subscriptions, m.connected, m.messages, m.bytes, m.ignored, m.decodeErrors, m.reconnects, m.replayed, m.replays,
		m.gaps, m.heldMessages, m.heldBytes, m.heldDropped, m.stale, m.seeded, m.bucketErrors,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}
