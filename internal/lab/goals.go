package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"time"
)

// Goals is what `make replay-goals` prints: policy least-latency against others at
// 85 % load. Ratios below 1 are better for it.
type Goals struct {
	Configs   int                `json:"configs"`        // traces x workers 8 and 16 x cache 10, 30 and 100 %
	TTFT      map[string]float64 `json:"p90_ttft_ratio"` // geometric mean over the configurations, by policy
	Worst     float64            `json:"worst_config_vs_w20"`
	TPOT      float64            `json:"tpot_p90_ratio_w20"`
	Replicas  float64            `json:"replicas8_over_1"`
	Loss      float64            `json:"loss20_over_0"`
	Slow      float64            `json:"slow_worker_p99_over_healthy"`
	ColdBurst float64            `json:"cold_burst_worst_over_mean"`
}

// Limits of findings/policy.md §6: a goal above its limit is missed.
func goalLimits() map[string]float64 {
	return map[string]float64{
		InferaW20: 0.85, InferaW1: 0.45, DynamoFor: 0.50, LMetric: 0.70, LLMD50ms: 0.75, SGLangFor: 0.50,
		"worst_config_vs_w20": 1.05, "tpot_p90_ratio_w20": 0.9, "replicas8_over_1": 1.20, "loss20_over_0": 1.05,
		"slow_worker_p99_over_healthy": 1.15, "cold_burst_worst_over_mean": 1.1,
	}
}

// Missed says which goals g misses, one line each.
func (g *Goals) Missed() []string {
	got := map[string]float64{
		"worst_config_vs_w20": g.Worst, "tpot_p90_ratio_w20": g.TPOT, "replicas8_over_1": g.Replicas, "loss20_over_0": g.Loss,
		"slow_worker_p99_over_healthy": g.Slow, "cold_burst_worst_over_mean": g.ColdBurst,
	}
	maps.Copy(got, g.TTFT)
	var missed []string
	for _, name := range []string{
		InferaW20, InferaW1, DynamoFor, LMetric, LLMD50ms, SGLangFor, "worst_config_vs_w20", "tpot_p90_ratio_w20",
		"replicas8_over_1", "loss20_over_0", "slow_worker_p99_over_healthy", "cold_burst_worst_over_mean",
	} {
		v, ok := got[name]
		if limit := goalLimits()[name]; !ok || !(v <= limit) {
			missed = append(missed, fmt.Sprintf("%s is %.3f, the goal is at most %.2f", name, v, limit))
		}
	}
	return missed
}

// goalLoad is the load at which the goals are set, in percent.
const goalLoad = 85

// GoalRun is a comparison under way.
type GoalRun struct {
	Runner *Runner
	Base   Setup  // engine, seeds and lags; the rest is set by the goals
	Floor  Policy // whose flooded throughput is 100 % load
	Traces []*Trace
	Log    func(r *Result) // of each result; nil for nothing

	policies []Policy
	ours     Policy
}

// config is one of the configurations.
type config struct {
	t       *Trace
	setup   Setup
	percent float64
}

// Goals runs the whole comparison.
func (g *GoalRun) Goals(ctx context.Context) (*Goals, error) {
	if err := g.resolve(); err != nil {
		return nil, err
	}
	configs, err := g.configs(ctx)
	if err != nil {
		return nil, err
	}
	out := &Goals{Configs: len(configs)}
	if err := g.policiesCompared(ctx, configs, out); err != nil {
		return nil, err
	}
	return out, g.robustness(ctx, configs, out)
}

// resolve finds the policies that are compared.
func (g *GoalRun) resolve() error {
	g.policies = nil
	for _, label := range []string{Ours, InferaW20, InferaW1, DynamoFor, LMetric, LLMD50ms, SGLangFor} {
		p, err := ParsePolicy(label)
		if err != nil {
			return err
		}
		g.policies = append(g.policies, p)
	}
	g.ours = g.policies[0]
	return nil
}

// configs returns the configurations with their rates.
func (g *GoalRun) configs(ctx context.Context) ([]config, error) {
	var all []config
	for _, t := range g.Traces {
		var setups []Setup
		first := len(all)
		for _, workers := range []int{8, 16} {
			for _, percent := range []float64{10, 30, 100} {
				s := g.Base
				s.Workers, s.CacheBlocks = workers, CacheFor(t, workers, percent)
				setups = append(setups, s)
				all = append(all, config{t: t, percent: percent})
			}
		}
		full, err := g.Runner.Calibrate(ctx, t, setups, g.Floor)
		if err != nil {
			return nil, err
		}
		for i := range setups {
			setups[i].Rate = full[i] * goalLoad / 100
			all[first+i].setup = setups[i]
		}
	}
	return all, nil
}

func (c *config) job(p Policy, what string) Job {
	s := c.setup
	s.Policy = p
	return Job{
		Trace: c.t, Setup: s, Load: goalLoad, Cache: c.percent,
		Label: fmt.Sprintf("%s, %d workers, cache %g %%%s", p.Label, s.Workers, c.percent, what),
	}
}

func (g *GoalRun) policiesCompared(ctx context.Context, configs []config, out *Goals) error {
	var jobs []Job
	for i := range configs {
		for _, p := range g.policies {
			jobs = append(jobs, configs[i].job(p, ""))
		}
	}
	results, err := g.run(ctx, jobs)
	if err != nil {
		return err
	}
	n := len(g.policies)
	out.TTFT = map[string]float64{}
	for k, p := range g.policies[1:] {
		out.TTFT[p.Label] = geomean(len(configs), func(i int) float64 { return results[i*n].TTFT.P90 / results[i*n+k+1].TTFT.P90 })
	}
	for i := range configs {
		out.Worst = max(out.Worst, rounded(results[i*n].TTFT.P90/results[i*n+1].TTFT.P90))
	}
	out.TPOT = geomean(len(configs), func(i int) float64 { return results[i*n].TPOT.P90 / results[i*n+1].TPOT.P90 })
	return nil
}

const slowFactor = 10

// robustness asks what replicas, lost events and a slow worker do to our policy, in
// the configuration of 8 workers and a cache of 30 % of each trace.
func (g *GoalRun) robustness(ctx context.Context, configs []config, out *Goals) error {
	changes := []struct {
		name   string
		change func(*Setup)
	}{
		{"", func(*Setup) {}},
		{", 8 routers", func(s *Setup) { s.Routers, s.ReportInterval = 8, 100*time.Millisecond }},
		{", 20 % of events lost", func(s *Setup) { s.Loss = 0.2 }},
		{", one worker 10 times slower", func(s *Setup) {
			s.Slow = []Slowness{{Worker: s.Workers - 1, Factor: slowFactor}}
			s.Rate *= (float64(s.Workers-1) + 1.0/slowFactor) / float64(s.Workers) // 85 % of what that fleet can do
		}},
	}
	var jobs []Job
	for i := range configs {
		if configs[i].setup.Workers != 8 || configs[i].percent != 30 {
			continue
		}
		for _, c := range changes {
			j := configs[i].job(g.ours, c.name)
			c.change(&j.Setup)
			jobs = append(jobs, j)
		}
	}
	results, err := g.run(ctx, jobs)
	if err != nil {
		return err
	}
	n := len(changes)
	ratio := func(k int, of func(*Result) float64) float64 {
		return geomean(len(results)/n, func(i int) float64 { return of(results[i*n+k]) / of(results[i*n]) })
	}
	p90 := func(r *Result) float64 { return r.TTFT.P90 }
	out.Replicas, out.Loss = ratio(1, p90), ratio(2, p90)
	out.Slow = ratio(3, func(r *Result) float64 { return r.TTFT.P99 })
	return g.coldBurst(ctx, out)
}

// ColdBurst is the burst of the goals: 400 requests at once, with 4k shared and 1k
// own tokens.
func ColdBurst() Burst {
	return Burst{Requests: 400, Over: 100 * time.Millisecond, Shared: 4096, Own: 1024, Output: 100}
}

func (g *GoalRun) coldBurst(ctx context.Context, out *Goals) error {
	t, err := NewBurst(ColdBurst(), g.Traces[0].BlockTokens)
	if err != nil {
		return err
	}
	s := g.Base
	s.Policy, s.Workers, s.Rate, s.CacheBlocks = g.ours, 8, 0, 4096
	results, err := g.run(ctx, []Job{{Trace: t, Setup: s, Label: "cold burst"}})
	if err != nil {
		return err
	}
	out.ColdBurst = rounded(results[0].Imbalance)
	return nil
}

func (g *GoalRun) run(ctx context.Context, jobs []Job) ([]*Result, error) {
	results, err := g.Runner.Run(ctx, jobs)
	if err == nil && g.Log != nil {
		for _, r := range results {
			g.Log(r)
		}
	}
	return results, err
}

func geomean(n int, of func(i int) float64) float64 {
	sum := 0.0
	for i := range n {
		sum += math.Log(of(i))
	}
	return rounded(math.Exp(sum / float64(max(1, n))))
}

func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

// JSON returns g on one line.
func (g *Goals) JSON() ([]byte, error) { return json.Marshal(g) } //nolint:wrapcheck // it says what
