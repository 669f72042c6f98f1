package admission

import dto "github.com/prometheus/client_model/go"

// count reads a decisions counter.
func count(g *Gate, r reason) float64 {
	var m dto.Metric
	if err := g.metrics.byReason[r].Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}
