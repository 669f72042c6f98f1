package simengine

import (
	"github.com/prometheus/client_golang/prometheus"

	"pointsman/fleet"
)

// metrics exports vLLM's (and, for that engine, SGLang's) gauges and counters
// from one reading of the scheduler per scrape.
type metrics struct {
	e *Engine

	running, waiting, usage, oldUsage        *prometheus.Desc
	queries, hits                            *prometheus.Desc
	promptTokens, outputTokens, done, events *prometheus.Desc
	lost, info, prefills, gaps               *prometheus.Desc
	sgRunning, sgWaiting, sgUsage            *prometheus.Desc
}

func newMetrics(e *Engine) *metrics {
	model := prometheus.Labels{"model_name": e.cfg.Model}
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, model) }
	return &metrics{
		e:            e,
		running:      desc("vllm:num_requests_running", "Sequences that have a slot."),
		waiting:      desc("vllm:num_requests_waiting", "Sequences that wait for a slot or for memory."),
		usage:        desc("vllm:kv_cache_usage_perc", "Share of KV blocks held by running sequences, 0 to 1."),
		oldUsage:     desc("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc by its former name."),
		queries:      desc("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
		hits:         desc("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
		promptTokens: desc("vllm:prompt_tokens_total", "Prompt tokens computed."),
		outputTokens: desc("vllm:generation_tokens_total", "Output tokens produced."),
		done:         desc("vllm:request_success_total", "Sequences completed."),
		events:       desc("sim:kv_event_batches_total", "KV event batches numbered."),
		prefills:     desc("vllm:request_prefill_time_seconds", "Time from a prompt's first step to its first token, in simulated time."),
		gaps:         desc("vllm:inter_token_latency_seconds", "Time between two tokens of an answer, in simulated time."),
		lost:         desc("sim:kv_event_batches_lost_total", "KV event batches that were numbered and not sent, on purpose."),
		info:         prometheus.NewDesc("vllm:cache_config_info", "Cache configuration, in labels.", []string{"block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"}, nil),
		sgRunning:    desc("sglang:num_running_reqs", "Sequences that have a slot."),
		sgWaiting:    desc("sglang:num_queue_reqs", "Sequences that wait for a slot or for memory."),
		sgUsage:      desc("sglang:token_usage", "Share of KV blocks held by running sequences, 0 to 1."),
	}
}

// Register adds the collector to reg.
func (m *metrics) Register(reg prometheus.Registerer) error { return reg.Register(m) }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	l := m.e.sched.load()
	batches, lost := m.e.pub.counts()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	usage := float64(l.used) / float64(l.capacity)
	gauge(m.running, float64(l.running))
	gauge(m.waiting, float64(l.waiting))
	gauge(m.usage, usage)
	gauge(m.oldUsage, usage)
	counter(m.queries, l.queries)
	counter(m.hits, l.hits)
	counter(m.promptTokens, l.promptTokens)
	counter(m.outputTokens, l.outputTokens)
	counter(m.done, l.done)
	counter(m.events, batches)
	counter(m.lost, lost)
	timed := func(d *prometheus.Desc, t timing) {
		ch <- prometheus.MustNewConstHistogram(d, t.n, t.sum.Seconds(), nil)
	}
	timed(m.prefills, l.prefills)
	timed(m.gaps, l.gaps)
	gauge(m.info, 1, itoa(m.e.cfg.Cache.BlockSize), itoa(m.e.cfg.Cache.Capacity), "auto", "True")
	if m.e.cfg.Engine == fleet.SGLang {
		gauge(m.sgRunning, float64(l.running))
		gauge(m.sgWaiting, float64(l.waiting))
		gauge(m.sgUsage, usage)
	}
}
