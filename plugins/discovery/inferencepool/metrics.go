package inferencepool

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/internal/kube"
)

// metrics are the source's own numbers. What the fleet looks like and how stale
// it is are the room fleet's.
type metrics struct {
	found, port                   prometheus.Gauge
	pods                          *prometheus.GaugeVec
	lists, watches, errors, asked *prometheus.CounterVec
}

func newMetrics() *metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		found: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pointsman_inferencepool_found", Help: "1 while the InferencePool is there and usable, else 0.",
		}),
		port: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pointsman_inferencepool_picker_port_mismatch", Help: "1 while the InferencePool names another port for its endpoint picker than this one listens on.",
		}),
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pointsman_inferencepool_pods", Help: "Pods of the pool by what they are doing.",
		}, []string{"state"}),
		lists:   counters("pointsman_inferencepool_lists_total", "Complete listings of a resource.", "resource"),
		watches: counters("pointsman_inferencepool_watches_total", "Watches of a resource that were opened.", "resource"),
		errors:  counters("pointsman_inferencepool_errors_total", "Ends of a session with the API server, by resource and reason.", "resource", "reason"),
		asked:   counters("pointsman_inferencepool_model_queries_total", "Questions to endpoints for their models, answered or failed.", "result"),
	}
}

// Register exports on reg pointsman_inferencepool_found, _picker_port_mismatch,
// _pods{state}, _lists_total{resource}, _watches_total{resource},
// _errors_total{resource,reason} and _model_queries_total{result}.
func (s *Source) Register(reg prometheus.Registerer) error {
	m := s.metrics
	var errs []error
	for _, c := range []prometheus.Collector{m.found, m.port, m.pods, m.lists, m.watches, m.errors, m.asked} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) observe(pods map[state]int) {
	for _, s := range []state{stateReady, stateNotReady, stateTerminating, stateEnded} {
		m.pods.WithLabelValues(string(s)).Set(float64(pods[s]))
	}
}

func (m *metrics) failed(resource string, err error) {
	m.errors.WithLabelValues(resource, kube.Reason(err)).Inc()
}
