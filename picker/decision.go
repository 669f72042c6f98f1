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
	HitTokens   int           // tokens of the prompt that Worker was believed to hold, promised ones included
	Reason      string        // how the prompt was known: the request's label, or no_match, no_events

	p   *Picker
	rec *record
	gen uint64
}

// FirstToken says that the worker has answered the request's first token at now:
// the prompt is in its cache. The first call counts; after Done it does nothing.
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
	copied := rec.legs
	legs := copied[:rec.n]
	for i := range legs {
		l := &legs[i]
		l.first()
		if l.told = l.told && !l.t.gone; l.told {
			l.node.refs++ // its hashes are read outside the lock
		}
	}
	p.mu.Unlock()
	told := false
	for i := range legs {
		if l := &legs[i]; l.told {
			p.index.Present(l.in, l.node.hashes, now)
			told = true
		}
	}
	if !told {
		return
	}
	p.mu.Lock()
	for i := range legs {
		if l := &legs[i]; l.told {
			l.t.led.drop(l.node, &p.nodes)
		}
	}
	p.mu.Unlock()
}

// Done gives back what the pick reserved, and tells the breaker how the request
// ended. Only the first call on any copy counts.
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
	copied, hadFirst := rec.legs, rec.first
	legs := copied[:rec.n]
	p.records.put(rec)
	for i := range legs {
		l := &legs[i]
		l.stop(hadFirst, &p.nodes)
		if l.t.gone && l.t.requests == 0 && p.targets[l.t.key] == l.t {
			delete(p.targets, l.t.key)
		}
	}
	p.mu.Unlock()
	p.metrics.ended(o)
	for i := range legs {
		if i > 0 {
			o = breaker.Neutral // nothing is known of a pair's prefill leg
		}
		legs[i].permit.Done(now, o)
	}
}

// record is the reservation behind a decision. Its generation grows when it is
// given back, so that a stale copy of the decision finds it changed.
type record struct {
	gen   uint64
	at    time.Time
	id    []byte
	legs  [2]leg // the worker's; the prefill worker's
	n     int
	first bool
	slot  int // in recordPool.live
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
	rec.n, rec.first, rec.legs = 0, false, [2]leg{}
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
