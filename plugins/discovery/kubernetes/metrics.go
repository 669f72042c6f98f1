package kubernetes

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/internal/kube"
)

// metrics are the source's own numbers. What the fleet looks like and how stale
// it is are the room fleet's.
type metrics struct {
	pods           *prometheus.GaugeVec
	contested      prometheus.Gauge
	lists, watches prometheus.Counter
	errors, states *prometheus.CounterVec
}

// states lists the states in the order of a worker's life.
var states = [...]state{ //nolint:gochecknoglobals // an immutable table
	stateNone, stateUnusable, stateNotReady, stateActive, stateInactive, stateTerminating, stateDown, stateEnded,
}

func newMetrics() *metrics {
	return &metrics{
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pointsman_kubernetes_pods", Help: "Pods that the selector matches, by the state of their worker.",
		}, []string{"state"}),
		contested: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pointsman_kubernetes_contested_workers", Help: "Worker IDs that several Pods claim to be active under.",
		}),
		lists: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_kubernetes_lists_total", Help: "Complete listings of the Pods.",
		}),
		watches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_kubernetes_watches_total", Help: "Watches of the Pods that were opened.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_kubernetes_errors_total", Help: "Ends of a session with the API server, by their reason.",
		}, []string{"reason"}),
		states: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_kubernetes_worker_changes_total", Help: "Changes of workers, by the state they came to; unregistered when the record or the Pod went.",
		}, []string{"state"}),
	}
}

// Register exports on reg pointsman_kubernetes_pods{state},
// pointsman_kubernetes_contested_workers, pointsman_kubernetes_lists_total,
// pointsman_kubernetes_watches_total, pointsman_kubernetes_errors_total{reason}
// and pointsman_kubernetes_worker_changes_total{state}.
func (s *Source) Register(reg prometheus.Registerer) error {
	m := s.metrics
	var errs []error
	for _, c := range []prometheus.Collector{m.pods, m.contested, m.lists, m.watches, m.errors, m.states} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) observe(pods map[state]int, contested int) {
	for _, s := range states {
		m.pods.WithLabelValues(string(s)).Set(float64(pods[s]))
	}
	m.contested.Set(float64(contested))
}

func (m *metrics) failed(err error)  { m.errors.WithLabelValues(kube.Reason(err)).Inc() }
func (m *metrics) changed(now state) { m.states.WithLabelValues(string(now)).Inc() }
