package breaker

import (
	"context"
	"log/slog"
	"time"
)

type kind uint8

const (
	regular kind = iota
	probing
	forced
)

// Permit is leave to send one request: a value. The zero Permit's methods do
// nothing. Done is to be called once; a permit that is never done costs nothing
// but, if it is a probe, the probe timeout.
type Permit struct {
	c     *Circuit
	epoch uint32
	probe uint32
	kind  kind
}

// Probe reports whether the request is the one that tests a tripped worker.
func (p Permit) Probe() bool { return p.kind == probing }

// Forced reports whether the request goes to a worker that lets none through.
func (p Permit) Forced() bool { return p.kind == forced }

// Answered says that the worker has given a good answer that holds no token, as a
// prefill worker does: it was reached and has computed. That is too little to
// close a circuit.
func (p *Permit) Answered() {
	c := p.c
	if c == nil {
		return
	}
	if epoch, st, s := unpack(c.word.Load()); epoch == p.epoch && s == Closed && st.answered() != st {
		c.begin(p.epoch, streaks.answered)
	}
}

// FirstToken says at now that the worker's good answer has begun. It closes a
// circuit, which an accepted connection or the head of an answer does not; what
// becomes of the rest of the answer counts anew.
func (p *Permit) FirstToken(now time.Time) {
	c := p.c
	if c == nil || !c.tuning().on {
		return
	}
	if p.kind == regular {
		if epoch, st, s := unpack(c.word.Load()); epoch == p.epoch && s == Closed && st.began() != st {
			c.begin(p.epoch, streaks.began)
		}
		return
	}
	t, changed := c.settle(p, now, Success)
	if !changed {
		return
	}
	p.epoch, p.probe, p.kind = p.epoch+1, 0, regular
	c.set.announce(t)
}

// Done says how the request ended. A permit from before the circuit last
// changed its state says nothing about the worker as it is: it is ignored, be
// it a late success or a late fault (Infera defect P18), and counted.
func (p Permit) Done(now time.Time, o Outcome) {
	c := p.c
	if c == nil {
		return
	}
	tune := c.tuning()
	if o == Busy && tune.busy > 0 { // of now, whatever the epoch
		c.busyUntil.Store(now.Add(tune.busy).UnixNano())
	}
	if !tune.on {
		return
	}
	if p.kind == regular {
		if o == Neutral || o == Busy || o.Fault() && tune.limits.of(o) == 0 {
			return
		}
		if epoch, st, _ := unpack(c.word.Load()); o == Success && epoch == p.epoch && st == 0 {
			return
		}
	}
	if t, changed := c.settle(&p, now, o); changed {
		c.set.announce(t)
	}
}

type transition struct {
	c        *Circuit
	open     bool
	class    Outcome
	trips    uint64
	cooldown time.Duration
}

// log tells of a change. It is not of the request that made it: the line must
// come whatever becomes of that one.
//
//nolint:contextcheck // see above
func (t transition) log(log *slog.Logger) {
	ctx := context.Background()
	trips := slog.Uint64("trips", t.trips)
	cooldown, class := slog.Duration("cooldown", t.cooldown), slog.String("class", t.class.String())
	if t.c.peer != "" {
		prefill, decode := slog.String("prefill", t.c.id), slog.String("decode", t.c.peer)
		if t.open {
			log.LogAttrs(ctx, slog.LevelInfo, "pair circuit opened: the two get no requests together until its cooldown is over", prefill, decode, trips, cooldown, class)
			return
		}
		log.LogAttrs(ctx, slog.LevelInfo, "pair circuit closed: the two serve together again", prefill, decode, trips)
		return
	}
	id := slog.String("worker_id", t.c.id)
	if t.open {
		log.LogAttrs(ctx, slog.LevelInfo, "circuit opened: the worker gets no requests until its cooldown is over", id, trips, cooldown, class)
		return
	}
	log.LogAttrs(ctx, slog.LevelInfo, "circuit closed: the worker is back", id, trips)
}
