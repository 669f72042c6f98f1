package forward

import (
	"pointsman/fleet"
	"pointsman/prompt/audit"
)

// audit tells what the engine counted of a request that has been answered
// whole, beside what the pick foresaw.
func (x *exchange) audit() {
	d := &x.served
	if x.s.deps.Audit == nil || x.scored == nil || d.Worker == nil || x.status >= 300 {
		return
	}
	r := x.report
	x.tail.Usage(&r)
	if r.Skip == audit.Comparable && (d.Prefill != nil || d.Worker.Role != fleet.Mixed) {
		r.Skip = audit.SkipPair
	}
	r.Worker, r.Hit = d.Worker.ID, d.HitTokens
	x.s.deps.Audit(r)
}
