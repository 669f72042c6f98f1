package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Study compares policies on one trace at several loads.
type Study struct {
	Runner   *Runner
	Trace    *Trace
	Base     Setup // the policy and, with Loads, the rate are set by the study
	Floor    Policy
	Policies []Policy
	Loads    []float64 // percent; nil for the rate of Base alone

	// CachePercent is the size of all caches together in percent of the trace's
	// different blocks; 0 for Base.CacheBlocks.
	CachePercent float64

	Within   time.Duration // SLO: time to first token
	Share    float64       // of the requests that keep it
	Capacity bool          // find the rate up to which each policy keeps it
}

// Report is what a study found.
type Report struct {
	Trace    string    `json:"trace"`
	Requests int       `json:"requests"`
	Prompt   float64   `json:"mean_prompt_tokens"`
	Output   float64   `json:"mean_output_tokens"`
	Ceiling  float64   `json:"hit_ceiling"`
	Seed     uint64    `json:"seed"`
	Workers  int       `json:"workers"`
	Cache    int       `json:"cache_blocks"` // per worker
	Block    int       `json:"block_tokens"`
	Full     float64   `json:"full_rate,omitempty"` // requests per second that are 100 % load
	Floor    string    `json:"floor,omitempty"`     // the policy that this was found with
	Runs     []*Result `json:"runs"`

	SLOSeconds float64            `json:"slo_ttft_s"`
	SLOShare   float64            `json:"slo_share"`
	Capacity   map[string]float64 `json:"slo_capacity,omitempty"` // requests per second, by policy

	order  []string // of the policies
	queues []*Result
	engine Engine
}

// queueSamples is how often the queues are looked at for the report's plots.
const queueSamples = 240

// queueLoad is the load whose queues are drawn, when it is among the loads.
const queueLoad = 85

// Run runs the study.
func (s *Study) Run(ctx context.Context) (*Report, error) {
	if len(s.Policies) == 0 {
		return nil, errors.New("no policies to compare")
	}
	base := s.Base
	if s.CachePercent > 0 {
		base.CacheBlocks = CacheFor(s.Trace, base.Workers, s.CachePercent)
	}
	rep := s.report(&base)
	loads := []float64{0}
	if len(s.Loads) > 0 {
		full, err := s.Runner.Calibrate(ctx, s.Trace, []Setup{base}, s.Floor)
		if err != nil {
			return nil, err
		}
		rep.Full, rep.Floor = full[0], s.Floor.Label
		loads = s.Loads
	}
	var jobs []Job
	for _, p := range s.Policies {
		for _, load := range loads {
			setup := base
			setup.Policy, setup.Samples = p, queueSamples
			if load > 0 {
				setup.Rate = rep.Full * load / 100
			}
			jobs = append(jobs, Job{Trace: s.Trace, Setup: setup, Load: load, Cache: s.CachePercent, Label: fmt.Sprintf("%s at %.0f %% load", p.Label, load)})
		}
	}
	var err error
	if rep.Runs, err = s.Runner.Run(ctx, jobs); err != nil {
		return nil, err
	}
	rep.pickQueues(loads)
	return rep, s.capacities(ctx, base, rep)
}

func (s *Study) report(base *Setup) *Report {
	prompt, output := s.Trace.Means()
	rep := &Report{
		Trace: s.Trace.Name, Requests: len(s.Trace.Requests), Prompt: prompt, Output: output, Ceiling: s.Trace.Ceiling(),
		Seed: base.Seed, Workers: base.Workers, Cache: base.CacheBlocks, Block: s.Trace.BlockTokens,
		SLOSeconds: s.Within.Seconds(), SLOShare: s.Share, engine: base.Engine,
	}
	for _, p := range s.Policies {
		rep.order = append(rep.order, p.Label)
	}
	return rep
}

// pickQueues chooses the runs whose queues are drawn: one for each policy.
func (rep *Report) pickQueues(loads []float64) {
	at := loads[len(loads)-1]
	for _, load := range loads {
		if load == queueLoad {
			at = load
		}
	}
	for _, r := range rep.Runs {
		if r.Load == at {
			rep.queues = append(rep.queues, r)
		}
	}
}

func (s *Study) capacities(ctx context.Context, base Setup, rep *Report) error {
	if !s.Capacity {
		return nil
	}
	from := rep.Full * queueLoad / 100
	if from == 0 {
		from = rep.Runs[0].Rate
	}
	rep.Capacity = map[string]float64{}
	for _, p := range s.Policies {
		base.Policy = p
		rate, err := s.Runner.Capacity(ctx, s.Trace, base, from, s.Within, s.Share)
		if err != nil {
			return err
		}
		rep.Capacity[p.Label] = rate
	}
	return nil
}

// WriteText prints what the trace is, a table of the runs, and the capacities.
func WriteText(out io.Writer, rep *Report) error {
	if _, err := fmt.Fprintln(out, rep.headline()); err != nil {
		return err //nolint:wrapcheck // the writer's own
	}
	if err := WriteTable(out, rep.Runs); err != nil {
		return err
	}
	if err := writeBursts(out, rep.Runs); err != nil {
		return err
	}
	for _, label := range rep.order {
		rate, ok := rep.Capacity[label]
		if !ok {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s keeps a first token within %.3g s for %.0f %% of the requests up to %.2f requests/s\n", label, rep.SLOSeconds, 100*rep.SLOShare, rate); err != nil {
			return err //nolint:wrapcheck // the writer's own
		}
	}
	return nil
}

// writeBursts tells what the requests of an extra burst got, which the table leaves out.
func writeBursts(out io.Writer, runs []*Result) error {
	for _, r := range runs {
		if r.Probe == nil {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s at %s %% load: first tokens of the burst within %.2f s at p50, %.2f at p90, %.2f at p99\n",
			r.Policy, orDash(r.Load), r.Probe.P50/1e3, r.Probe.P90/1e3, r.Probe.P99/1e3); err != nil {
			return err //nolint:wrapcheck // the writer's own
		}
	}
	return nil
}

func (rep *Report) headline() string {
	text := fmt.Sprintf("%s: %d requests of %.0f prompt and %.0f output tokens, at most %.1f %% of the prompts to be had from caches; %d workers with %d blocks of %d tokens",
		rep.Trace, rep.Requests, rep.Prompt, rep.Output, 100*rep.Ceiling, rep.Workers, rep.Cache, rep.Block)
	if rep.Full > 0 {
		text += fmt.Sprintf("; 100 %% load is %.2f requests/s, what %s serves when flooded", rep.Full, rep.Floor)
	}
	return text
}
