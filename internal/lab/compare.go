package lab

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Job is one run to do.
type Job struct {
	Trace *Trace
	Setup Setup
	Label string  // for people: what it is
	Load  float64 // percent, for the result
	Cache float64 // percent, for the result
}

// Runner does jobs, some at once, and says how far it is.
type Runner struct {
	// Parallel is how many runs go on at once; 0 for as many as there are processors.
	Parallel int
	// Progress is called now and then, never twice at once; nil is not.
	Progress func(Status)

	mu     sync.Mutex
	status Status
	told   time.Time
}

// Status is how far a [Runner] is.
type Status struct {
	Done, Of int    // runs
	Label    string // of one that goes on
	Share    float64
}

// tellEvery is how often progress is told at most.
const tellEvery = 500 * time.Millisecond

// Run does the jobs and returns their results in the same order. The first error
// ends it.
func (r *Runner) Run(ctx context.Context, jobs []Job) ([]*Result, error) {
	r.mu.Lock()
	r.status.Of += len(jobs)
	r.mu.Unlock()
	results := make([]*Result, len(jobs))
	group, ctx := errgroup.WithContext(ctx)
	limit := r.Parallel
	if limit <= 0 {
		limit = runtime.GOMAXPROCS(0)
	}
	group.SetLimit(limit)
	for i := range jobs {
		group.Go(func() error {
			j := &jobs[i]
			res, err := Run(ctx, j.Trace, j.Setup, func(done, of int) { r.tell(j.Label, float64(done)/float64(max(1, of)), 0) })
			if err != nil {
				return fmt.Errorf("%s: %w", j.Label, err)
			}
			res.Load, res.Percent = j.Load, j.Cache
			results[i] = res
			r.tell(j.Label, 1, 1)
			return nil
		})
	}
	return results, group.Wait() //nolint:wrapcheck // wrapped above
}

func (r *Runner) tell(label string, share float64, done int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Done += done
	if r.Progress == nil || time.Since(r.told) < tellEvery && r.status.Done < r.status.Of {
		return
	}
	r.told = time.Now()
	r.status.Label, r.status.Share = label, share
	r.Progress(r.status)
}

// flood is a rate at which all requests come at once, as far as engines can tell.
const flood = 100_000

// Calibrate returns for each setup the rate that is 100 % load in it: how many requests
// per second the fleet serves under the floor policy when all of them are there from
// the start. Only Policy and Rate of the setups are not used, and what makes a run
// differ from an undisturbed one: slowness, failures, losses, routers.
func (r *Runner) Calibrate(ctx context.Context, t *Trace, setups []Setup, floor Policy) ([]float64, error) {
	jobs := make([]Job, len(setups))
	for i := range setups {
		s := setups[i]
		s.Policy, s.Rate, s.Samples = floor, flood, 0
		s.Slow, s.Failures, s.Loss, s.Routers, s.ReportInterval = nil, nil, 0, 1, 0
		s.Picker, s.Admission.Mode = PickerSetup{}, 0
		jobs[i] = Job{Trace: t, Setup: s, Label: "calibrating " + t.Name}
	}
	results, err := r.Run(ctx, jobs)
	if err != nil {
		return nil, err
	}
	rates := make([]float64, len(results))
	for i, res := range results {
		if rates[i] = res.Through; rates[i] <= 0 {
			return nil, fmt.Errorf("%s: too short to find out what load the fleet can take: give at least 20 requests, or a rate", t.Name)
		}
	}
	return rates, nil
}

// Capacity returns the largest rate, to within 2 %, at which a share of the requests
// has its first token within the given time, beginning the search at rate from. It is
// 0 when even a twentieth of from is too much.
func (r *Runner) Capacity(ctx context.Context, t *Trace, s Setup, from float64, within time.Duration, share float64) (float64, error) {
	lo, hi := 0.0, 0.0
	rate := from
	for lo == 0 || hi == 0 || hi/lo > 1.02 {
		s.Rate, s.Samples = rate, 0
		res, err := r.Run(ctx, []Job{{Trace: t, Setup: s, Label: "capacity of " + s.Policy.Label}})
		if err != nil {
			return 0, err
		}
		if res[0].Within(within) >= share {
			lo = rate
		} else {
			hi = rate
		}
		switch {
		case hi == 0 && lo > 8*from:
			return lo, nil
		case hi == 0:
			rate = lo * 1.25
		case lo == 0 && hi < from/20:
			return 0, nil
		case lo == 0:
			rate = hi * 0.75
		default:
			rate = math.Sqrt(lo * hi)
		}
	}
	return lo, nil
}
