package admission

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// reason is what was decided about a request.
type reason uint8

const (
	reasonNone reason = iota
	reasonAdmitted
	reasonShed
	reasonNoCapacity
	reasonWouldShed
	reasonWouldQueue
	reasonWouldTimeout
	reasonBypass
	reasonQueued
	reasonQueueFull
	reasonQueueTimeout
	reasonCancelled
	reasonDrained
	reasonDraining
	reasonTenant
	reasonMemory
	reasons
)

// String is the label value (contract 1.3b; observe_would_timeout and
// queue_memory are ours).
func (r reason) String() string {
	names := [...]string{
		"", "admitted", "capacity_shed", "no_healthy_capacity", "observe_would_shed", "observe_would_queue",
		"observe_would_timeout", "bypass_non_inference", "queued", "queue_full", "queue_timeout", "cancelled",
		"drained", "draining", "tenant_share", "queue_memory",
	}
	if int(r) < len(names) {
		return names[r]
	}
	return "reason(" + strconv.Itoa(int(r)) + ")"
}

// anomaly is a fault of the accounting. All but the tenants' must stay 0.
type anomaly uint8

const (
	anomalyUnderflow anomaly = iota // more was given back than taken
	anomalyUnknown                  // a pass was released that is not open
	anomalyLeak                     // a request is open for longer than any may
	anomalyTenants                  // a tenant shares a slot, because all are taken
	anomalies
)

func (a anomaly) String() string {
	return [...]string{"underflow", "unknown_permit", "leak", "tenant_table_full"}[a]
}

type metrics struct {
	decisions *prometheus.CounterVec
	byReason  [reasons]prometheus.Counter
	anomalies *prometheus.CounterVec
	byKind    [anomalies]prometheus.Counter
	wait      prometheus.Histogram
}

func newMetrics() *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_admission_decisions_total",
			Help: "What was decided about requests; one that waits counts as queued and once more by how its wait ended.",
		}, []string{"reason"}),
		anomalies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_admission_anomalies_total",
			Help: "Faults of the accounting; all but tenant_table_full must stay 0.",
		}, []string{"kind"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "infera_router_admission_queue_wait_seconds",
			Help:    "Time that requests spent in the queue, however that ended.",
			Buckets: []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
	}
	for r := reasonAdmitted; r < reasons; r++ {
		m.byReason[r] = m.decisions.WithLabelValues(r.String())
	}
	for a := range anomalies {
		m.byKind[a] = m.anomalies.WithLabelValues(a.String())
	}
	return m
}

func (m *metrics) decide(r reason)   { m.byReason[r].Inc() }
func (m *metrics) anomaly(a anomaly) { m.byKind[a].Inc() }

// Register puts the gate's metrics on reg.
func (g *Gate) Register(reg prometheus.Registerer) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("infera_router_admission_"+name, help, labels, nil)
	}
	c := &collector{
		gate:      g,
		mode:      desc("mode", "1 for the mode in force.", "mode"),
		inflight:  desc("inflight", "Units of requests running (service), and requests or legs on the workers of a role.", "role"),
		limit:     desc("limit", "Units that may run by the settings (service), and the cap of each worker of a role; 0 no limit.", "role"),
		effective: desc("effective_limit", "Units that may run now; below the limit while the engines are overloaded."),
		queued:    desc("queued", "Requests that wait."),
		state:     desc("adapt_state", "1 for what the adaptive limit does.", "state"),
		cause:     desc("adapt_reason", "1 for why it does.", "reason"),
	}
	for _, c := range []prometheus.Collector{c, g.metrics.decisions, g.metrics.anomalies, g.metrics.wait} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

type collector struct {
	gate                                                   *Gate
	mode, inflight, limit, effective, queued, state, cause *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.mode, c.inflight, c.limit, c.effective, c.queued, c.state, c.cause} {
		ch <- d
	}
}

// RoleLoad is what the workers of one role have, beside the ceiling of all: the
// picker's ledger keeps it.
type RoleLoad struct {
	Role     string `json:"role"`             // normal, prefill or decode
	Inflight int    `json:"in_flight"`        // requests, or legs of pairs, on all of them
	Limit    int    `json:"limit_per_worker"` // 0 for no limit
}

// SetRoles tells where the load of each role is to be read; call it before the
// gate is used. It must not call the gate.
func (g *Gate) SetRoles(roles func() []RoleLoad) { g.roles = roles }

func (g *Gate) roleLoads() []RoleLoad {
	if g.roles == nil {
		return nil
	}
	return g.roles()
}

// roleService is the label of the ceiling of all workers together.
const roleService = "service"

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.gate.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	oneOf := func(d *prometheus.Desc, all []string, now string) {
		for _, word := range all {
			v := 0.0
			if word == now {
				v = 1
			}
			gauge(d, v, word)
		}
	}
	oneOf(c.mode, []string{Off.String(), Observe.String(), Enforce.String()}, s.Mode)
	gauge(c.inflight, float64(s.Units), roleService)
	gauge(c.limit, float64(s.MaxOutstanding), roleService)
	gauge(c.effective, float64(s.EffectiveMax))
	gauge(c.queued, float64(s.Queued))
	for _, r := range s.Roles {
		gauge(c.inflight, float64(r.Inflight), r.Role)
		gauge(c.limit, float64(r.Limit), r.Role)
	}
	oneOf(c.state, adaptStates(), s.AdaptState)
	oneOf(c.cause, adaptCauses(), s.AdaptReason)
}
