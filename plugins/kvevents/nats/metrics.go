package nats

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/kvindex"
)

// metrics counts over the whole fleet; what is known of each target is the
// index's to export.
type metrics struct {
	*kvindex.TransportMetrics

	heldBytes, heldMessages                        prometheus.Gauge
	gaps, heldDropped, stale, seeded, bucketErrors prometheus.Counter
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
		TransportMetrics: kvindex.NewTransportMetrics("nats"),

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
	errs := []error{m.Register(reg)}
	for _, c := range []prometheus.Collector{
		m.gaps, m.heldMessages, m.heldBytes, m.heldDropped, m.stale, m.seeded, m.bucketErrors,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}
