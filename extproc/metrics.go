package extproc

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/admission"
	"pointsman/prompt/audit"
	"pointsman/reports"
)

// ending is how a request's stream ended.
type ending uint8

const (
	endComplete   ending = iota // the response's end was seen
	endAborted                  // the gateway left before: the client went, or a connection broke
	endRefused                  // we answered the request ourselves
	endUnobserved               // the gateway's modes do not show the response's end
	endings
)

// String is the label value.
func (e ending) String() string {
	switch e {
	case endComplete:
		return "complete"
	case endAborted:
		return "aborted"
	case endRefused:
		return "refused"
	case endUnobserved:
		return "unobserved"
	}
	return "ending(" + strconv.Itoa(int(e)) + ")"
}

// classes are the code label's values: none for no response seen, then 1xx to 5xx.
const classes = 6

// refusalCodes are the statuses that refuse gives, plus "other" for what a
// prompt error may add.
func refusalCodes() []int {
	return []int{
		http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
}

// metrics counts what passes this door. All methods are safe for concurrent use
// and allocate nothing.
type metrics struct {
	open      atomic.Int64
	openGauge prometheus.GaugeFunc
	buffered  prometheus.GaugeFunc
	requests  *prometheus.CounterVec
	byEnding  [endings][classes]prometheus.Counter
	refused   *prometheus.CounterVec
	byCode    map[int]prometheus.Counter
	otherCode prometheus.Counter
	pick      prometheus.Histogram
	bytes     *prometheus.CounterVec
	bytesIn   prometheus.Counter
	bytesOut  prometheus.Counter
	panics    prometheus.Counter
	crowded   prometheus.Counter
	malformed prometheus.Counter
	elsewhere prometheus.Counter
	rewritten *prometheus.CounterVec
	moved     prometheus.Counter

	usageRequests  prometheus.Counter
	usagePrompt    prometheus.Counter
	usageCached    prometheus.Counter
	usagePredicted prometheus.Counter
	usageHit       prometheus.Counter

	unseen   prometheus.GaugeFunc
	returned *prometheus.CounterVec
	reports  *prometheus.CounterVec
	output   prometheus.Counter

	overrides *prometheus.CounterVec
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func newMetrics(bodies *admission.Budget, unseen func() int) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_requests_total",
			Help: "Requests by how their stream ended (complete, aborted, refused, unobserved) and the class of the response status.",
		}, []string{"outcome", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_immediate_responses_total",
			Help: "Requests answered by the endpoint picker itself, by status.",
		}, []string{"code"}),
		pick: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pointsman_epp_pick_duration_seconds",
			Help:    "Time from the end of the request body to the decision, be it a refusal: scan, tokens and block hashes, pick.",
			Buckets: []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1},
		}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_body_bytes_total",
			Help: "Bytes of bodies received from the gateway.",
		}, []string{"direction"}),
		rewritten: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_model_rewrites_total",
			Help: "Requests whose model was replaced, by the InferenceModelRewrite that says so; empty for the header of the protocol.",
		}, []string{"rewrite"}),
		crowded:        counter("pointsman_epp_streams_refused_total", "Streams that ended unheard, with RESOURCE_EXHAUSTED: a quarter more than --max-in-flight were open."),
		panics:         counter("pointsman_epp_panics_total", "Requests that a bug ended; each is answered with 500."),
		malformed:      counter("pointsman_epp_malformed_messages_total", "Messages from the gateway that are no ext-proc request."),
		moved:          counter("pointsman_epp_reservations_moved_total", "Reservations moved to the worker that served, for the gateway passed over the first of the list."),
		elsewhere:      counter("pointsman_epp_served_elsewhere_total", "Responses that another endpoint than the picked one served."),
		usageRequests:  counter("pointsman_epp_usage_requests_total", "Responses in which the engine reported usage."),
		usagePrompt:    counter("pointsman_epp_usage_prompt_tokens_total", "Prompt tokens that engines reported."),
		usageCached:    counter("pointsman_epp_usage_cached_tokens_total", "Prompt tokens that engines reported as found in their cache."),
		usagePredicted: counter("pointsman_epp_usage_predicted_prompt_tokens_total", "Prompt tokens that the picks of the same requests counted."),
		usageHit:       counter("pointsman_epp_usage_predicted_hit_tokens_total", "Prompt tokens that the picks of the same requests believed to be cached."),
		byCode:         map[int]prometheus.Counter{},
		returned: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_reservations_returned_total",
			Help: "Reservations of requests whose end the gateway does not show, by why they were given back: report, absent (forwarders have nothing of ours on the worker), expired, ended (with this program).",
		}, []string{"by"}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_reported_ends_total",
			Help: "Ends of such requests by what their forwarder reports: ok, 4xx, 5xx, gone (the client left before the answer).",
		}, []string{"outcome"}),
		overrides: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_epp_mode_overrides_total",
			Help: "Responses whose body the gateway was asked not to show (mode_override): heeded or ignored.",
		}, []string{"result"}),
		output: counter("pointsman_epp_usage_completion_tokens_total", "Tokens that engines generated, as forwarders report."),
	}
	m.openGauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pointsman_epp_streams_in_flight",
		Help: "Open ext-proc streams, one per HTTP request.",
	}, func() float64 { return float64(m.open.Load()) })
	m.unseen = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pointsman_epp_reservations_unseen",
		Help: "Requests in flight whose end the gateway will not show: a forwarder's report is awaited.",
	}, func() float64 { return float64(unseen()) })
	m.buffered = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pointsman_epp_buffered_body_bytes",
		Help: "Bytes of request bodies held until they are picked for.",
	}, func() float64 { return float64(bodies.Used()) })
	for e := range endings {
		for class := range classes {
			code := "none"
			if class > 0 {
				code = strconv.Itoa(class) + "xx"
			}
			m.byEnding[e][class] = m.requests.WithLabelValues(e.String(), code)
		}
	}
	for _, code := range refusalCodes() {
		m.byCode[code] = m.refused.WithLabelValues(strconv.Itoa(code))
	}
	m.otherCode = m.refused.WithLabelValues("other")
	m.bytesIn = m.bytes.WithLabelValues("request")
	m.bytesOut = m.bytes.WithLabelValues("response")
	return m
}

// register puts all metrics on reg.
func (m *metrics) register(reg prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{
		m.openGauge, m.buffered, m.requests, m.refused, m.pick, m.bytes, m.panics, m.crowded, m.malformed, m.elsewhere, m.moved, m.rewritten,
		m.usageRequests, m.usagePrompt, m.usageCached, m.usagePredicted, m.usageHit,
		m.unseen, m.returned, m.reports, m.output, m.overrides,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) end(e ending, status int) {
	class := status / 100
	if class < 0 || class >= classes {
		class = 0
	}
	m.byEnding[e][class].Inc()
}

func (m *metrics) refuse(status int) {
	if c, ok := m.byCode[status]; ok {
		c.Inc()
		return
	}
	m.otherCode.Inc()
}

// given counts a reservation that came back.
func (m *metrics) given(by string) { m.returned.WithLabelValues(by).Inc() }

// reported counts the end of a request that a forwarder reports.
func (m *metrics) reported(d *reports.Done) {
	outcome := "gone"
	switch {
	case d.Status >= http.StatusInternalServerError:
		outcome = "5xx"
	case d.Status >= http.StatusBadRequest:
		outcome = "4xx"
	case d.Status > 0:
		outcome = "ok"
	}
	m.reports.WithLabelValues(outcome).Inc()
	m.output.Add(float64(max(d.Output, 0)))
}

func (m *metrics) usage(r *audit.Report, hit int) {
	m.usageRequests.Inc()
	m.usagePrompt.Add(float64(r.Counted))
	m.usageCached.Add(float64(max(0, r.Cached)))
	m.usagePredicted.Add(float64(r.Tokens))
	m.usageHit.Add(float64(hit))
}
