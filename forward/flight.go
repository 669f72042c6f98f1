package forward

import (
	"time"

	"pointsman/fleet"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/reports"
)

// bytesPerToken is what a prompt's bytes are taken for where nobody has counted
// its tokens: a JSON body in English has some 4 for each.
const bytesPerToken = 4

// takeOff begins to count the request for the endpoint pickers: at the worker that
// one has named, while it waits to be sent there.
func (x *exchange) takeOff() {
	tally := x.s.deps.Reports
	if x.kind != prompt.Other && (tally != nil || x.scored != nil && x.s.deps.Audit != nil) {
		x.keepTail()
	}
	if tally == nil {
		return
	}
	x.picked = reports.Pick{Ref: reports.Ref{Picker: x.s.deps.PickerID}}
	if x.direct {
		x.picked = reports.ParsePick(field(x.r.Header, headerPick))
		if p := &x.picked; p.Prompt == 0 && x.kind != prompt.Other {
			p.Prompt = x.bytesIn / bytesPerToken
			p.Miss, p.Added = p.Prompt, p.Prompt
		}
	}
	x.flight = tally.Open(x.picked)
	if !x.direct {
		return
	}
	snap := x.s.deps.Store.Snapshot()
	if w := snap.Worker(x.route.worker); w != nil {
		x.flight.At(x.start, w.ID, rankOf(snap, w, x.route.rank), true)
	}
}

// rankOf returns the rank that the headers name, -1 for none that there is.
func rankOf(snap *fleet.Snapshot, w *fleet.Worker, rank string) int {
	if w.Ranks() == 1 || ranked(snap, w.ID, rank) == w.ID {
		return -1
	}
	n := 0
	for _, c := range rank { // ranked has seen that it is a number
		n = 10*n + int(c-'0')
	}
	return n
}

func (x *exchange) keepTail() {
	t, ok := x.s.tails.Get().(*audit.Tail)
	if !ok {
		t = new(audit.Tail)
	}
	x.tail = t
}

// fly counts the request at the worker that an attempt goes to. It is under the
// endpoint picker's name only where that wanted it.
func (x *exchange) fly(d *picker.Decision) {
	if x.flight == nil {
		return
	}
	p := x.picked
	if !x.direct {
		p.Prompt, p.Miss, p.Added = d.PromptTokens, d.MissTokens, d.AddedTokens
		x.flight.Leaves(reports.Trail(d.Trail()))
	}
	if d.Prefill != nil || x.paired {
		p.Miss = 0 // it is the prefill worker's
	}
	x.flight.Weigh(p.Prompt, p.Miss, p.Added)
	x.flight.At(time.Now(), d.Worker.ID, d.Rank, !x.direct || d.Worker.ID == x.route.worker)
}

// flyPrefill counts the prefill leg of a pair.
func (x *exchange) flyPrefill(d *picker.Decision) *reports.Flight {
	if x.s.deps.Reports == nil {
		return nil
	}
	p := x.picked
	p.Pick, p.Trail = 0, reports.Trail{} // the decode leg tells of the request
	if !x.direct {
		p.Prompt, p.Miss = d.PromptTokens, d.MissTokens
	}
	p.Added = p.Miss
	leg := x.s.deps.Reports.Open(p)
	leg.At(time.Now(), d.Prefill.ID, d.PrefillRank, !x.direct || d.Prefill.ID == x.route.prefill)
	return leg
}

// land tells the endpoint picker how the request has ended, and gives back what was
// kept for it.
func (x *exchange) land(took time.Duration) {
	if x.flight != nil {
		d := reports.Done{
			RequestID: x.id, Receipt: x.receipt(nil, 0), Status: x.status, Took: took,
			Prompt: -1, Cached: -1, Output: -1,
		}
		if !x.firstAt.IsZero() {
			d.First = x.firstAt.Sub(x.start)
		}
		if x.tail != nil && d.First > 0 {
			x.countTokens(&d)
		}
		x.flight.Close(x.start.Add(took), &d)
		x.flight = nil
	}
	if x.tail != nil {
		x.tail.Reset()
		x.s.tails.Put(x.tail)
		x.tail = nil
	}
}

// leaveFlight ends what land has not, should a bug have kept it from that.
func (x *exchange) leaveFlight() {
	if x.flight != nil {
		x.flight.Leave(time.Now())
	}
}

// answered returns how many tokens the answer had: the pieces of a stream, or what the
// engine has counted of an answer in one piece; 0 unknown.
func (x *exchange) answered() int {
	var r audit.Report
	if x.tokens == 0 && x.tail != nil && x.tail.Usage(&r) {
		return r.Output
	}
	return x.tokens
}

// countTokens reads what the engine has counted; of the answer's tokens, where it
// has not, how many pieces came.
func (x *exchange) countTokens(d *reports.Done) {
	var r audit.Report
	if d.Output = x.tokens; x.tail.Usage(&r) {
		d.Prompt, d.Cached = r.Counted, r.Cached
		if r.Output > 0 {
			d.Output = r.Output
		}
	}
}
