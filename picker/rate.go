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
	startMass     = 300             // the same of [Latency].StartRate beside the fleet's
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
// are the later of its dispatch and the worker's first token before, and its own, in
// Unix ns.
func (e *evidence) sample(te float64, from, to int64) {
	if te <= 0 {
		return
	}
	e.te = e.te*sampleDecay + te
	e.ms = e.ms*sampleDecay + max(0, milliseconds(to-from))
}

// fade takes from the weight of what was learned the given time ago.
func (e *evidence) fade(d time.Duration) {
	f := math.Exp2(-float64(d) / float64(evidenceFades))
	e.te, e.ms = e.te*f, e.ms*f
}

func milliseconds(ns int64) float64 { return float64(ns) * (1.0 / float64(time.Millisecond)) }

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

// add adds t's part in the fleet's average.
func (e *evidence) add(t *target) {
	if rate := t.external.now.Rate; rate > 0 {
		e.te, e.ms = e.te+rate*fleetMass, e.ms+fleetMass
		return
	}
	e.te, e.ms = e.te+t.seen.te, e.ms+t.seen.ms
}

// pace returns t's milliseconds per te, where the fleet's are the given ones.
func (t *target) pace(fleet float64) float64 {
	if rate := t.external.now.Rate; rate > 0 {
		return bounded(1 / rate)
	}
	if t.seen.te == 0 {
		return fleet
	}
	return bounded(fleet * (t.seen.ms + fleetMass) / (fleet*t.seen.te + fleetMass))
}

// fleetPace returns the fleet's milliseconds per te from what all of its targets have
// taught.
func (l *Latency) fleetPace(e evidence) float64 {
	return bounded((e.ms + startMass) / (e.te + startMass*l.StartRate))
}

func bounded(pace float64) float64 {
	switch {
	case pace < 1/fastest:
		return 1 / fastest
	case pace > 1/slowest:
		return 1 / slowest
	}
	return pace
}

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

// suppose goes through the queues for requests whose first token tells nothing.
func (p *Picker) suppose(now time.Time) {
	at, fleet := now.UnixNano(), p.cfg.Latency.fleetPace(evidence{})
	for _, t := range p.targets {
		if t.head != nil && t.head.mute {
			t.suppose(at, t.pace(fleet))
		}
	}
}

// enqueue puts l, which is about to be sent, at the end of its target's queue.
func (l *leg) enqueue() {
	t := l.t
	if t.tail == nil {
		t.head, t.progress = l, l.at
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
	t := l.t
	if l.past {
		l.past = false
		t.past--
		t.pastTokens -= l.prompt
	}
	if !l.queued {
		return
	}
	if prefilled && !l.mute {
		t.seen.sample(l.work, max(l.at, t.progress), now.UnixNano())
	}
	if prefilled || t.head == l {
		t.progress = now.UnixNano()
	}
	l.unlink()
}

func (l *leg) unlink() {
	t := l.t
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

// suppose takes the mute requests at the head of t's queue for prefilled when they
// should be: no first token will tell. They count as running then.
func (t *target) suppose(now int64, pace float64) {
	for l := t.head; l != nil && l.mute; l = t.head {
		ends := t.progress + int64(l.work*pace*float64(time.Millisecond))
		if ends > now {
			return
		}
		t.progress = max(t.progress, ends)
		l.past = true
		t.past++
		t.pastTokens += l.prompt
		l.unlink()
	}
}

// ahead returns the te of the queue that t would compute before a request that comes
// at now; the queue is not empty. What it may have done since its last first token is
// the request at the head at most: that one has no first token yet. So a worker that
// stands still does not seem to be getting free.
func (t *target) ahead(now int64, pace float64) float64 {
	done := milliseconds(now-t.progress) / pace
	if done > t.head.work {
		done = t.head.work
	}
	if done < 0 {
		done = 0 // an older now than the target's
	}
	return max(0, t.queue-done)
}
