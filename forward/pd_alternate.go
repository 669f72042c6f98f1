package forward

import (
	"errors"
	"time"

	"pointsman/fleet"
	"pointsman/picker"
)

// undialed reports whether err says that the decode leg has reached no worker, so
// that another one can have it. Only what a transport says itself counts: an error
// that names no stage may have come behind bytes of an answer.
func (l *legs) undialed(err error) bool {
	var broken *Error
	dial := uncarried(err) || errors.As(err, &broken) && broken.Stage == StageDial
	return dial && !l.a.x.committed && l.a.life.Err() == nil
}

// mayMove reports whether the cap and the budget leave another decode worker to a
// leg that could not be dialed because of err.
func (l *legs) mayMove(err error) bool {
	x := l.a.x
	return x.room(legDecode) && (uncarried(err) || x.mayRetry())
}

// move gives the decode leg, which could not be dialed because of last, another
// worker. The one that it had is given back first: whatever is waited for, nothing
// is held there meanwhile.
func (l *legs) move(last error) error {
	a, x := l.a, l.a.x
	why := a.reason(last)
	x.end(a.last, why, last)
	a.decision.Done(time.Now(), why.outcome())
	x.tried = append(x.tried, a.decision.Worker.ID)
	if uncarried(last) {
		x.passOver(a.decision.Worker)
	}
	x.flight.Moved(time.Now(), x.receipt(nil, 0))
	d := new(picker.Decision)
	if err := x.reserveDecode(&a.life, l.pair.Prefill, d); err != nil {
		return x.noOther(&a.life, last, err)
	}
	x.workers = append(x.workers, d.Worker.ID)
	x.fly(d)
	x.s.metrics.decodeDials.Inc()
	x.s.metrics.pairs.failures.WithLabelValues("decode_open_retried").Inc()
	x.s.metrics.failovers.Inc()
	a.decision = d
	moved := *l.pair
	moved.Decode, moved.DecodeRank = d.Worker, d.Rank
	l.pair = &moved
	return nil
}

// alternate reserves another decode worker for the cache that prefill has computed.
func (x *exchange) alternate(prefill *fleet.Worker, d *picker.Decision) (err error) {
	req := x.pick
	req.Tried = x.tried
	*d, err = x.s.deps.Picker.Alternate(time.Now(), &req, prefill)
	return err
}
