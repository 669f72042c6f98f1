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
	// ErrOtherProtocol means that the named workers have no prefill/decode
	// protocol in common that is known here.
	ErrOtherProtocol = errors.New("the pair's workers share no known protocol")
)

// Direct reserves the named workers without scoring the fleet: an EPP chose. An
// ID is a worker's, or the key of one of its ranks ("id#dp1"); of a worker with
// ranks the cheapest is taken. prefillID is "" unless the EPP chose a pair. The
// breaker is not asked, but learns how it went; a worker at its cap is [ErrFull].
//
// A decode worker is only named alone by Request.Alone. A canary
// ([Picker.CanaryDue]) leaves no trace but in the load and in circuits.
func (p *Picker) Direct(now time.Time, workerID, prefillID string, req *Request) (Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	p.refresh(now)
	want := fleet.Mixed
	var prefill []*row
	switch {
	case prefillID != "":
		want = fleet.Decode
		rows, err := tab.named(prefillID, fleet.Prefill, req)
		if err != nil {
			return Decision{}, err
		}
		prefill = rows
	case req.Alone:
		want = fleet.Decode
	}
	worker, err := tab.named(workerID, want, req)
	if err != nil {
		return Decision{}, err
	}
	if p.cfg.Caps.Enforce && !req.Running {
		for _, rows := range [...][]*row{worker, prefill} {
			if len(rows) > 0 && p.cfg.Caps.full(now, rows[0]) {
				return Decision{}, fmt.Errorf("worker %q: %w", rows[0].Worker.ID, ErrFull)
			}
		}
	}
	s := &p.sel
	if prefill == nil {
		i := p.direct(now, s, req, tab, worker)
		rec := p.records.get(now, req.ID)
		p.reserve(now, s, req, i, worker[i].t.circuit.Force(now), rec)
		return p.decide(req, i, rec), nil
	}
	if c := worker[0].class; c < 0 || c != prefill[0].class {
		return Decision{}, fmt.Errorf("workers %q (%s) and %q (%s): %w", prefillID, prefill[0].Worker.Protocol,
			workerID, worker[0].Worker.Protocol, ErrOtherProtocol)
	}
	j, i := p.direct(now, &p.pre, req, tab, prefill), p.direct(now, s, req, tab, worker)
	s.receives = true
	return p.reservePair(now, req, i, j, worker[i].t.circuit.Force(now), prefill[j].t.circuit.Force(now)), nil
}

// direct prices rows in s and returns the index of the cheapest.
func (p *Picker) direct(now time.Time, s *selection, req *Request, tab *table, rows []*row) int {
	w := rows[0].Worker
	s.begin(now, req, p.policy, tab, tab.models[w.Model], rows, p.cfg.weigh(w.Role, req))
	s.role = w.Role
	s.shadow.policy = nil // whoever named the worker is no policy of ours
	s.fill(req, p.index, p.scale)
	s.price()
	return s.choose(p.rand.IntN)
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
	case req.Model != "" && !w.Serves(req.Model) && !req.AnyModel:
		return nil, fmt.Errorf("worker %q (model %q, asked for %q): %w", id, w.Model, req.Model, ErrOtherModel)
	case w.Role != role && !req.AnyRole:
		return nil, fmt.Errorf("worker %q (%v, needed as %v): %w", id, w.Role, role, ErrOtherRole)
	}
	return rows, nil
}
