package picker

// shade is what a pick's second policy would have done. The choice is made by the
// same columns, in the same moment: of what would have come of it, had all picks
// before been its own, it says nothing.
type shade struct {
	policy *policy // nil for none
	chosen int     // row; -1 for none: the pick was no policy's, or is not over
	ms     float64 // its estimated time to first token less the pick's
	tokens float64 // the prompt tokens held there less those held by the pick's choice
}

func (sh *shade) cache() bool { return sh.policy != nil && sh.policy.cache }
func (sh *shade) fair() bool  { return sh.policy != nil && sh.policy.fair }

// ask lets the shadow choose where row i was taken, before that is reserved. A choice
// that no policy made has no shadow: of a conversation that stays where it was, or
// where no circuit is closed.
func (s *selection) ask(i int, spin func(n int) int) {
	sh := &s.shadow
	if sh.policy == nil || s.pinned == i+1 || s.allOpen || s.why[i] != eligible {
		return
	}
	s.other = s.trace.price(sh.policy, s.other)
	sh.chosen = s.cheapest(sh.policy, s.other, spin)
	sh.ms = s.estimate(sh.chosen) - s.estimate(i)
	sh.tokens = s.held(sh.chosen) - s.held(i)
}

// estimate returns the milliseconds that row i would take to the first token, or a
// decode leg to receive the prompt. It needs the timed columns.
func (s *selection) estimate(i int) float64 {
	in := &s.in
	if s.receives {
		if s.latency.TransferRate == 0 {
			return 0
		}
		return max(0, in.Prompt-s.held(i)) / s.latency.TransferRate
	}
	return (in.Queue[i] + in.Work[i]) * in.Pace[i]
}

// record writes out what the shadow has chosen among rows.
func (sh *shade) record(rows []*row) *Shadow {
	if sh.policy == nil {
		return nil
	}
	out := &Shadow{Policy: sh.policy.name}
	if sh.chosen >= 0 {
		out.Chosen, out.MS, out.HitTokens = rows[sh.chosen].Key, sh.ms, sh.tokens
	}
	return out
}
