package assemble

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry is a Prometheus registry that also knows what it could export, which
// a gathered page does not show before the first sample.
type Registry struct {
	*prometheus.Registry

	collectors []prometheus.Collector
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{Registry: prometheus.NewRegistry()} }

// Register adds c, as [prometheus.Registerer] says.
func (r *Registry) Register(c prometheus.Collector) error {
	if err := r.Registry.Register(c); err != nil {
		return err
	}
	r.collectors = append(r.collectors, c)
	return nil
}

// Series is one metric that a program exports.
type Series struct{ Name, Type, Labels, Help string }

// descLine takes a prometheus.Desc apart, whose fields are not exported.
var descLine = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)

// Series lists what has been registered, by name.
func (r *Registry) Series() ([]Series, error) {
	var out []Series
	for _, c := range r.collectors {
		descs := make(chan *prometheus.Desc, 256)
		go func() { c.Describe(descs); close(descs) }()
		for d := range descs {
			m := descLine.FindStringSubmatch(d.String())
			if m == nil {
				return nil, fmt.Errorf("unreadable description %s", d)
			}
			out = append(out, Series{Name: m[1], Type: kind(c, m[1]), Labels: labels(m[3], m[4]), Help: m[2]})
		}
	}
	slices.SortFunc(out, func(a, b Series) int { return strings.Compare(a.Name, b.Name) })
	return slices.Compact(out), nil
}

// constant takes the value off a label of one.
var constant = regexp.MustCompile(`="(?:[^"\\]|\\.)*"`)

// labels joins the names of a series' labels, those whose values never change first.
func labels(fixed, variable string) string {
	names := constant.ReplaceAllString(fixed, "")
	if names == "" || variable == "" {
		return names + variable
	}
	return names + "," + variable
}

func kind(c prometheus.Collector, name string) string {
	switch c.(type) {
	case prometheus.Gauge: // before Counter, whose methods it has too
		return "gauge"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	case *prometheus.CounterVec, prometheus.Counter:
		return "counter"
	}
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}
