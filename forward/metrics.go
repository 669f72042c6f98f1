package forward

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/admission"
)

// How a request ended, as the label outcome. Every request has exactly one.
const (
	outcomeOK        = "ok"          // a complete answer below 400
	outcome4xx       = "4xx"         // answered with 4xx, by us or by a worker
	outcome5xx       = "5xx"         // answered with 5xx, because of the fleet's state or by a worker
	outcomeError     = "error"       // answered with 5xx because attempts broke
	outcomeGone      = "client_gone" // the client left before the end
	outcomeTruncated = "truncated"   // broken after the first byte: error event, or aborted body
)

// memo keeps what is looked up once. The zero value is ready to use.
type memo[T any] struct {
	once sync.Once
	v    T
}

func (m *memo[T]) get(look func() T) T {
	m.once.Do(func() { m.v = look() })
	return m.v
}

// usual are the series of requests that go well, which nearly all do: to find a series
// by its labels takes longer than to count.
type usual struct {
	inflight [routers]memo[prometheus.Gauge]
	duration [routers]memo[prometheus.Observer]
	ended    memo[prometheus.Counter]
	attempt  memo[prometheus.Counter]
	named    memo[prometheus.Counter]
}

type metrics struct {
	usual         usual
	duration      *prometheus.HistogramVec
	inflight      *prometheus.GaugeVec
	attempts      *prometheus.CounterVec
	ended         *prometheus.CounterVec
	retries       *prometheus.CounterVec
	ttft          prometheus.Histogram
	truncated     *prometheus.CounterVec
	missingDone   prometheus.Counter
	aborts        prometheus.Counter
	failovers     prometheus.Counter
	sameEP        prometheus.Counter
	sameEPOK      prometheus.Counter
	exhausted     prometheus.Counter
	prefillLocal  prometheus.Counter
	prefills      prometheus.Counter
	prefillFaults *prometheus.CounterVec
	redispatches  prometheus.Counter
	canaries      *prometheus.CounterVec
	departed      prometheus.Counter
	decodeDials   prometheus.Counter
	pairs         *pairMetrics
	fallbackLocal prometheus.Counter
	stripped      prometheus.Counter
	direct        *prometheus.CounterVec
	gone          prometheus.Counter
	bytesIn       prometheus.Counter
	bytesOut      prometheus.Counter
	buffered      prometheus.GaugeFunc
}

func newMetrics(bodies *admission.Budget) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		pairs: newPairMetrics(),
		buffered: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pointsman_forward_buffered_body_bytes",
			Help: "Memory of the request bodies held until a worker answers.",
		}, func() float64 { return float64(bodies.Used()) }),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "infera_request_duration_seconds",
			Help:    "Duration of a request, to the end of its stream.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}, []string{"router", "outcome"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "infera_request_inflight",
			Help: "Requests being served, open streams included.",
		}, []string{"router"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_requests_total",
			Help: "Requests by how they ended; the outcomes add up to the offered load.",
		}, []string{"outcome"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_forward_attempts_total",
			Help: "Tries at workers, each dial and each leg of a pair, by the stage in which they ended and how.",
		}, []string{"stage", "outcome"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_retries_total",
			Help: "Requests repeated on another worker, by why the former attempt failed and in which stage.",
		}, []string{"reason", "stage"}),
		failovers:    counter("infera_router_failover_total", "Times that a request went to another worker than before."),
		sameEP:       counter("infera_router_connect_retry_same_ep_total", "Further dials of a worker that was picked for what it holds and could not be dialed."),
		sameEPOK:     counter("infera_router_connect_retry_same_ep_ok_total", "Of these, those that found the worker."),
		exhausted:    counter("infera_router_retry_budget_exhausted_total", "Failures not repeated because all requests together had used up their repetitions."),
		prefillLocal: counter("infera_router_prefill_local_total", "Prompts left to the decode worker because the prefill leg failed (--pd-prefill-failure local)."),
		ttft: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pointsman_forward_ttft_seconds",
			Help:    "Time from a request's arrival to the first content of its stream.",
			Buckets: []float64{.005, .01, .025, .05, .1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4},
		}),
		truncated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_forward_truncated_streams_total",
			Help: "Streams that broke after their first byte, by the code of the error event.",
		}, []string{"code"}),
		missingDone: counter("infera_router_missing_done_total", "Streams without [DONE] taken as complete for their finish reasons."),
		aborts:      counter("pointsman_forward_leg_aborts_total", "Requests that tell an engine to give up a leg of a pair."),
		prefills:    counter("pointsman_forward_prefills_total", "Prefill legs sent."),
		prefillFaults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_forward_prefill_failures_total",
			Help: "Prefill legs that failed, by how.",
		}, []string{"outcome"}),
		departed:      counter("pointsman_forward_departed_attempts_total", "Attempts ended before their first byte because their worker left the fleet."),
		redispatches:  counter("infera_router_prefill_redispatch_total", "Prefill legs repeated on another pair, in another room."),
		gone:          counter("pointsman_forward_client_disconnects_total", "Requests whose client left before the end."),
		bytesIn:       counter("pointsman_forward_request_bytes_total", "Bytes of request bodies read."),
		bytesOut:      counter("pointsman_forward_response_bytes_total", "Bytes of response bodies written."),
		decodeDials:   counter("infera_router_decode_alt_dial_total", "Decode legs moved to another worker because the first could not be dialed."),
		stripped:      counter("pointsman_forward_stripped_bodies_total", "Requests out of whose body fields were taken that only routers may set."),
		fallbackLocal: counter("infera_router_direct_fallback_local_total", "Requests served by the forwarder's own worker because the gateway could not reach the forwarder of the named one."),
		direct: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_direct_total",
			Help: "Requests in direct mode by what came of their routing headers.",
		}, []string{"result"}),
		canaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "infera_router_pair_canary_total",
			Help: "Canaries sent to prefill/decode pairs by how they ended: ok, failed, or refused by an engine (4xx).",
		}, []string{"result"}),
	}
	for _, result := range canaryResults() {
		m.canaries.WithLabelValues(result)
	}
	return m
}

// Register puts the server's metrics on reg.
func (s *Server) Register(reg prometheus.Registerer) error {
	m := s.metrics
	for _, c := range []prometheus.Collector{
		m.duration, m.inflight, m.attempts, m.ended, m.retries, m.failovers, m.sameEP, m.sameEPOK, m.exhausted, m.prefillLocal, m.ttft, m.truncated, m.missingDone, m.aborts, m.prefills, m.prefillFaults, m.redispatches, m.canaries, m.departed, m.decodeDials, m.fallbackLocal, m.stripped, m.direct, m.gone, m.bytesIn, m.bytesOut, m.buffered, m.pairs.took, m.pairs.failures,
	} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) finished(r router, outcome string, took time.Duration) {
	find := func() prometheus.Observer { return m.duration.WithLabelValues(r.String(), outcome) }
	if outcome == outcomeOK {
		m.usual.duration[r].get(find).Observe(took.Seconds())
		return
	}
	find().Observe(took.Seconds())
	if outcome == outcomeGone {
		m.gone.Inc()
	}
}

func (m *metrics) running(r router) prometheus.Gauge {
	return m.usual.inflight[r].get(func() prometheus.Gauge { return m.inflight.WithLabelValues(r.String()) })
}

func (m *metrics) endedAs(outcome string) {
	find := func() prometheus.Counter { return m.ended.WithLabelValues(outcome) }
	if outcome == endOK {
		m.usual.ended.get(find).Inc()
		return
	}
	find().Inc()
}

func (m *metrics) tried(s Stage, why reason) {
	find := func() prometheus.Counter { return m.attempts.WithLabelValues(s.String(), why.String()) }
	if s == StageBody && why == tryOK {
		m.usual.attempt.get(find).Inc()
		return
	}
	find().Inc()
}

// What came of routing headers, as the label result.
const (
	directNamed     = "named"          // the named worker was asked
	directLocal     = "fallback_local" // this forwarder's own, from the list of fallbacks
	directStale     = "stale"          // the named worker cannot be used: 503
	directPolicy    = "policy"         // it cannot be used, and the picker chose another
	directAbsent    = "absent"         // there were none: the picker chose
	directUntrusted = "untrusted"      // they were not believed
)

func (m *metrics) directed(result string) {
	find := func() prometheus.Counter { return m.direct.WithLabelValues(result) }
	if result == directNamed {
		m.usual.named.get(find).Inc()
		return
	}
	find().Inc()
}
