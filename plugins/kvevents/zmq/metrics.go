package zmq

import "github.com/prometheus/client_golang/prometheus"

// Register exports the subscriber's numbers on reg; what is known of each target is
// the index's to export.
func (s *Subscriber) Register(reg prometheus.Registerer) error { return s.metrics.Register(reg) }
