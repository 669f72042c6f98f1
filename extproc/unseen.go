package extproc

import (
	"context"
	"net/http"
	"sync"
	"time"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/picker"
	"pointsman/prompt/audit"
	"pointsman/reports"
)

// unseen keeps the reservations of requests whose ends this door does not see: with
// response_body_mode NONE the gateway ends the stream when the response begins. The
// forwarders' reports say how they end.
type unseen struct {
	mu   sync.Mutex
	open map[uint64]*parked // by the pick's number
}

// parked is what is left of an exchange. The zero value is one whose stream is still
// open.
type parked struct {
	dec    picker.Decision
	pass   admission.Pass
	report audit.Report
	byLoad bool
	stream bool
	first  bool
	status int
	at     time.Time // of parking; zero while its stream is open
	over   bool      // given back; only the usage is awaited

	early []reports.Done // what came before the stream's end
}

// Times of reservations that nobody gives back.
const (
	unseenGrace  = 5 * time.Second // for a report to name a request that was sent
	unseenLimit  = time.Hour       // for a request that a forwarder seems to have for ever
	maxEarlyNews = 2               // a failed worker, and the end
)

// How a reservation came back.
const (
	backReport  = "report"  // the request's end was reported
	backAbsent  = "absent"  // the forwarders have nothing of ours on the worker
	backExpired = "expired" // nobody reports on the worker, or never would
	backEnded   = "ended"   // this program ends
)

// hides reports whether the end of x will not be seen here.
func (x *exchange) hides() bool { return x.responseMode == modeNone && !x.bypasses() }

// number gives the pick of x its number, under which forwarders report on it.
func (x *exchange) number() {
	x.pickNumber = x.s.picks.Add(1)
	x.prepared = x.hideable()
	if x.prepared || x.hides() {
		x.s.unseen.expect(x.pickNumber)
	}
	id := x.s.deps.PickerID
	if id == "" {
		return
	}
	p := reports.Pick{
		Ref:    reports.Ref{Picker: id, Pick: x.pickNumber},
		Prompt: x.dec.PromptTokens, Miss: x.dec.MissTokens, Added: x.dec.AddedTokens,
		Trail: reports.Trail(x.dec.Trail()),
	}
	x.route.pick = p.Append(x.route.pick[:0])
}

func (u *unseen) expect(n uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open[n] = &parked{}
}

// leave hands the reservation of x over, if its end is to be reported. It says
// whether it did.
func (x *exchange) leave() bool {
	if x.pickNumber == 0 || !x.prepared && !x.hides() {
		return false
	}
	u := &x.s.unseen
	u.mu.Lock()
	p := u.open[x.pickNumber]
	told := x.status >= http.StatusBadRequest || x.status != 0 && !x.ours // by the response's head
	if p == nil || !x.picked || x.responded || x.refused != 0 || told || !x.hides() {
		delete(u.open, x.pickNumber)
		u.mu.Unlock()
		return false
	}
	early := p.early
	*p = parked{
		dec: x.dec, pass: x.pass, report: x.report, byLoad: x.req.ByLoad, stream: x.scan.Stream,
		first: x.first, status: x.status, at: x.s.now(),
	}
	x.picked, x.pass, x.ticket = false, admission.Pass{}, nil // the pass keeps the ticket
	u.mu.Unlock()
	for i := range early {
		x.s.Done(&early[i], x.s.now())
	}
	return true
}

// First says that a pick's request has had its first token at at, as its forwarder
// reports. It implements a part of [reports.Sink].
func (s *Server) First(pick uint64, at time.Time) {
	u := &s.unseen
	u.mu.Lock()
	p := u.open[pick]
	if p == nil || p.first || p.at.IsZero() || p.over {
		u.mu.Unlock()
		return
	}
	p.first = true
	dec, pass, stream := p.dec, p.pass, p.stream
	u.mu.Unlock()
	dec.FirstToken(at)
	if stream {
		pass.FirstToken(at)
	}
}

// Done says how a pick's request has ended, as its forwarder reports. It implements
// a part of [reports.Sink].
func (s *Server) Done(d *reports.Done, at time.Time) {
	u := &s.unseen
	u.mu.Lock()
	p := u.open[d.Pick]
	switch {
	case p == nil:
		u.mu.Unlock()
		return
	case p.at.IsZero():
		if len(p.early) < maxEarlyNews {
			p.early = append(p.early, *d)
		}
		u.mu.Unlock()
		return
	case d.Moved && p.over:
		u.mu.Unlock()
		return
	}
	was := *p
	if p.over = true; !d.Moved {
		delete(u.open, d.Pick)
	}
	u.mu.Unlock()
	s.conclude(&was, d, at)
}

// conclude ends a request by what its forwarder says, as if its response had been
// seen here.
func (s *Server) conclude(p *parked, d *reports.Done, at time.Time) {
	x := exchange{s: s, dec: p.dec, pass: p.pass, picked: !p.over, report: p.report, first: p.first, status: d.Status, outcome: breaker.Neutral}
	x.req.ByLoad, x.scan.Stream = p.byLoad, p.stream
	if !p.over {
		x.attribute(nil, nil, d.Receipt != "")
		x.settle([]byte(d.Receipt))
		if d.First > 0 {
			x.progress()
		}
		if x.first && x.ours && breaker.OutcomeOf(d.Status) == breaker.Success {
			x.outcome = breaker.Success
		}
		s.metrics.given(backReport)
	}
	if !d.Moved {
		r := &x.report
		if d.Prompt >= 0 {
			r.Counted, r.Cached, r.Output = d.Prompt, d.Cached, max(d.Output, 0)
		} else if r.Skip == audit.Comparable {
			r.Skip = audit.SkipNoUsage
		}
		if x.first = d.First > 0; x.ours || p.over {
			x.observe(d.Prompt >= 0, x.ours)
		}
		s.metrics.reported(d)
	}
	if x.picked {
		x.picked = false
		if x.outcome == breaker.Success {
			x.dec.Answered(d.Output)
		}
		x.dec.Done(at, x.outcome)
		x.pass.Release()
	}
}

// watchUnseen calls Tick until ctx is done.
func (s *Server) watchUnseen(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Tick(s.now())
		}
	}
}

// Tick gives back the reservations whose end will not be reported: the forwarders
// have nothing of ours on the worker, or nobody reports on it. Serve calls it
// once a second.
func (s *Server) Tick(now time.Time) {
	s.giveBack(now, func(p *parked) string {
		if now.Sub(p.at) < unseenGrace {
			return ""
		}
		return s.absent(p, now)
	})
}

// abandon gives back what is left when the program ends.
func (s *Server) abandon(now time.Time) {
	s.giveBack(now, func(*parked) string { return backEnded })
}

// giveBack ends the reservations for which why says a reason.
func (s *Server) giveBack(now time.Time, why func(p *parked) string) {
	u := &s.unseen
	type lost struct {
		dec  picker.Decision
		pass admission.Pass
		why  string
	}
	var gone []lost
	u.mu.Lock()
	for n, p := range u.open {
		if p.at.IsZero() {
			continue
		}
		reason := why(p)
		if reason == "" {
			continue
		}
		delete(u.open, n)
		if !p.over {
			gone = append(gone, lost{p.dec, p.pass, reason})
		}
	}
	u.mu.Unlock()
	for i := range gone {
		gone[i].dec.Done(now, breaker.Neutral)
		gone[i].pass.Release()
		s.metrics.given(gone[i].why)
	}
}

// absent says why the end of p will not be reported; "" while it may be.
func (s *Server) absent(p *parked, now time.Time) string {
	age := now.Sub(p.at)
	if s.deps.Mine != nil && !p.over {
		n, at, heard := s.deps.Mine(p.dec.Worker.ID, p.dec.Rank, now)
		switch {
		case heard && n == 0 && at.Sub(p.at) >= unseenGrace:
			return backAbsent
		case heard && age < unseenLimit:
			return ""
		}
	}
	if age >= s.cfg.Load().ReservationTTL {
		return backExpired
	}
	return ""
}

// waiting returns how many reservations wait for a report.
func (u *unseen) waiting() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.open {
		if !p.at.IsZero() && !p.over {
			n++
		}
	}
	return n
}
