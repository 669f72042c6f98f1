package picker

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Rate is what is known of how fast a target prefills.
type Rate struct {
	Target      string     // key
	TokensPerMS float64    // te per ms, drawn towards the average of its model and role
	Source      RateSource // see there
}

// Rates returns the rates of the fleet's targets, in order of their keys.
func (p *Picker) Rates() []Rate {
	p.mu.Lock()
	defer p.mu.Unlock()
	type group struct{ model, role string }
	of := make(map[group]evidence)
	rows := p.tab.Load().rows
	for _, r := range rows {
		g := group{r.Worker.Model, r.t.role}
		e := of[g]
		e.add(r.t)
		of[g] = e
	}
	rates := make([]Rate, 0, len(rows))
	for _, r := range rows {
		g := of[group{r.Worker.Model, r.t.role}]
		rates = append(rates, Rate{r.Key, 1 / r.t.pace(p.cfg.Latency.fleetPace(g)), r.t.source()})
	}
	slices.SortFunc(rates, func(a, b Rate) int { return strings.Compare(a.Target, b.Target) })
	return rates
}

// rateCollector reads the rates when it is scraped.
type rateCollector struct {
	p            *Picker
	rate, source *prometheus.Desc
}

func newRateCollector(p *Picker) *rateCollector {
	return &rateCollector{
		p:      p,
		rate:   prometheus.NewDesc("pointsman_router_prefill_rate", "Token-equivalents that the target prefills per millisecond, as least-latency reckons.", []string{"worker_id"}, nil),
		source: prometheus.NewDesc("pointsman_router_prefill_rate_source", "Where that is from: 0 the fleet's average, 1 this picker's own first tokens, 2 a load report.", []string{"worker_id"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (c *rateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.rate
	ch <- c.source
}

// Collect implements [prometheus.Collector].
func (c *rateCollector) Collect(ch chan<- prometheus.Metric) {
	c.p.Refresh(time.Now()) // a report may have become too old with nobody picking
	for _, r := range c.p.Rates() {
		for d, v := range map[*prometheus.Desc]float64{c.rate: r.TokensPerMS, c.source: float64(r.Source)} {
			if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, label(r.Target)); err == nil {
				ch <- m
			}
		}
	}
}
