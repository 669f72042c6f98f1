package picker

import (
	"errors"
	"fmt"
	"time"

	"pointsman/fleet"
)

// Reasons why a worker named from outside is not dispatched to: 503 each. They
// are wrapped with the worker's ID: use [errors.Is]. Infera dispatches in the
// last three cases (defects P13, P14).
var (
	// ErrUnknownWorker means that no worker has the given ID: the caller's view of
	// the fleet is stale.
	ErrUnknownWorker = errors.New("worker not found (stale gateway routing?)")
	// ErrInactive means that the worker is draining or dead.
	ErrInactive = errors.New("worker is draining or dead")
	// ErrOtherModel means that the worker does not serve the request's model.
	ErrOtherModel = errors.New("worker does not serve this model")
	// ErrOtherRole means that the worker cannot do the leg it was named for: a
	// prefill or decode worker alone, or a pair whose roles are swapped.
	ErrOtherRole = errors.New("worker has another role")
)

// Direct reserves the named workers without scoring the fleet: an EPP chose. An
// ID is a worker's, or the key of one of its ranks ("id#dp1"); of a worker with
// ranks the cheapest is taken. prefillID is "" unless the EPP chose a pair. The
// breaker is not asked, but learns how it went.
//
// The permit of a pair's prefill leg is given back without an outcome.
func (p *Picker) Direct(now time.Time, workerID, prefillID string, req *Request) (Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	p.refresh(now)
	want := fleet.Mixed
	var prefill []*row
	if prefillID != "" {
		want = fleet.Decode
		rows, err := tab.named(prefillID, fleet.Prefill, req)
		if err != nil {
			return Decision{}, err
		}
		prefill = rows
	}
	worker, err := tab.named(workerID, want, req)
	if err != nil {
		return Decision{}, err
	}
	rec := p.records.get(now, req.ID)
	var first *row
	if prefill != nil {
		first = prefill[p.direct(now, req, tab, prefill, rec)]
	}
	i := p.direct(now, req, tab, worker, rec)
	if first != nil { // Done's outcome is the first leg's
		rec.legs[0], rec.legs[1] = rec.legs[1], rec.legs[0]
	}
	d := p.decide(req, i, rec)
	if first != nil {
		d.Prefill, d.PrefillRank = first.Worker, first.Rank
	}
	return d, nil
}

// direct reserves the cheapest of rows and returns its index.
func (p *Picker) direct(now time.Time, req *Request, tab *table, rows []*row, rec *record) int {
	s := &p.sel
	w := rows[0].Worker
	s.begin(now, req, &p.policy, tab, tab.models[w.Model], rows, weigh(p.cfg.weightOf(w.Role), req))
	s.fill(req, p.index, p.scale)
	s.price()
	i := s.choose(p.rand.IntN)
	p.reserve(now, req, i, rows[i].t.circuit.Force(now), rec)
	return i
}

// named returns the targets that id stands for, if they can do the leg.
func (tab *table) named(id string, role fleet.Role, req *Request) ([]*row, error) {
	rows := tab.ids[id]
	if rows == nil {
		if r := tab.keys[id]; r != nil {
			rows = tab.rows[r.n : r.n+1]
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("worker %q: %w", id, ErrUnknownWorker)
	}
	w := rows[0].Worker
	switch {
	case w.Status != fleet.Active:
		return nil, fmt.Errorf("worker %q (%v): %w", id, w.Status, ErrInactive)
	case req.Model != "" && w.Model != req.Model && !req.AnyModel:
		return nil, fmt.Errorf("worker %q (model %q, asked for %q): %w", id, w.Model, req.Model, ErrOtherModel)
	case w.Role != role:
		return nil, fmt.Errorf("worker %q (%v, needed as %v): %w", id, w.Role, role, ErrOtherRole)
	}
	return rows, nil
}
