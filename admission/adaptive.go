package admission

import (
	"context"
	"time"
)

// What an adaptive limit does (contract 1.3b).
const (
	stateOff       = "off"
	stateOpen      = "open"      // at the ceiling
	stateTightened = "tightened" // below it
	stateFrozen    = "frozen"    // nothing fresh is known: the limit stays

	causeNone    = "none"
	causeWaiting = "waiting" // engines have requests that wait
	causeTTFT    = "ttft"    // first tokens come too late
	causeClear   = "clear"   // neither
	causeStale   = "stale"   // no fresh report
)

func adaptStates() []string { return []string{stateOff, stateOpen, stateTightened, stateFrozen} }

func adaptCauses() []string {
	return []string{causeNone, causeWaiting, causeTTFT, causeClear, causeStale}
}

// adaptive is the ceiling that follows what the engines report.
type adaptive struct {
	limit   int
	state   string
	cause   string
	reports map[string]report
	heard   bool // a worker has reported, ever
	sum     time.Duration
	samples int // of time to first token since the last step
	ttftAt  time.Time
}

// report is how many requests a worker's engine has waiting.
type report struct {
	at      time.Time
	waiting int
}

// configure takes a new ceiling over; before is the former one.
func (a *adaptive) configure(c *Config, before int) {
	top := c.ceiling()
	if !c.Adaptive {
		a.limit, a.state, a.cause = top, stateOff, causeNone
		return
	}
	if a.state == stateOff || a.state == "" || top != before {
		a.limit, a.state, a.cause = top, stateOpen, causeNone
	}
}

// step is done once a second.
func (a *adaptive) step(now time.Time, c *Config) {
	if !c.Adaptive {
		return
	}
	waiting, fresh := a.waiting(now, c.TelemetryStale)
	var ttft time.Duration
	if a.samples > 0 {
		ttft, a.ttftAt = a.sum/time.Duration(a.samples), now
	}
	a.sum, a.samples = 0, 0
	knows := fresh
	if !a.heard { // nobody reports but the streams themselves
		knows = c.TTFTTarget > 0 && !a.ttftAt.IsZero() && now.Sub(a.ttftAt) <= c.TelemetryStale
	}
	top := c.ceiling()
	switch {
	case waiting > 0:
		a.tighten(top, causeWaiting)
	case c.TTFTTarget > 0 && ttft > c.TTFTTarget:
		a.tighten(top, causeTTFT)
	case knows:
		a.limit, a.cause = min(top, a.limit+1), causeClear
	default:
		a.state, a.cause = stateFrozen, causeStale
		return
	}
	if a.state = stateOpen; a.limit < top {
		a.state = stateTightened
	}
}

func (a *adaptive) tighten(top int, cause string) {
	a.limit, a.cause = max(a.limit*4/5, ceilDiv(top, 4), 1), cause
}

// waiting sums the fresh reports and forgets the others.
func (a *adaptive) waiting(now time.Time, stale time.Duration) (sum int, fresh bool) {
	for worker, r := range a.reports {
		if now.Sub(r.at) > stale {
			delete(a.reports, worker)
			continue
		}
		sum, fresh = sum+r.waiting, true
	}
	return sum, fresh
}

// Report tells how many requests a worker's engine had waiting at now.
func (g *Gate) Report(now time.Time, worker string, waiting int) {
	g.mu.Lock()
	defer g.unlock()
	a := &g.adapt
	if a.reports == nil {
		a.reports = map[string]report{}
	}
	a.reports[worker], a.heard = report{now, waiting}, true
}

func (g *Gate) firstToken(p Pass, now time.Time) {
	g.mu.Lock()
	defer g.unlock()
	if g.cfg.Adaptive && p.r.gen == p.gen && p.r.open {
		g.adapt.sum += now.Sub(p.r.admitted)
		g.adapt.samples++
	}
}

// How often leaked requests are looked for.
const sweepEvery = 30 * time.Second

// Run adapts the limit, ends what is only observed to wait, and reports leaked
// requests, until ctx is done. Without it nothing is adapted, and a release that
// was not told to Wake is not made up for.
func (g *Gate) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			g.Tick(time.Now())
		}
	}
}

// Tick is what Run does each second.
func (g *Gate) Tick(now time.Time) {
	g.mu.Lock()
	defer g.unlock()
	g.adapt.step(now, &g.cfg)
	g.limit = g.adapt.limit
	g.expire(now)
	if g.queue.n > 0 {
		clear(g.blocked)
		g.dispatch(now)
	}
	if now.Sub(g.swept) >= sweepEvery {
		g.swept = now
		g.sweep(now)
	}
}

// sweep counts the requests that are open for too long, each once.
func (g *Gate) sweep(now time.Time) {
	if g.cfg.LeakAge == 0 {
		return
	}
	for r := g.oldest; r != nil && now.Sub(r.admitted) > g.cfg.LeakAge; r = r.newer {
		if !r.reported {
			r.reported = true
			g.metrics.anomaly(anomalyLeak)
		}
	}
}
