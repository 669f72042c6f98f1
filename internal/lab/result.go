package lab

import (
	"math"
	"slices"
	"time"
)

// Spread is a distribution's mean and quantiles, in milliseconds.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Result is what came of one run. Times are the clients', in milliseconds, of the
// requests that were served and are not among the first ones of the trace.
type Result struct {
	Policy  string  `json:"policy"`
	Trace   string  `json:"trace"`
	Workers int     `json:"workers"`
	Cache   int     `json:"cache_blocks"` // per worker
	Rate    float64 `json:"rate"`         // requests per second offered
	Load    float64 `json:"load_pct,omitempty"`
	Percent float64 `json:"cache_pct,omitempty"`

	Requests int `json:"requests"` // measured: all but the first ones and a burst
	Served   int `json:"served"`
	Refused  int `json:"refused"` // of all, as the next two
	Failed   int `json:"failed"`
	Queued   int `json:"queued"` // waited at the gate

	TTFT Spread `json:"ttft_ms"`
	TPOT Spread `json:"tpot_ms"` // per token after the first
	E2E  Spread `json:"e2e_ms"`

	Hit       float64 `json:"hit_ratio"` // of the prompt tokens of all requests
	Ceiling   float64 `json:"hit_ceiling"`
	Imbalance float64 `json:"worst_over_mean"` // requests sent to the worker that got most, over the mean
	Through   float64 `json:"throughput"`      // requests per second while it was busy
	Took      float64 `json:"virtual_seconds"`

	Probe *Spread `json:"burst_ttft_ms,omitempty"` // of the requests of an extra burst

	Samples []Sample `json:"-"`

	ttft []float64 // sorted
}

// Sample is how many requests wait for a first token on each worker at a time.
type Sample struct {
	At     time.Duration
	Queues []int
}

// Within returns the share of the measured requests whose first token came within d;
// those that were refused or failed did not.
func (r *Result) Within(d time.Duration) float64 {
	if r.Requests == 0 {
		return 0
	}
	n, found := slices.BinarySearch(r.ttft, milliseconds(int64(d)))
	for found && n < len(r.ttft) && r.ttft[n] <= milliseconds(int64(d)) {
		n++
	}
	return float64(n) / float64(r.Requests)
}

func milliseconds(ns int64) float64 { return float64(ns) / float64(time.Millisecond) }

// result sums the run up.
func (m *sim) result() *Result {
	r := &Result{
		Policy: m.s.Policy.Label, Trace: m.t.Name, Workers: m.s.Workers, Cache: m.s.CacheBlocks,
		Ceiling: m.t.Ceiling(), Samples: m.samples, Took: seconds(m.now - epoch),
	}
	if span := float64(m.t.Duration()) * m.scale; span > 0 {
		r.Rate = float64(len(m.calls)) / (span / float64(time.Second))
	}
	var ttft, tpot, e2e, probe []float64
	var hit, all int64
	sent := make([]int, len(m.workers))
	ends := make([]int64, 0, len(m.calls))
	for i := range m.calls {
		c := &m.calls[i]
		if c.w != nil {
			sent[c.w.n]++
		}
		if c.queued {
			r.Queued++
		}
		switch c.state {
		case served:
			hit += int64(c.hit)
			all += int64(c.req.Prompt)
			ends = append(ends, c.ended)
		case refused:
			r.Refused++
		default:
			r.Failed++
		}
		if i < m.t.warm {
			continue
		}
		if c.req.Probe {
			if c.state == served {
				probe = append(probe, milliseconds(c.first-c.came))
			}
			continue
		}
		r.Requests++
		if c.state != served {
			continue
		}
		r.Served++
		ttft = append(ttft, milliseconds(c.first-c.came))
		e2e = append(e2e, milliseconds(c.ended-c.came))
		if c.req.Output > 1 {
			tpot = append(tpot, milliseconds(c.ended-c.first)/float64(c.req.Output-1))
		}
	}
	r.TTFT, r.TPOT, r.E2E = spread(ttft), spread(tpot), spread(e2e)
	r.ttft = ttft
	if len(probe) > 0 {
		p := spread(probe)
		r.Probe = &p
	}
	if all > 0 {
		r.Hit = float64(hit) / float64(all)
	}
	r.Imbalance = float64(slices.Max(sent)) * float64(len(sent)) / float64(max(1, len(m.calls)))
	r.Through = throughput(ends)
	return r
}

func seconds(ns int64) float64 { return float64(ns) / float64(time.Second) }

// throughput is the rate at which requests ended between the first tenth of them and
// the last: neither filling up nor the last long answers count.
func throughput(ends []int64) float64 {
	if len(ends) < 20 {
		return 0
	}
	slices.Sort(ends)
	from, to := len(ends)/10, len(ends)*9/10
	if ends[to] == ends[from] {
		return 0
	}
	return float64(to-from) / seconds(ends[to]-ends[from])
}

// spread sorts v.
func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return Spread{Mean: sum / float64(len(v)), P50: quantile(v, .5), P90: quantile(v, .9), P99: quantile(v, .99)}
}

// quantile returns a value of v, which is sorted and not empty.
func quantile(v []float64, p float64) float64 {
	return v[min(len(v)-1, max(0, int(math.Ceil(p*float64(len(v))))-1))]
}
