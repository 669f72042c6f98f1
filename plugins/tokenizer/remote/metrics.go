package remote

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what became of each request for token ids.
type metrics struct {
	results *prometheus.CounterVec
	hits    prometheus.Counter
	seconds prometheus.Histogram
	bytes   prometheus.GaugeFunc
}

func newMetrics(cacheBytes func() int) metrics {
	m := metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_tokenize_total",
			Help: "Prompts to be tokenized by a worker, by result; every result but ok means that the prompt was approximated.",
		}, []string{"result"}),
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_tokenize_cache_hits_total",
			Help: "Prompts whose token ids were known from an equal request, of those with result ok.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pointsman_tokenize_seconds",
			Help:    "Time of the exchanges with a worker's /tokenize, failed ones too.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
		}),
		bytes: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pointsman_tokenize_cache_bytes",
			Help: "Memory of the kept token ids.",
		}, func() float64 { return float64(cacheBytes()) }),
	}
	for _, r := range reasons() {
		m.results.WithLabelValues(r)
	}
	return m
}

// Register registers the tokenizer's metrics.
func (t *Tokenizer) Register(reg prometheus.Registerer) error {
	m := &t.metrics
	return errors.Join(reg.Register(m.results), reg.Register(m.hits), reg.Register(m.seconds), reg.Register(m.bytes))
}
