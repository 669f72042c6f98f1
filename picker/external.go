package picker

import (
	"math"
	"time"
)

// External is what a target has in flight that this picker has not sent it: the
// picks of other replicas and of forwarders, and what came past all of them. The
// zero value is nothing, at an unknown rate.
type External struct {
	Requests      float64 // in flight
	Waiting       float64 // of these, without a first token
	PrefillTokens float64 // to compute before the last of the waiting has its first token
	Decoders      float64 // requests past their first token
	ContextTokens float64 // prompt tokens of these
	ActiveTokens  float64 // prompt tokens of all, those that requests share counted once as far as is known
	// Rate is how fast the target prefills, in token-equivalents per millisecond, of
	// whoever's requests; 0 unknown.
	Rate float64
	// Every is within what time it is said again; 0 unknown. What is told slowly grows
	// old slowly.
	Every time.Duration
}

// external is what was last told of a target, and what of it counts.
type external struct {
	now  External
	told External
	at   time.Time // zero for never

	counted int // of the worker's host.external
}

// DefaultExternalStale is [Config].ExternalStale's default: three heartbeats.
const DefaultExternalStale = 6 * time.Second

// missedNews is how many times in a row news may fail to come before what is known
// grows old.
const missedNews = 3

func (c *Config) externalStale() time.Duration {
	if c.ExternalStale > 0 {
		return c.ExternalStale
	}
	return DefaultExternalStale
}

// SetExternal says what a worker's rank (-1 for a worker without ranks) had in flight
// at the given time, beside this picker's own picks. It counts until the next call; from
// [Config].ExternalStale on, or three times load.Every where that is more, it fades to the mean of the fleet, for what is not known
// of one worker should neither draw nor repel requests, and its rate is unknown
// again. A target that the fleet does not have is ignored, and false returned.
func (p *Picker) SetExternal(workerID string, rank int, load External, at time.Time) bool {
	p.mu.Lock()
	tab := p.sync()
	var t *target
	for _, r := range tab.ids[workerID] {
		if r.Rank == rank || rank < 0 && r.Rank <= 0 {
			t = r.t
			break
		}
	}
	if t == nil || at.Before(t.external.at) {
		p.mu.Unlock()
		return t != nil
	}
	less := load.Requests < t.external.now.Requests
	t.external.told, t.external.at, t.external.now = load, at, load
	t.countExternal(int(math.Round(load.Requests)))
	p.mu.Unlock()
	if less {
		p.released()
	}
	return true
}

// fadeExternal lets what was told long ago fade, with mu held.
func (p *Picker) fadeExternal(now time.Time) {
	least := p.cfg.externalStale()
	var sum External
	fresh := 0.0
	for _, t := range p.targets {
		if e := &t.external; !e.at.IsZero() && now.Sub(e.at) <= e.stale(least) {
			sum.add(&e.told, 1)
			fresh++
		}
	}
	if fresh > 0 {
		p.meanExternal = External{}
		p.meanExternal.add(&sum, 1/fresh)
	}
	for _, t := range p.targets {
		e := &t.external
		stale := e.stale(least)
		if age := now.Sub(e.at) - stale; !e.at.IsZero() && age > 0 {
			left := math.Exp2(-float64(age) / float64(stale))
			e.now = External{}
			e.now.add(&e.told, left)
			e.now.add(&p.meanExternal, 1-left)
			e.now.Rate = 0
			t.countExternal(0) // a report that has grown old must not keep a worker full
		}
	}
}

// stale is the age from which what was told fades.
func (e *external) stale(least time.Duration) time.Duration {
	return max(least, missedNews*e.told.Every)
}

// count makes n the requests that t's worker is known to have of others, for its cap.
func (t *target) countExternal(n int) {
	t.host.external += n - t.external.counted
	t.external.counted = n
}

func (e *External) add(o *External, times float64) {
	e.Requests += times * o.Requests
	e.Waiting += times * o.Waiting
	e.PrefillTokens += times * o.PrefillTokens
	e.Decoders += times * o.Decoders
	e.ContextTokens += times * o.ContextTokens
	e.ActiveTokens += times * o.ActiveTokens
	e.Rate += times * o.Rate
}

// Own returns how many of this picker's own requests a worker has, all of its ranks
// together, and how many of them wait for their first token.
func (p *Picker) Own(workerID string) (requests, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.sync().ids[workerID] {
		requests += r.t.requests
		waiting += r.t.pending
	}
	return requests, waiting
}
