package local

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	results *prometheus.CounterVec
	models  *modelCollector
}

func newMetrics(t *Tokenizer) *metrics {
	m := &metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_tokenizer_local_total",
			Help: "Prompts to be tokenized in this process, by result; all but exact were left to a worker's /tokenize.",
		}, []string{"result"}),
		models: &modelCollector{
			t: t,
			loaded: prometheus.NewDesc("pointsman_tokenizer_loaded",
				"1 when the model's prompts are tokenized in this process, 0 when its files cannot be honoured exactly.", []string{"model"}, nil),
			bytes: prometheus.NewDesc("pointsman_tokenizer_bytes", "Memory of the model's tokenizer.", []string{"model"}, nil),
		},
	}
	m.results.WithLabelValues("exact") // 0 before the first one, not absent: rates and alerts want it from the start
	return m
}

// Register registers the tokenizer's metrics.
func (t *Tokenizer) Register(reg prometheus.Registerer) error {
	return errors.Join(reg.Register(t.metrics.results), reg.Register(t.metrics.models))
}

// modelCollector shows the models that are known at the moment.
type modelCollector struct {
	t             *Tokenizer
	loaded, bytes *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *modelCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.loaded
	ch <- c.bytes
}

// Collect implements prometheus.Collector.
func (c *modelCollector) Collect(ch chan<- prometheus.Metric) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for name, e := range c.t.models {
		loaded := 0.0
		if e.model != nil {
			loaded = 1
			ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(e.model.tokens.Memory()), name)
		}
		if !errors.Is(e.err, errLoading) {
			ch <- prometheus.MustNewConstMetric(c.loaded, prometheus.GaugeValue, loaded, name)
		}
	}
}
