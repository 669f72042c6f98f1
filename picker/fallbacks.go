package picker

import (
	"slices"

	"pointsman/fleet"
)

// fallbacks returns up to Request.Fallbacks workers, cheapest first, that could
// serve what row i of s was chosen for: of those that the pick could have taken,
// the ones in good health. prefill is the ID of a pair's prefill worker, with which
// each of them may be paired; "" for none.
func (p *Picker) fallbacks(s *selection, req *Request, i int, prefill string) []*fleet.Worker {
	if req.Fallbacks <= 0 || s.left < 2 {
		return nil
	}
	out := make([]*fleet.Worker, 0, req.Fallbacks)
	for len(out) < req.Fallbacks {
		best := -1
		for j, r := range s.rows {
			if s.why[j] != eligible || r.Worker.ID == s.rows[i].Worker.ID || best >= 0 && s.cost[j] >= s.cost[best] ||
				!r.t.circuit.Closed() || slices.Contains(out, r.Worker) || p.parted(prefill, r.Worker.ID) {
				continue
			}
			best = j
		}
		if best < 0 {
			return out
		}
		out = append(out, s.rows[best].Worker)
	}
	return out
}

// parted reports whether two workers get no requests together for now.
func (p *Picker) parted(prefill, decode string) bool {
	for _, b := range p.blocked {
		if b.Prefill == prefill && b.Decode == decode {
			return true
		}
	}
	return false
}
