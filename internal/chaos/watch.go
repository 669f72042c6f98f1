package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"pointsman/internal/history"
	"pointsman/internal/retry"
)

const sampleEvery = 250 * time.Millisecond

// Metrics that are read by name.
const (
	breakerState    = "infera_router_worker_breaker_state"
	breakerOpen     = 2
	requestDuration = "infera_request_duration_seconds" // its count is the requests by outcome
)

// sample looks at the pickers' circuits until ctx is done. A picker that does
// not answer, because it restarts, calls none open.
func (f *fleet) sample(ctx context.Context) []history.Sample {
	var all []history.Sample
	for retry.Sleep(ctx, sampleEvery) {
		for _, e := range f.EPPs {
			s := history.Sample{At: time.Now(), Source: e.Name}
			if m, err := f.Metrics(ctx, e.Admin); err == nil {
				m.Each(breakerState, func(labels map[string]string, value float64) {
					if value == breakerOpen {
						s.Open = append(s.Open, labels["worker_id"])
					}
				})
			}
			all = append(all, s)
		}
	}
	return all
}

// program is one that has metrics.
type program struct{ name, admin string }

func (f *fleet) programs() []program {
	var all []program
	for _, e := range f.EPPs {
		all = append(all, program{e.Name, e.Admin})
	}
	for _, w := range f.Workers {
		all = append(all, program{w.Forwarder.Name, w.ForwarderAdmin})
	}
	return all
}

// held reports whether a gauge of this name counts what is held for requests.
func held(name string) bool {
	return slices.ContainsFunc([]string{"inflight", "in_flight", "queued", "queue_depth", "reservation", "waiting", "buffered_body", "nats_buffered", "active_blocks", "parked"},
		func(part string) bool { return strings.Contains(name, part) })
}

// gauges returns the gauges of what is held, in all programs.
func (f *fleet) gauges(ctx context.Context) ([]history.Gauge, error) {
	var all []history.Gauge
	for _, p := range f.programs() {
		m, err := f.Metrics(ctx, p.admin)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if m[name].GetType() != dto.MetricType_GAUGE || !held(name) {
				continue
			}
			m.Each(name, func(labels map[string]string, value float64) {
				all = append(all, history.Gauge{Source: p.name, Name: series(name, labels), Value: value})
			})
		}
	}
	return all, nil
}

func series(name string, labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, ",%s=%s", k, labels[k])
	}
	return name + "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// quiet waits up to bound for every gauge to be zero, and returns the last look.
func (f *fleet) quiet(ctx context.Context, bound time.Duration) ([]history.Gauge, error) {
	until := time.Now().Add(bound)
	for {
		all, err := f.gauges(ctx)
		busy := slices.ContainsFunc(all, func(g history.Gauge) bool { return g.Value != 0 })
		if err != nil || !busy || time.Now().After(until) {
			return all, err
		}
		if !retry.Sleep(ctx, 50*time.Millisecond) {
			return all, ctx.Err()
		}
	}
}

// counted returns how many requests the forwarders' outcomes sum up to.
func (f *fleet) counted(ctx context.Context) (float64, error) {
	total := 0.0
	for _, w := range f.Workers {
		m, err := f.Metrics(ctx, w.ForwarderAdmin)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", w.Forwarder.Name, err)
		}
		total += m.Sum(requestDuration, nil)
	}
	return total, nil
}
