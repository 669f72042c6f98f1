package picker

import (
	"math"
	"time"
)

// A worker's rate is how fast it prefills, in token-equivalents per millisecond. It
// is the ratio of two sums over its last first tokens, never a mean of ratios:
// several of them fall into one step of an engine. Little evidence is drawn towards
// the fleet's average.
const (
	sampleDecay   = 0.98            // of the sums, with each first token
	fleetMass     = 3000            // milliseconds of the fleet's average that stand beside a worker's evidence
	evidenceFades = 5 * time.Minute // half-life: one who was slow gets another chance although nobody asks him
	slowest       = 0.01            // te per ms
	fastest       = 1e5
)

// evidence is what first tokens have taught of one target. The zero value is none.
type evidence struct {
	te, ms float64
}

// sample adds a request whose prefill took from one moment to another. The moments
// are the later of its dispatch and the worker's first token before, and its own.
func (e *evidence) sample(te float64, from, to time.Time) {
	if te <= 0 {
		return
	}
	e.te = e.te*sampleDecay + te
	e.ms = e.ms*sampleDecay + max(0, milliseconds(to.Sub(from)))
}

// fade takes from the weight of what was learned the given time ago.
func (e *evidence) fade(d time.Duration) {
	f := math.Exp2(-float64(d) / float64(evidenceFades))
	e.te, e.ms = e.te*f, e.ms*f
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// RateSource is where a target's rate comes from.
type RateSource uint8

// Where rates come from.
const (
	RateStart    RateSource = iota // nothing was learned: the fleet's average, which begins at [Latency].StartRate
	RatePrivate                    // the first tokens of this picker's own requests
	RateReported                   // a load report
)

// String returns start, private or reported.
func (s RateSource) String() string {
	return [...]string{"start", "private", "reported"}[s]
}

func (t *target) source() RateSource {
	switch {
	case t.external.now.Rate > 0:
		return RateReported
	case t.seen.te > 0:
		return RatePrivate
	}
	return RateStart
}

// weight returns t's part in the fleet's average.
func (t *target) weight() (te, ms float64) {
	if t.external.now.Rate > 0 {
		return t.external.now.Rate * fleetMass, fleetMass
	}
	return t.seen.te, t.seen.ms
}

// pace returns t's milliseconds per te, where the fleet's are the given ones.
func (t *target) pace(fleet float64) float64 {
	if t.external.now.Rate > 0 {
		return 1 / min(fastest, max(slowest, t.external.now.Rate))
	}
	if t.seen.te == 0 {
		return fleet
	}
	return bounded((t.seen.ms + fleetMass) / (t.seen.te + fleetMass/fleet))
}

// fleetPace returns the fleet's milliseconds per te from the sums of its targets.
func (l *Latency) fleetPace(te, ms float64) float64 {
	return bounded((ms + fleetMass) / (te + fleetMass*l.StartRate))
}

func bounded(pace float64) float64 { return min(1/slowest, max(1/fastest, pace)) }

// fadeRates lets what was learned fade.
func (p *Picker) fadeRates(d time.Duration) {
	if d <= 0 {
		return
	}
	for _, t := range p.targets {
		if t.seen.te > 0 {
			t.seen.fade(d)
		}
	}
}

// enqueue puts l, which is about to be sent, at the end of its target's queue.
func (l *leg) enqueue(now time.Time) {
	t := l.t
	if t.tail == nil {
		t.head, t.progress = l, now
	} else {
		t.tail.next, l.prev = l, t.tail
	}
	t.tail = l
	l.queued = true
	t.queue += l.work
}

// dequeue takes l out of its target's queue: at its first token, which a prefill ends
// with, or because it has ended without one.
func (l *leg) dequeue(now time.Time, prefilled bool) {
	if !l.queued {
		return
	}
	t := l.t
	if prefilled && !l.unary {
		from := l.at
		if t.progress.After(from) {
			from = t.progress
		}
		t.seen.sample(l.work, from, now)
	}
	if prefilled || t.head == l {
		t.progress = now
	}
	if l.prev == nil {
		t.head = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		t.tail = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.next, l.prev, l.queued = nil, nil, false
	if t.queue -= l.work; t.head == nil || t.queue < 0 {
		t.queue = 0 // no rounding is left over
	}
}

// ahead returns the te that t would compute before a request that comes at now. What
// it may have done since its last first token is the request at the head of its
// queue at most: that one has no first token yet. So a worker that stands still does
// not seem to be getting free.
func (t *target) ahead(now time.Time, pace float64) float64 {
	queue := t.queue
	if t.head != nil {
		done := milliseconds(now.Sub(t.progress)) / pace
		queue -= max(0, min(done, t.head.work))
	}
	return max(0, queue) + t.external.now.PrefillTokens
}
