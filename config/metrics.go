package config

import (
	"github.com/prometheus/client_golang/prometheus"
)

// reload results, as the metric labels them.
const (
	applied   = "applied"
	unchanged = "unchanged"
	refused   = "refused"
)

type metrics struct {
	generation prometheus.Gauge
	info       *prometheus.GaugeVec
	vec        *prometheus.CounterVec
	reloads    map[string]prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		generation: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "infera_router_config_generation", Help: "Generation of the configuration in force: 1 at the start, one more with each reload that changed something.",
		}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "infera_router_config_info", Help: "1, with the digest of the settings in force; the same in programs that do the same.",
		}, []string{"sha256"}),
		vec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_config_reloads_total", Help: "Times the configuration was read anew, by what came of it: applied, unchanged, refused.",
		}, []string{"result"}),
		reloads: map[string]prometheus.Counter{},
	}
	for _, r := range []string{applied, unchanged, refused} {
		m.reloads[r] = m.vec.WithLabelValues(r)
	}
	return m
}

func (m *metrics) inForce(v *version) {
	m.generation.Set(float64(v.generation))
	m.info.Reset()
	m.info.WithLabelValues(v.sum).Set(1)
}

// Register exports generation, digest and reloads on reg.
func (l *Live) Register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{l.metrics.generation, l.metrics.info, l.metrics.vec} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
