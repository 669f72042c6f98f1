package forward

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/fleet"
	"pointsman/picker"
)

// pairMetrics are the numbers of legs, under the names and reasons of Infera's
// routers (infera/server/metrics.py), so that its dashboards go on working.
type pairMetrics struct {
	took     *prometheus.HistogramVec // by leg and worker
	failures *prometheus.CounterVec   // by reason

	mu   sync.Mutex
	seen map[string]bool // workers that took has series of
}

func newPairMetrics() *pairMetrics {
	return &pairMetrics{
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "infera_pd_dispatch_duration_seconds",
			Help:    "Duration of a leg of a pair that went well, from its dispatch to the end of its answer.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"leg", "worker_id"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_pd_bootstrap_failures_total",
			Help: "Pairs that could not serve a request, by what failed.",
		}, []string{"reason"}),
		seen: map[string]bool{},
	}
}

// ended notes the end of one leg, which took that long.
func (m *pairMetrics) ended(t *try, why reason, err error, took time.Duration) {
	if why != tryOK {
		if name := legFailure(t.leg, why, err); name != "" {
			m.failures.WithLabelValues(name).Inc()
		}
		return
	}
	m.mu.Lock()
	m.seen[t.worker] = true
	m.mu.Unlock()
	m.took.WithLabelValues(t.leg.String(), t.worker).Observe(took.Seconds())
}

// forget drops the series of workers that snap does not hold. A leg that ends
// behind that brings its worker's back until the fleet changes once more.
func (m *pairMetrics) forget(snap *fleet.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.seen {
		if snap.Worker(id) == nil {
			delete(m.seen, id)
			m.took.DeletePartialMatch(prometheus.Labels{"worker_id": id})
		}
	}
}

// unpaired notes a request that failed with err, if it was for want of a pair, or of
// a way to ask one. Whether the gateway had named a pair is named.
func (m *pairMetrics) unpaired(err error, named bool) {
	switch {
	case named && errors.Is(err, errStale):
		m.failures.WithLabelValues("direct_worker_missing").Inc()
	case errors.As(err, new(*picker.PairError)):
		m.failures.WithLabelValues("no_pd_workers").Inc()
	case errors.Is(err, errPD):
		m.failures.WithLabelValues("protocol_unresolved").Inc()
	}
}

// legFailure names the failure of a leg as Infera does; "" for what is no failure
// of the pair: the client left, or the partner failed first.
func legFailure(l leg, why reason, err error) string {
	name, prefill := "decode_", l == legPrefill
	if prefill {
		name = "prefill_"
	}
	switch why {
	case tryAborted, tryBlameless:
		return ""
	case tryUnusable:
		if errors.Is(err, ErrPairParams) {
			return "protocol_annotate_failed"
		}
		return "worker_unreachable"
	case tryHandoff:
		return "handoff_extract_failed"
	case tryRefused, tryConnectLimit:
		return name + "unreachable"
	case try4xx, tryBusy:
		return name + "4xx"
	case try5xx, tryErrorEvent:
		return name + "5xx"
	case tryTransfer:
		if _, answered := errors.AsType[*answer](err); answered {
			return name + "5xx"
		}
	}
	if prefill {
		return "prefill_exception"
	}
	return "decode_stream_broken"
}
