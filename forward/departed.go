package forward

import (
	"context"
	"fmt"
	"sync"

	"pointsman/fleet"
)

// errDeparted ends an attempt whose worker has left the fleet before it produced
// anything: its lease has ended, so that nobody may be there to answer.
var errDeparted error = &Error{Stage: StageDispatched, Err: fmt.Errorf("the worker has left the fleet: %w", ErrBlameless)}

// pending are the attempts of which nothing has come yet. A worker that takes a
// request and dies may leave no trace but the end of its lease (Dynamo 8182).
//
// A lease that ends and a worker that says goodbye look alike where the record goes
// at once. So only those attempts are ended that another worker can repeat, and
// none whose worker was seen to drain: it finishes what it has.
type pending struct {
	mu    sync.Mutex
	first *attempt // a list through attempt.after and attempt.before
}

// add takes a in.
func (p *pending) add(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.after = p.first; a.after != nil {
		a.after.before = a
	}
	p.first, a.listed = a, true
}

// settle takes a out. It reports false when a was ended before.
func (p *pending) settle(a *attempt) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(a)
	return !a.departed
}

func (p *pending) remove(a *attempt) {
	if !a.listed {
		return
	}
	if a.before != nil {
		a.before.after = a.after
	} else {
		p.first = a.after
	}
	if a.after != nil {
		a.after.before = a.before
	}
	a.before, a.after, a.listed = nil, nil, false
}

// follow ends the attempts at workers that snap does not hold any more, and returns
// how many.
func (p *pending) follow(snap *fleet.Snapshot) (ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a := p.first; a != nil; {
		next := a.after
		w := a.awaited
		switch now := snap.Worker(w.ID); {
		case now != nil && now.Status != fleet.Active:
			a.spared = true
		case now == nil && !a.spared && replaced(snap, w) && a.giveUp():
			a.departed = true
			p.remove(a)
			ended++
		}
		a = next
	}
	return ended
}

// replaced reports whether another worker could do what w does.
func replaced(snap *fleet.Snapshot, w *fleet.Worker) bool {
	for _, other := range snap.Workers {
		if other.Status == fleet.Active && other.Role == w.Role && other.ID != w.ID && other.Model == w.Model {
			return true
		}
	}
	return false
}

// await lists a for as long as nothing comes of it, when its leg on w can be
// repeated. leave ends the attempt, unless it is too late to; nil cancels it.
func (a *attempt) await(w *fleet.Worker, l leg, leave func() bool) {
	x := a.x
	x.mu.Lock()
	room := int(x.sent[l])+1 < x.cfg.MaxAttempts
	x.mu.Unlock()
	if room && x.spent < x.maxRetries() {
		a.awaited, a.leave = w, leave
		x.s.pending.add(a)
	}
}

// giveUp ends an attempt that is listed, and reports whether it could.
func (a *attempt) giveUp() bool {
	if a.leave != nil {
		return a.leave()
	}
	a.cancel(errDeparted)
	return true
}

// leave ends the legs while the prefill worker has not answered: behind that, a
// decode leg may be running, which is not repeated.
func (l *legs) leave() bool {
	if l.a.handed.Load() {
		return false
	}
	l.fail(&legError{errDeparted})
	return true
}

// watch ends attempts at workers that leave, until ctx is done.
func (s *Server) watch(ctx context.Context) {
	for {
		changed := s.deps.Store.Changed()
		if n := s.pending.follow(s.deps.Store.Snapshot()); n > 0 {
			s.metrics.departed.Add(float64(n))
		}
		s.metrics.pairs.forget(s.deps.Store.Snapshot())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
