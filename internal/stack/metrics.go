package stack

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics is one scrape of a program's /metrics.
type Metrics map[string]*dto.MetricFamily

// Metrics scrapes the program whose admin address is given.
func (s *Stack) Metrics(ctx context.Context, admin string) (Metrics, error) {
	raw, err := Get(ctx, s.client, admin+"/metrics")
	if err != nil {
		return nil, err
	}
	return ParseMetrics(raw)
}

// ParseMetrics reads the Prometheus text format.
func ParseMetrics(raw []byte) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return families, nil
}

// Sum adds up the series of name that carry all the given labels: values of
// counters and gauges, counts of histograms. It is 0 when there is none.
func (m Metrics) Sum(name string, labels map[string]string) float64 {
	total := 0.0
	m.Each(name, func(have map[string]string, value float64) {
		for k, want := range labels {
			if have[k] != want {
				return
			}
		}
		total += value
	})
	return total
}

// Each calls see with the labels and value of every series of name.
func (m Metrics) Each(name string, see func(labels map[string]string, value float64)) {
	family := m[name]
	for _, series := range family.GetMetric() {
		labels := maps.Collect(func(yield func(string, string) bool) {
			for _, pair := range series.GetLabel() {
				if !yield(pair.GetName(), pair.GetValue()) {
					return
				}
			}
		})
		see(labels, valueOf(series))
	}
}

func valueOf(series *dto.Metric) float64 {
	switch {
	case series.GetCounter() != nil:
		return series.GetCounter().GetValue()
	case series.GetGauge() != nil:
		return series.GetGauge().GetValue()
	case series.GetUntyped() != nil:
		return series.GetUntyped().GetValue()
	case series.GetHistogram() != nil:
		return float64(series.GetHistogram().GetSampleCount())
	}
	return 0
}
