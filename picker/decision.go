package picker

import (
	"slices"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
)

// Decision is a pick and its reservation. It is a value: copy it freely. Done
// must be called in the end, on any copy; the zero Decision reserves nothing.
type Decision struct {
	Worker      *fleet.Worker
	Rank        int           // of a rank-multiplexed worker; -1 for none
	Prefill     *fleet.Worker // of a pair; nil for none
	PrefillRank int           // -1 for none
	PrefillHit  int           // tokens of the prompt that Prefill was believed to hold
	HitTokens   int           // tokens of the prompt that Worker was believed to hold, promised ones included
	Reason      string        // how the prompt was known: the request's label, or no_match, no_events
	OverCap     bool          // [Caps] that are not enforced would have left it out

	// Fallbacks are who could serve the request in place of Worker, with the same
	// Prefill, the best first; see [Request].Fallbacks. Nothing is reserved on them.
	Fallbacks []*fleet.Worker

	// PromptTokens, MissTokens and AddedTokens are what the pick adds to the load of
	// its workers: tokens of the prompt, those of them that must be computed, and
	// those that no request in flight on Worker shares.
	PromptTokens, MissTokens, AddedTokens int

	affine bool
	p      *Picker
	rec    *record
	gen    uint64
}

// Affinity reports whether another worker would serve the request worse: the
// chosen one holds at least a block of the prompt, has served the conversation
// before, or is half of a pair.
func (d *Decision) Affinity() bool { return d.affine }

// FirstToken says that the worker has answered the request's first token at now:
// the prompt is in its cache, a pair's prefill worker has done its part, and a
// circuit that was not closed is. The first call counts; after Done it does
// nothing.
func (d *Decision) FirstToken(now time.Time) {
	if d.rec == nil {
		return
	}
	p, rec := d.p, d.rec
	p.mu.Lock()
	if rec.gen != d.gen || rec.first {
		p.mu.Unlock()
		return
	}
	rec.first = true
	var copied [2]leg
	told := copied[:0]
	for i := range rec.legs[:rec.n] {
		l := &rec.legs[i]
		if l.over {
			continue
		}
		if l.seen(now); l.hold() {
			told = append(told, *l)
			p.memories.add(l, now)
		}
		if i > 0 {
			p.giveBack(now, l, true)
		}
		l.safe()
	}
	permits, pair := rec.permits(), rec.pair
	p.mu.Unlock()
	p.began(d, now, permits, pair)
	p.present(now, told)
	if d.Prefill != nil {
		p.released()
	}
}

// permits returns the permits that a first token is news for.
func (rec *record) permits() (permits [2]breaker.Permit) {
	for i := range rec.legs[:rec.n] {
		if l := &rec.legs[i]; !l.settled && (i == 0 || l.done) {
			permits[i] = l.permit
		}
	}
	return permits
}

// began tells the circuits of a first token, and puts back the permits that it has
// changed.
func (p *Picker) began(d *Decision, now time.Time, permits [2]breaker.Permit, pair breaker.PairPermit) {
	was, together := permits, pair
	for i := range permits {
		permits[i].FirstToken(now)
	}
	pair.FirstToken(now)
	if permits == was && pair == together {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := d.rec
	for i := range permits {
		if permits[i] != was[i] { // a circuit has closed
			p.recovered(d, i)
		}
	}
	if rec.gen != d.gen {
		return
	}
	rec.pair = pair
	for i := range rec.legs[:rec.n] {
		if permits[i] != was[i] {
			rec.legs[i].permit = permits[i]
		}
	}
}

// hold keeps l's hashes, which the index is to be told of, past the lock. It
// reports whether it is to be told.
func (l *leg) hold() bool {
	if l.told = l.told && !l.t.gone; l.told {
		l.node.refs++
	}
	return l.told
}

// present tells the index what the legs, which hold has kept, have computed.
func (p *Picker) present(now time.Time, legs []leg) {
	if len(legs) == 0 {
		return
	}
	for i := range legs {
		p.index.Present(legs[i].in, legs[i].node.hashes, now)
	}
	p.mu.Lock()
	for i := range legs {
		legs[i].t.led.drop(legs[i].node, &p.nodes)
	}
	p.mu.Unlock()
}

// giveBack ends the load of l.
func (p *Picker) giveBack(now time.Time, l *leg, hadFirst bool) {
	if l.over {
		return
	}
	l.over = true
	l.stop(now, hadFirst, &p.nodes)
	if l.t.gone && l.t.requests == 0 && p.targets[l.t.key] == l.t {
		delete(p.targets, l.t.key)
	}
}

// PrefillDone says that the prefill leg of a pair has ended, and how: its load is
// given back and its circuit learns. Only the first call before Done counts;
// without one, nothing is learned of the prefill worker. A success is only the
// half of it: what closes a circuit is the pair's first token.
func (d *Decision) PrefillDone(now time.Time, o breaker.Outcome) {
	if d.rec == nil {
		return
	}
	p, rec := d.p, d.rec
	p.mu.Lock()
	if rec.gen != d.gen || rec.n < 2 || rec.legs[1].settled || rec.legs[1].done {
		p.mu.Unlock()
		return
	}
	l := &rec.legs[1]
	l.done = o == breaker.Success
	l.settled = !l.done
	var copied [1]leg
	told := copied[:0]
	if !l.over {
		if o == breaker.Success {
			if l.seen(now); l.hold() {
				told = append(told, *l)
			}
		}
		p.giveBack(now, l, o == breaker.Success)
	}
	permit, pair, first := l.permit, rec.pair, rec.first
	p.mu.Unlock()
	switch {
	case o != breaker.Success:
		permit.Done(now, o)
	case first:
		p.began(d, now, [2]breaker.Permit{1: permit}, pair)
	default:
		permit.Answered()
	}
	p.present(now, told)
	p.released()
}

// Done gives back what the pick reserved, and tells the breaker how the request
// ended: the worker, which in a pair is the decode worker. Only the first call on
// any copy counts.
func (d *Decision) Done(now time.Time, o breaker.Outcome) {
	if d.rec == nil {
		return
	}
	p, rec := d.p, d.rec
	p.mu.Lock()
	if rec.gen != d.gen {
		p.mu.Unlock()
		return
	}
	for i := range rec.legs[:rec.n] {
		p.giveBack(now, &rec.legs[i], rec.first)
	}
	copied, pair, canary := rec.legs, rec.pair, rec.canary
	legs := copied[:rec.n]
	p.records.put(rec)
	p.mu.Unlock()
	if !canary {
		p.metrics.ended(o)
	}
	var charged [2]bool
	charged[1], charged[0] = pair.Done(now, o)
	for i := range legs {
		if !legs[i].settled {
			verdict := legs[i].verdict(o, i > 0, charged[i])
			legs[i].permit.Done(now, verdict)
			if closes(legs[i].permit, verdict) {
				p.mu.Lock()
				p.recovered(d, i)
				p.mu.Unlock()
			}
		}
	}
	p.released()
}

// verdict says what the end o of a request means for the worker of l. charged says
// that a transfer between two workers is held against this one.
func (l *leg) verdict(o breaker.Outcome, prefill, charged bool) breaker.Outcome {
	switch {
	case o == breaker.Transfer && charged:
		return o
	case o == breaker.Transfer:
		return breaker.Neutral
	case prefill && (!l.done || o != breaker.Success):
		return breaker.Neutral // the request's end is its decode worker's doing
	}
	return o
}

// record is the reservation behind a decision. Its generation grows when it is
// given back, so that a stale copy of the decision finds it changed.
type record struct {
	gen   uint64
	at    time.Time
	id    []byte
	legs  [2]leg // the worker's; the prefill worker's
	pair  breaker.PairPermit
	n     int
	first bool
	slot  int // in recordPool.live

	canary bool // see [Request].Canary
}

// recordPool keeps the records in flight, and the others for reuse.
type recordPool struct {
	live, free []*record
}

func (rp *recordPool) get(now time.Time, id string) *record {
	var rec *record
	if last := len(rp.free) - 1; last >= 0 {
		rec, rp.free = rp.free[last], rp.free[:last]
	} else {
		rec = new(record)
	}
	rec.at, rec.id = now, append(rec.id[:0], id[:min(len(id), maxID)]...)
	rec.slot = len(rp.live)
	rp.live = append(rp.live, rec)
	return rec
}

// put ends the record's generation.
func (rp *recordPool) put(rec *record) {
	last := len(rp.live) - 1
	rp.live[rec.slot] = rp.live[last]
	rp.live[rec.slot].slot = rec.slot
	rp.live[last] = nil
	rp.live = rp.live[:last]
	rec.gen++
	rec.n, rec.first, rec.canary, rec.legs, rec.pair = 0, false, false, [2]leg{}, breaker.PairPermit{}
	rp.free = append(rp.free, rec)
}

// maxID bounds how much of a request ID is kept.
const maxID = 128

// Held is a reservation that was not given back yet.
type Held struct {
	RequestID string        `json:"request_id"`
	Worker    string        `json:"worker_id"` // key of the target
	Age       time.Duration `json:"age_ns"`
	Streaming bool          `json:"streaming"` // its first token was seen
}

// Held returns the reservations that are at least as old as the given age, the
// oldest first: a long generation, or a release that was forgotten. It repairs
// nothing.
func (p *Picker) Held(now time.Time, age time.Duration) []Held {
	p.mu.Lock()
	var held []Held
	for _, rec := range p.records.live {
		if d := now.Sub(rec.at); d >= age {
			held = append(held, Held{string(rec.id), rec.legs[0].t.key, d, rec.first})
		}
	}
	p.mu.Unlock()
	slices.SortFunc(held, func(a, b Held) int { return int(min(1, max(-1, b.Age-a.Age))) })
	return held
}
