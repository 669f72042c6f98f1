package lab

import "pointsman/picker"

// reports is the forwarders beside the workers: each counts what its worker has in
// flight, by router, learns how fast it prefills, and tells all routers at times.
type reports struct {
	m     *sim
	loads []workerLoad // nil for no reports
}

// workerLoad is one forwarder's count.
type workerLoad struct {
	by []picker.External // by router

	te, ms float64 // work done and how long it took, fading
	last   int64   // time of the last first token
}

// How fast a worker is, is the ratio of two sums over its last first tokens, with some
// of the fleet's average mixed in (findings/policy.md §3).
const (
	speedFades = 0.98
	speedPrior = 3000 // milliseconds
	attention  = 50_000
)

func newReports(m *sim) *reports {
	r := &reports{m: m}
	if m.s.ReportInterval == 0 {
		return r
	}
	r.loads = make([]workerLoad, len(m.workers))
	for i := range r.loads {
		r.loads[i].by = make([]picker.External, len(m.routers))
	}
	return r
}

// plan adds the first reports: each forwarder has its own beat.
func (r *reports) plan() {
	for i := range r.loads {
		every := int64(r.m.s.ReportInterval)
		r.m.clock.add(event{at: r.m.now + every*int64(i+1)/int64(len(r.loads)), kind: reportDue, w: r.m.workers[i]})
	}
}

// due tells every router what its worker does for the others.
func (r *reports) due(e *event) {
	m, l := r.m, &r.loads[e.w.n]
	var total picker.External
	for i := range l.by {
		plus(&total, &l.by[i], 1)
	}
	rate := r.rate(l)
	for i, router := range m.routers {
		others := total
		plus(&others, &l.by[i], -1)
		others.Rate = rate
		router.picker.SetExternal(m.ids[e.w.n], -1, others, at(m.now))
	}
	m.clock.add(event{at: m.now + int64(m.s.ReportInterval), kind: reportDue, w: e.w})
}

// rate returns a worker's speed in token-equivalents per millisecond; 0 unknown.
func (r *reports) rate(l *workerLoad) float64 {
	var te, ms float64
	for i := range r.loads {
		te += r.loads[i].te
		ms += r.loads[i].ms
	}
	if ms <= 0 {
		return 0
	}
	return (l.te + speedPrior*te/ms) / (l.ms + speedPrior)
}

func (r *reports) of(c *call) *picker.External {
	if r.loads == nil {
		return nil
	}
	return &r.loads[c.w.n].by[c.from]
}

// miss is what a forwarder takes a prompt to cost: what its router believed.
func miss(c *call) float64 { return float64(max(0, c.req.Prompt-c.decision.HitTokens)) }

// sent counts c, which is about to be sent to its worker.
func (r *reports) sent(c *call) {
	if l := r.of(c); l != nil {
		l.Requests++
		l.Waiting++
		l.PrefillTokens += miss(c)
		l.ActiveTokens += float64(c.req.Prompt)
	}
}

// first counts c's first token.
func (r *reports) first(c *call) {
	l := r.of(c)
	if l == nil {
		return
	}
	prompt, missed := float64(c.req.Prompt), miss(c)
	l.Waiting--
	l.PrefillTokens -= missed
	l.Decoders++
	l.ContextTokens += prompt
	w := &r.loads[c.w.n]
	from := max(c.sent, w.last)
	w.last = r.m.now
	w.te = w.te*speedFades + missed*(1+(prompt-missed/2)/attention)
	w.ms = w.ms*speedFades + milliseconds(r.m.now-from)
}

// over takes c out again.
func (r *reports) over(c *call) {
	l := r.of(c)
	if l == nil {
		return
	}
	l.Requests--
	l.ActiveTokens -= float64(c.req.Prompt)
	if c.first > 0 {
		l.Decoders--
		l.ContextTokens -= float64(c.req.Prompt)
		return
	}
	l.Waiting--
	l.PrefillTokens -= miss(c)
}

func plus(sum, l *picker.External, times float64) {
	sum.Requests += times * l.Requests
	sum.Waiting += times * l.Waiting
	sum.PrefillTokens += times * l.PrefillTokens
	sum.Decoders += times * l.Decoders
	sum.ContextTokens += times * l.ContextTokens
	sum.ActiveTokens += times * l.ActiveTokens
}
