package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"pointsman/internal/history"
	"pointsman/internal/retry"
	"pointsman/internal/stack"
)

// How often the programs are looked at. A forwarder's circuits are of consequence
// after a failure only.
const (
	sampleEvery     = 250 * time.Millisecond
	forwardersEvery = 3 // samples
)

// Metrics that are read by name.
const (
	breakerState = "infera_router_worker_breaker_state"
	breakerUntil = "infera_router_worker_breaker_open_until_seconds"
	breakerTrips = "infera_router_worker_breaker_trips_total"
	pairState    = "infera_router_pair_breaker_state"
	pairUntil    = "infera_router_pair_breaker_open_until_seconds"
	workerHealth = "infera_router_worker_health"
	excluded     = "infera_router_excluded"
	requestsEnd  = "infera_router_requests_total" // by outcome
)

// sample looks at how the programs see the workers, and at what they pick, until ctx is
// done.
func (f *fleet) sample(ctx context.Context) ([]history.Sample, []history.Pick) {
	var all []history.Sample
	picks := map[string]history.Pick{}
	for n := 0; retry.Sleep(ctx, sampleEvery); n++ {
		for i, p := range f.programs() {
			if i < len(f.EPPs) || (n+i)%forwardersEvery == 0 {
				all = append(all, f.look(ctx, history.Sample{Source: p.name}, p.admin))
				f.picks(ctx, p, picks)
			}
		}
	}
	return all, slices.Collect(maps.Values(picks))
}

// picks adds the latest picks of a program that were made among several workers.
func (f *fleet) picks(ctx context.Context, p program, all map[string]history.Pick) {
	var page struct {
		Picks []struct {
			Time       time.Time `json:"time"`
			RequestID  string    `json:"request_id"`
			Chosen     string    `json:"chosen"`
			Candidates []struct {
				Worker   string `json:"worker_id"`
				Excluded string `json:"excluded"`
			} `json:"candidates"`
		} `json:"picks"`
	}
	raw, err := stack.Get(ctx, f.client, p.admin+"/debug/picks")
	if err != nil || json.Unmarshal(raw, &page) != nil {
		return // it restarts
	}
	for _, one := range page.Picks {
		pick := history.Pick{At: one.Time, Source: p.name, Request: one.RequestID, Worker: one.Chosen}
		among := 0 // one: the endpoint picker has named it
		for _, c := range one.Candidates {
			switch c.Excluded {
			case "role", "not_active":
				continue
			case "tried":
				pick.Tried = append(pick.Tried, c.Worker)
			}
			among++
		}
		if pick.Worker != "" && among > 1 {
			all[fmt.Sprint(p.name, one.RequestID, one.Chosen, one.Time.UnixNano())] = pick
		}
	}
}

// look fills s with what a program says. One that does not answer, because it
// restarts, says nothing.
func (f *fleet) look(ctx context.Context, s history.Sample, admin string) history.Sample {
	m, err := f.Metrics(ctx, admin)
	s.At = time.Now()
	if err != nil {
		return s
	}
	s.Circuits, s.Excluded = map[string]history.Circuit{}, map[string]int{}
	each := func(name string, note func(*history.Circuit, float64)) {
		m.Each(name, func(labels map[string]string, value float64) {
			c := s.Circuits[labels["worker_id"]]
			note(&c, value)
			s.Circuits[labels["worker_id"]] = c
		})
	}
	each(breakerState, func(c *history.Circuit, v float64) { c.State = int(v) })
	each(breakerTrips, func(c *history.Circuit, v float64) { c.Trips = int(v) })
	each(breakerUntil, func(c *history.Circuit, v float64) {
		if v > 0 {
			c.Until = fromSeconds(v)
		}
	})
	m.Each(workerHealth, func(labels map[string]string, value float64) {
		if value == 0 {
			s.Unfit = append(s.Unfit, labels["worker_id"])
		}
	})
	m.Each(excluded, func(labels map[string]string, value float64) { s.Excluded[labels["reason"]] = int(value) })
	pairs := map[[2]string]history.Pair{}
	eachPair := func(name string, note func(*history.Pair, float64)) {
		m.Each(name, func(labels map[string]string, value float64) {
			p := pairs[[2]string{labels["prefill"], labels["decode"]}]
			p.Decode = labels["decode"]
			note(&p, value)
			pairs[[2]string{labels["prefill"], labels["decode"]}] = p
		})
	}
	eachPair(pairState, func(p *history.Pair, v float64) { p.State = int(v) })
	eachPair(pairUntil, func(p *history.Pair, v float64) { p.Until = fromSeconds(v) })
	s.Pairs = slices.Collect(maps.Values(pairs))
	return s
}

func fromSeconds(v float64) time.Time { return time.UnixMilli(int64(math.Round(v * 1000))) }

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
		total += m.Sum(requestsEnd, nil)
	}
	return total, nil
}
