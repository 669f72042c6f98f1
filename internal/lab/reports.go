package lab

import (
	"time"

	"pointsman/internal/assemble"
	"pointsman/picker"
	"pointsman/reports"
)

// loadReports is the forwarders beside the workers and what the routers hear of them:
// each forwarder counts in a [reports.Tally] of its own, whose reports every router puts
// on its [reports.Board]. The zero value reports nothing.
type loadReports struct {
	m       *sim
	tallies []*reports.Tally // by worker; nil for no reports
	boards  []*reports.Board // by router
	full    []int64          // by worker: when it has last told everything
	report  reports.Report
}

// sink is a router as its board knows it. First tokens and ends it hears of in the
// run's own time: see [Setup].Notice.
type sink struct{ p *picker.Picker }

// Others implements a part of [reports.Sink].
func (s sink) Others(worker string, rank int, o reports.Other) {
	s.p.SetExternal(worker, rank, assemble.External(&o), o.At)
}

// Sent implements a part of [reports.Sink].
func (s sink) Sent(x *reports.Sent, at time.Time) {
	s.p.Foretell(x.Worker, x.Rank, picker.Foreign(x.Ref), picker.Trail(x.Trail), at)
}

// Settled implements a part of [reports.Sink].
func (s sink) Settled(ref reports.Ref, began bool, at time.Time) {
	s.p.Settled(picker.Foreign(ref), began, at)
}

// First implements a part of [reports.Sink].
func (sink) First(uint64, time.Time) {}

// Done implements a part of [reports.Sink].
func (sink) Done(*reports.Done, time.Time) {}

func newReports(m *sim) loadReports {
	r := loadReports{m: m}
	if m.s.ReportInterval == 0 {
		return r
	}
	cfg := reports.DefaultConfig()
	cfg.Interval = m.s.ReportInterval
	cfg.Heartbeat = max(cfg.Heartbeat, cfg.Interval)
	r.full = make([]int64, len(m.workers))
	for _, id := range m.ids {
		r.tallies = append(r.tallies, reports.NewTally(cfg, "forwarder-"+id))
	}
	for _, router := range m.routers {
		r.boards = append(r.boards, reports.NewBoard(router.id, sink{router.picker}))
	}
	return r
}

// plan adds the first reports: each forwarder has its own beat.
func (r *loadReports) plan() {
	for i := range r.tallies {
		every := int64(r.m.s.ReportInterval)
		r.m.clock.add(event{at: r.m.now + every*int64(i+1)/int64(len(r.tallies)), kind: reportDue, w: r.m.workers[i]})
	}
}

// due tells every router what has changed at a worker, and all of it at each heartbeat.
func (r *loadReports) due(w *worker) {
	m, t := r.m, r.tallies[w.n]
	if beat := max(reports.DefaultConfig().Heartbeat, m.s.ReportInterval); m.now-r.full[w.n] >= int64(beat) {
		r.full[w.n] = m.now
		t.Refresh()
	}
	if t.Collect(at(m.now), &r.report) {
		for _, b := range r.boards {
			b.Take(at(m.now), reports.ViaHTTP, &r.report)
		}
	}
	m.clock.add(event{at: m.now + int64(m.s.ReportInterval), kind: reportDue, w: w})
}

// sent counts c, which is about to be sent to its worker.
func (r *loadReports) sent(c *call) {
	if r.tallies == nil {
		return
	}
	d := &c.decision
	c.flight = r.tallies[c.w.n].Open(reports.Pick{
		Ref:    reports.Ref{Picker: c.router.id},
		Prompt: d.PromptTokens, Miss: d.MissTokens, Added: d.AddedTokens,
	})
	c.flight.At(at(r.m.now), c.w.id(r.m), -1, true)
}
