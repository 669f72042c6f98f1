package picker

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
)

// metrics is the picker's counters. Names that begin with infera_ are Infera's
// (infera/server/metrics.py). What a pick touches is resolved beforehand, for a
// lookup by label costs more than the scoring of a small fleet.
type metrics struct {
	picks      *prometheus.CounterVec
	hits       *prometheus.HistogramVec
	blocks     *prometheus.HistogramVec
	skipped    *prometheus.CounterVec
	retention  *prometheus.CounterVec
	reasons    *prometheus.CounterVec
	prompt     *prometheus.CounterVec
	hit        *prometheus.CounterVec
	outcomes   *prometheus.CounterVec
	sessions   *prometheus.CounterVec
	shadow     *prometheus.CounterVec
	shadowTime *prometheus.HistogramVec
	shadowHit  *prometheus.HistogramVec

	multimodal  prometheus.Counter
	byRetention [RetentionLong + 1]prometheus.Counter
	byOutcome   [breaker.Busy + 1]prometheus.Counter
	byReason    map[string]prometheus.Counter // guarded by the picker's mutex
	byRole      map[string]*roleMetrics       // the same
	byShadow    map[*policy]*shadowMetrics    // the same
}

// shadowMetrics is the children of one shadow policy.
type shadowMetrics struct {
	same, other, none prometheus.Counter
	seconds, tokens   prometheus.Observer
}

// differences are buckets on both sides of nothing.
func differences(least float64) []float64 {
	up := prometheus.ExponentialBuckets(least, 4, 7)
	var both []float64
	for _, b := range slices.Backward(up) {
		both = append(both, -b)
	}
	return append(append(both, 0), up...)
}

// roleMetrics is the children of one role.
type roleMetrics struct {
	hits, blocks prometheus.Observer
	prompt, hit  prometheus.Counter
}

// blockBuckets are Infera's: 0, 1, 2, 4 ... 2048.
func blockBuckets() []float64 {
	return append([]float64{0}, prometheus.ExponentialBuckets(1, 2, 12)...)
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: blockBuckets()}, []string{"role"})
	}
	m := &metrics{
		picks:     counter("infera_router_picks_total", "Picks by role and target.", "role", "worker_id"),
		hits:      histogram("infera_router_pick_cache_hits", "Prompt blocks that the chosen worker was believed to hold."),
		blocks:    histogram("infera_router_pick_request_blocks", "Prompt blocks of the request, of the chosen worker's size."),
		skipped:   counter("infera_cache_locality_skipped_total", "Requests whose prompt was not compared with the caches.", "reason"),
		retention: counter("infera_cache_control_seen_total", "Requests that said how long to cache their prompt.", "retention"),
		reasons:   counter("pointsman_router_pick_reason_total", "Picks by how the prompt was known.", "reason"),
		prompt:    counter("pointsman_router_prompt_tokens_total", "Prompt tokens in full blocks of all picks.", "role"),
		hit:       counter("pointsman_router_hit_tokens_total", "Prompt tokens that the chosen worker was believed to hold.", "role"),
		outcomes:  counter("infera_router_outcomes_total", "Picks by what their end said of the worker.", "class"),
		sessions:  counter("pointsman_router_sessions_total", "Requests of a conversation, by whether it was new, kept its workers or moved.", "result"),
		shadow:    counter("pointsman_shadow_picks_total", "Picks that a shadow policy was asked about: it chose the same, another, or the pick was no policy's.", "policy", "result"),
		shadowTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pointsman_shadow_difference_seconds", Buckets: differences(0.001),
			Help: "Estimated time to first token of the shadow's choice less that of the pick: below 0 the shadow would be faster.",
		}, []string{"policy"}),
		shadowHit: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pointsman_shadow_difference_hit_tokens", Buckets: differences(16),
			Help: "Prompt tokens that the shadow's choice was believed to hold less those of the pick.",
		}, []string{"policy"}),
		byShadow: make(map[*policy]*shadowMetrics),
		byReason: make(map[string]prometheus.Counter),
		byRole:   make(map[string]*roleMetrics),
	}
	m.multimodal = m.skipped.WithLabelValues("multimodal")
	for r := RetentionNone; r <= RetentionLong; r++ {
		m.byRetention[r] = m.retention.WithLabelValues(r.String())
	}
	for o := breaker.Neutral; o <= breaker.Busy; o++ {
		m.byOutcome[o] = m.outcomes.WithLabelValues(o.String())
	}
	return m
}

// Register exports the picker's metrics on reg.
func (p *Picker) Register(reg prometheus.Registerer) error {
	m := p.metrics
	for _, c := range []prometheus.Collector{
		m.picks, m.hits, m.blocks, m.skipped, m.retention, m.reasons, m.prompt, m.hit,
		m.outcomes, m.sessions, m.shadow, m.shadowTime, m.shadowHit, newLoadCollector(p), newRateCollector(p),
	} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// picked counts a pick. The picker's mutex is held.
func (m *metrics) picked(req *Request, s *selection, t *target, hit int) {
	t.picks.Inc()
	m.reason(s.reason).Inc()
	if int(req.Retention) < len(m.byRetention) && req.Retention != RetentionUnset {
		m.byRetention[req.Retention].Inc()
	}
	if req.Multimodal {
		m.multimodal.Inc()
	}
	if !s.steer {
		return
	}
	r := m.role(t.role)
	r.hits.Observe(s.blocksOf(float64(hit), s.chosen))
	r.blocks.Observe(s.blocksOf(s.total, s.chosen))
	r.prompt.Add(s.total)
	r.hit.Add(float64(hit))
}

// bound counts a request of a conversation. The picker's mutex is held.
func (m *metrics) bound(was *pin, worker, prefill string) {
	switch {
	case was == nil:
		m.sessions.WithLabelValues("new").Inc()
	case was.worker == worker && was.prefill == prefill:
		m.sessions.WithLabelValues("kept").Inc()
	default:
		m.sessions.WithLabelValues("moved").Inc()
	}
}

func (m *metrics) ended(o breaker.Outcome) {
	if int(o) < len(m.byOutcome) {
		m.byOutcome[o].Inc()
	}
}

// shadowed counts what the shadow of s has chosen. The picker's mutex is held.
func (m *metrics) shadowed(s *selection) {
	sh := &s.shadow
	if sh.policy == nil {
		return
	}
	c := m.byShadow[sh.policy]
	if c == nil {
		name := sh.policy.name
		c = &shadowMetrics{
			same: m.shadow.WithLabelValues(name, "same"), other: m.shadow.WithLabelValues(name, "other"),
			none:    m.shadow.WithLabelValues(name, "none"),
			seconds: m.shadowTime.WithLabelValues(name), tokens: m.shadowHit.WithLabelValues(name),
		}
		m.byShadow[sh.policy] = c
	}
	switch sh.chosen {
	case none:
		c.none.Inc()
		return
	case s.chosen:
		c.same.Inc()
	default:
		c.other.Inc()
	}
	c.seconds.Observe(sh.ms / 1000)
	c.tokens.Observe(sh.tokens)
}

// maxReasons bounds the label: reasons are constants of the code, but a caller
// could pass anything.
const maxReasons = 32

func (m *metrics) reason(name string) prometheus.Counter {
	if c := m.byReason[name]; c != nil {
		return c
	}
	if len(m.byReason) >= maxReasons {
		return m.reasons.WithLabelValues("other")
	}
	name = strings.Clone(name)
	c := m.reasons.WithLabelValues(label(name))
	m.byReason[name] = c
	return c
}

func (m *metrics) role(name string) *roleMetrics {
	if r := m.byRole[name]; r != nil {
		return r
	}
	r := &roleMetrics{
		hits: m.hits.WithLabelValues(name), blocks: m.blocks.WithLabelValues(name),
		prompt: m.prompt.WithLabelValues(name), hit: m.hit.WithLabelValues(name),
	}
	m.byRole[name] = r
	return r
}

func (m *metrics) pickCounter(t *target) prometheus.Counter {
	return m.picks.WithLabelValues(t.role, label(t.key))
}

func (m *metrics) forgetTarget(t *target) { m.picks.DeleteLabelValues(t.role, label(t.key)) }

// label makes a string from outside fit for a label value.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// loadCollector reads the ledger when it is scraped, so that picks do not write
// gauges and departed targets have no series.
type loadCollector struct {
	p                                                  *Picker
	blocks, inFlight, wait, oldest, excluded, sessions *prometheus.Desc
}

func newLoadCollector(p *Picker) *loadCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &loadCollector{
		p:        p,
		blocks:   desc("infera_policy_active_blocks", "Distinct prompt blocks in flight on the target; a request without blocks counts one.", "worker_id"),
		inFlight: desc("pointsman_router_in_flight", "Requests picked and not done.", "worker_id"),
		wait:     desc("pointsman_router_waiting_tokens", "Tokens to prefill for requests without a first token.", "worker_id"),
		oldest:   desc("pointsman_router_oldest_reservation_seconds", "Age of the oldest pick that is not done; 0 for none."),
		excluded: desc("infera_router_excluded", "Workers that get no requests at the moment, by reason; of pair_open, pairs.", "reason"),
		sessions: desc("pointsman_router_sessions", "Conversations whose workers are remembered."),
	}
}

// Describe implements [prometheus.Collector].
func (c *loadCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.blocks
	ch <- c.inFlight
	ch <- c.wait
	ch <- c.oldest
	ch <- c.excluded
	ch <- c.sessions
}

// excluded counts the workers of the fleet that are left out for a reason that
// passes. The mutex is held.
func (p *Picker) excluded(now time.Time) (n [exclusions]int) {
	tab := p.tab.Load()
	for _, rows := range tab.ids {
		r := rows[0]
		switch c := r.t.circuit; {
		case r.t.host.sick:
			n[unhealthy]++
		case !c.Allows(now):
			n[opened]++
		case p.cfg.Caps.Enforce && p.cfg.Caps.full(now, r):
			n[full]++
		case c.Busy(now):
			n[busy]++
		}
	}
	return n
}

type loadRow struct {
	key                    string
	blocks, inFlight, wait float64
}

// Collect implements [prometheus.Collector]. It reads the clock for the age.
func (c *loadCollector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	p := c.p
	p.mu.Lock()
	rows := make([]loadRow, 0, len(p.targets))
	for key, t := range p.targets {
		if !t.gone {
			rows = append(rows, loadRow{key, float64(t.led.blocks + t.plains), float64(t.requests), float64(t.waiting)})
		}
	}
	out, kept := p.excluded(now), len(p.sessions.at)
	var oldest time.Duration
	for _, rec := range p.records.live {
		oldest = max(oldest, now.Sub(rec.at))
	}
	p.mu.Unlock()
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...); err == nil {
			ch <- m
		}
	}
	for _, r := range rows {
		send(c.blocks, r.blocks, r.key)
		send(c.inFlight, r.inFlight, r.key)
		send(c.wait, r.wait, r.key)
	}
	send(c.oldest, oldest.Seconds())
	send(c.sessions, float64(kept))
	for _, why := range [...]exclusion{opened, unhealthy, full, busy} {
		send(c.excluded, float64(out[why]), why.String())
	}
	send(c.excluded, float64(len(p.breakers.OpenPairs(now, nil))), pairOpen.String())
}
