package audit

import (
	"github.com/prometheus/client_golang/prometheus"

	"pointsman/prompt"
)

// Register exports on reg, per model and worker and form of request:
// pointsman_audit_state{state,reason}, pointsman_audit_compared_total{result},
// pointsman_audit_drift_tokens_total, pointsman_audit_hits_total{result} and
// pointsman_audit_skipped_total{reason}; per model and form
// pointsman_audit_source{source}; and per worker pointsman_audit_canary.
func (a *Auditor) Register(reg prometheus.Registerer) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return reg.Register(&collector{
		a: a,
		state: desc("pointsman_audit_state",
			"1 for the state of a form of a model's requests on a worker: exact, drifting (count, hit or canary), or off, which claims nothing, and why.",
			"model", "worker_id", "form", "state", "reason"),
		source: desc("pointsman_audit_source",
			"1 for who makes the token ids of a form of a model's requests: files in this process, a worker, or none, when prompts are approximated.",
			"model", "form", "source"),
		compared: desc("pointsman_audit_compared_total",
			"Requests whose token count was compared with the engine's usage.prompt_tokens: exact or drift.",
			"model", "worker_id", "form", "result"),
		tokens: desc("pointsman_audit_drift_tokens_total",
			"Tokens by which those counts differed, added up.", "model", "worker_id", "form"),
		hits: desc("pointsman_audit_hits_total",
			"Requests whose predicted hit was compared with the engine's cached_tokens: agree, over (it found less), under (it found more).",
			"model", "worker_id", "form", "result"),
		skipped: desc("pointsman_audit_skipped_total",
			"Answered requests whose numbers cannot be compared, by why.", "model", "worker_id", "form", "reason"),
		canary: desc("pointsman_audit_canary",
			"1 when the worker's registered tokenizer canary is what the model's files make of it, 0 when not; absent while unknown.",
			"model", "worker_id"),
	})
}

type collector struct {
	a *Auditor

	state, source, compared, tokens, hits, skipped, canary *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.source, c.compared, c.tokens, c.hits, c.skipped, c.canary} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	a := c.a
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget()
	type form struct {
		model string
		form  Form
	}
	sources := map[form]string{}
	for k, r := range a.rows {
		c.row(ch, k, r)
		sources[form{k.model, k.form}] = a.sourceOf(k)
	}
	for k, source := range sources {
		if source != "" {
			ch <- prometheus.MustNewConstMetric(c.source, prometheus.GaugeValue, 1, k.model, string(k.form), source)
		}
	}
	for k, agrees := range a.canaries {
		v := 0.0
		if agrees {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(c.canary, prometheus.GaugeValue, v, k.model, k.worker)
	}
}

// row writes the series of one row.
func (c *collector) row(ch chan<- prometheus.Metric, k rowKey, r *row) {
	v := c.a.verdict(k, r)
	ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, 1, k.model, k.worker, string(k.form), string(v.state), v.why)
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{k.model, k.worker, string(k.form)}, labels...)...)
	}
	count(c.compared, r.exact, "exact")
	count(c.compared, r.drift, "drift")
	count(c.tokens, r.driftTokens)
	count(c.hits, r.hitAgrees, "agree")
	count(c.hits, r.hitOver, "over")
	count(c.hits, r.hitUnder, "under")
	for why, n := range r.skips {
		count(c.skipped, n, string(why))
	}
}

// sourceOf returns who is asked for the ids of a form; "" when nobody ever is.
func (a *Auditor) sourceOf(k rowKey) string {
	switch {
	case k.form == FormMultimodal, k.form == FormMessages, k.form == FormIDs:
		return ""
	case a.hasFiles(k.model) && !a.drifts(k, prompt.SourceFiles):
		return prompt.SourceFiles.String()
	case !a.drifts(k, prompt.SourceWorker):
		return prompt.SourceWorker.String()
	}
	return prompt.SourceNone.String()
}
