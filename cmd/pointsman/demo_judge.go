package main

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"pointsman/internal/traffic"
)

// demoReport is the demo's last line.
type demoReport struct {
	Requests     int     `json:"requests"`
	OK           int     `json:"ok"`
	Interrupted  int     `json:"interrupted"`
	OpenAtKill   int     `json:"streams_open_at_kill"`
	ClientErrors int     `json:"client_errors"`
	HitRatio     float64 `json:"hit_ratio"`
	Ceiling      float64 `json:"ceiling"`
	Policy       string  `json:"policy"`
	TTFT         float64 `json:"ttft_p50_ms"`
	TTFTp90      float64 `json:"ttft_p90_ms"`
	KilledWorker string  `json:"killed_worker"`

	// Of the run that it is compared with, one of the two.
	TTFTRoundRobin    *float64 `json:"ttft_p50_ms_round_robin,omitempty"`
	TTFTp90RoundRobin *float64 `json:"ttft_p90_ms_round_robin,omitempty"`
	TTFTKVAware       *float64 `json:"ttft_p50_ms_kv_aware,omitempty"`
	TTFTp90KVAware    *float64 `json:"ttft_p90_ms_kv_aware,omitempty"`

	// Of a fleet behind a broker.
	OverNATS *float64 `json:"requests_over_nats,omitempty"`
	// Of a fleet of pairs.
	Pairs   *int `json:"pd_pairs,omitempty"`
	Orphans *int `json:"pd_orphans,omitempty"`
	Lost    *int `json:"pd_legs_lost_with_worker,omitempty"`
}

// judge compares the two runs and returns every promise that was not kept.
func judge(baseline, kv outcome) (demoReport, []error) {
	told, toldBefore := toldOfKill(&kv), toldOfKill(&baseline)
	r := demoReport{
		Requests: kv.summary.Requests, OK: kv.summary.OK, Interrupted: kv.summary.Interrupted + told,
		OpenAtKill: openAtKill(&kv) + told, ClientErrors: kv.summary.Failed + baseline.summary.Failed - told - toldBefore,
		HitRatio: round(kv.summary.HitRatio, 4), Ceiling: round(kv.ceiling, 4),
		Policy: kv.phase.policy, TTFT: milliseconds(kv.summary.TTFTp50), TTFTp90: milliseconds(kv.summary.TTFTp90),
		KilledWorker: kv.victim, OverNATS: kv.carried,
	}
	p50, p90 := milliseconds(baseline.summary.TTFTp50), milliseconds(baseline.summary.TTFTp90)
	if kv.phase.loaded {
		r.TTFTKVAware, r.TTFTp90KVAware = &p50, &p90
	} else {
		r.TTFTRoundRobin, r.TTFTp90RoundRobin = &p50, &p90
	}
	if p := kv.pairing; p != nil {
		orphans := len(p.orphans)
		r.Pairs, r.Orphans, r.Lost = &p.pairs, &orphans, &p.lost
	}
	var faults []error
	promise := func(kept bool, format string, args ...any) {
		if !kept {
			faults = append(faults, fmt.Errorf("demo: "+format, args...))
		}
	}
	promise(r.KilledWorker != "", "no engine was answering two streams at once, so none was killed")
	promise(r.OK+r.Interrupted == r.Requests, "%d of %d requests were neither answered nor interrupted", r.Requests-r.OK-r.Interrupted, r.Requests)
	promise(r.Interrupted <= r.OpenAtKill, "%d streams were interrupted, but only %d were open at the killed engine", r.Interrupted, r.OpenAtKill)
	promise(r.ClientErrors == 0, "clients saw %d errors", r.ClientErrors)
	if baseline.phase.kill {
		promise(baseline.summary.Interrupted <= openAtKill(&baseline), "%d streams were interrupted in the first run, but only %d were open at the killed engine", baseline.summary.Interrupted, openAtKill(&baseline))
	} else {
		promise(baseline.summary.Interrupted == 0, "%d streams were interrupted although nobody was killed", baseline.summary.Interrupted)
	}
	share := minHitShare
	if kv.phase.loaded {
		share = minLoadedHits
		promise(kv.summary.TTFTp90 < baseline.summary.TTFTp90, "the 90th percentile of the time to first token, %v, is not below kv-aware's %v", kv.summary.TTFTp90, baseline.summary.TTFTp90)
	} else {
		promise(kv.summary.TTFTp50 < baseline.summary.TTFTp50, "the median time to first token, %v, is not below round-robin's %v", kv.summary.TTFTp50, baseline.summary.TTFTp50)
	}
	promise(kv.summary.HitRatio >= share*kv.ceiling, "hit ratio %.3f is below %.1f of the ceiling %.3f", r.HitRatio, share, r.Ceiling)
	promise(len(kv.blind) == 0, "the cache events of %v did not reach the EPP", kv.blind)
	if n := kv.carried; n != nil {
		promise(*n >= float64(r.OK), "%d requests were answered, but the broker carried only %v", r.OK, *n)
	}
	return r, slices.Concat(faults, unpaired(&baseline), unpaired(&kv), strangers(&kv), failures(baseline, kv))
}

// flowedFrom reports whether r's stream was open at the killed engine when it
// was killed: what had left the engine before may have come later.
func (o *outcome) flowedFrom(r *traffic.Result) bool {
	return !o.killed.IsZero() && r.Worker == o.victim && r.Sent.Before(o.killed) && r.End.After(o.killed) && r.Texts > 0
}

func openAtKill(o *outcome) int {
	n := 0
	for i := range o.results {
		if o.flowedFrom(&o.results[i]) {
			n++
		}
	}
	return n
}

// awaitedFrom reports whether r was a pair's request whose decode leg waited at
// the killed engine, and whose client was told so. A decode leg that was written
// is not repeated (docs/failover.md, Stages and retries).
func (o *outcome) awaitedFrom(r *traffic.Result) bool {
	return o.pairing != nil && r.Outcome() == traffic.Failed && r.Status == http.StatusBadGateway && r.Texts == 0 &&
		!o.killed.IsZero() && r.Worker == o.victim && r.Sent.Before(o.killed) && r.End.After(o.killed)
}

// toldOfKill counts those requests.
func toldOfKill(o *outcome) int {
	n := 0
	for i := range o.results {
		if o.awaitedFrom(&o.results[i]) {
			n++
		}
	}
	return n
}

// strangers returns the streams that were interrupted without having flowed from
// the killed engine.
func strangers(o *outcome) []error {
	var errs []error
	for i := range o.results {
		r := &o.results[i]
		if r.Outcome() == traffic.Interrupted && !o.flowedFrom(r) {
			errs = append(errs, fmt.Errorf("demo: %s was interrupted at %q, which was not killed under it: %s", r.Request.ID, r.Worker, r.Detail))
		}
	}
	return errs
}

// maxFailures is how many failed requests are told in full.
const maxFailures = 5

func failures(runs ...outcome) []error {
	var errs []error
	for _, o := range runs {
		for i := range o.results {
			r := &o.results[i]
			if r.Outcome() != traffic.Failed || o.awaitedFrom(r) || len(errs) >= maxFailures {
				continue
			}
			errs = append(errs, fmt.Errorf("demo: %s at %q: status %d, %d texts, %d error events, %d [DONE], %d events after the end, finish %v: %s: %w",
				r.Request.ID, r.Worker, r.Status, r.Texts, r.Errors, r.Dones, r.After, r.Finish, r.Detail, orNone(r.Err)))
		}
	}
	return errs
}

// noError stands for a failure without one: the stream itself was wrong.
type noError struct{}

func (noError) Error() string { return "no connection error" }

func orNone(err error) error {
	if err == nil {
		return noError{}
	}
	return err
}

func round(v float64, decimals int) float64 {
	p := math.Pow10(decimals)
	return math.Round(v*p) / p
}

func milliseconds(d time.Duration) float64 { return round(d.Seconds()*1000, 1) }
