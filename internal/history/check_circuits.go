package history

import (
	"fmt"
	"slices"
	"time"
)

// openMeansOut is I8: whom a program's circuit leaves out gets nothing that this program
// has picked, but for one probe when the cooldown is over. When nobody else is left, one
// that is open is tried anyway.
func openMeansOut(v *view, broken func(string, ...any)) {
	c := newCircuits(v)
	for i := range v.Picks {
		p := &v.Picks[i]
		rc := c.receipt(p)
		if rc == nil || !c.someoneElse(p) {
			continue
		}
		for _, w := range c.windows[p.Source][p.Worker] {
			if w.from.Before(p.At) && w.until.After(p.At) && c.knew(p, w) {
				broken("%s: attempt %s at %s, which %s picked although its circuit was open until %s", p.Request, rc.Attempt, p.Worker,
					p.Source, w.until.Format(time.StampMilli))
			}
		}
	}
	for _, source := range c.sources {
		for worker, all := range c.windows[source] {
			for k := 1; k < len(all); k++ {
				if n := c.probes(source, worker, all[k-1], all[k]); n > 1 {
					broken("%s got %d failed requests of %s between two cooldowns, at %s: one is a probe", worker, n, source,
						all[k-1].until.Format(time.StampMilli))
				}
			}
		}
	}
}

// window is a time in which a circuit was open for certain: from a sample that
// showed it to the end of its cooldown.
type window struct {
	from, until time.Time
	trips       int
}

// circuits is what the samples say, by source.
type circuits struct {
	*view
	sources  []string
	samples  map[string][]*Sample
	windows  map[string]map[string][]window
	requests map[string]*Request
}

func newCircuits(v *view) *circuits {
	c := &circuits{view: v, samples: map[string][]*Sample{}, windows: map[string]map[string][]window{}, requests: map[string]*Request{}}
	for i := range v.Requests {
		c.requests[v.Requests[i].ID] = &v.Requests[i]
	}
	for i := range v.Samples {
		s := &v.Samples[i]
		if len(c.samples[s.Source]) == 0 {
			c.windows[s.Source] = map[string][]window{}
			c.sources = append(c.sources, s.Source)
		}
		c.samples[s.Source] = append(c.samples[s.Source], s)
		for id, one := range s.Circuits {
			all := c.windows[s.Source][id]
			if one.State == Open && (len(all) == 0 || !all[len(all)-1].until.Equal(one.Until)) {
				c.windows[s.Source][id] = append(all, window{s.At, one.Until, one.Trips})
			}
		}
	}
	return c
}

// knew reports whether the program still knew of w when it picked: one that was started
// anew, or that saw the worker leave, has forgotten.
func (c *circuits) knew(p *Pick, w window) bool {
	before, after := c.around(p.Source, p.At)
	return before != nil && after != nil && before.Circuits[p.Worker].Trips >= w.trips && after.Circuits[p.Worker].Trips >= w.trips
}

// receipt returns what came of the pick at the worker's engine; nil when nothing did.
func (c *circuits) receipt(p *Pick) *Receipt {
	for _, rc := range c.receipts[p.Request] {
		if rc.Worker == p.Worker && rc.Received.After(p.At) {
			return rc
		}
	}
	return nil
}

// someoneElse reports whether the program could have picked another worker of the
// kind: its circuit was closed before and after, and nothing else was wrong with it.
func (c *circuits) someoneElse(p *Pick) bool {
	before, after := c.around(p.Source, p.At)
	if before == nil || after == nil {
		return false
	}
	w := c.workers[p.Worker]
	for id, other := range c.workers {
		if id == p.Worker || other.Model != w.Model || other.Role != w.Role || slices.Contains(p.Tried, id) {
			continue
		}
		was, known := before.Circuits[id]
		is, still := after.Circuits[id]
		if known && still && was == is && is.State == Closed && !slices.Contains(before.Unfit, id) && !slices.Contains(after.Unfit, id) {
			return true
		}
	}
	return false
}

// around returns the source's samples before and after a moment, nil for none.
func (c *circuits) around(source string, at time.Time) (before, after *Sample) {
	for _, s := range c.samples[source] {
		if s.At.After(at) {
			return before, s
		}
		before = s
	}
	return before, nil
}

// probes counts what the source picked the worker for between the end of one window
// and the next, which the failure of a probe began: of these the first is the probe. One
// that produced something has closed the circuit, and others have opened it again; one
// that tells nothing of the worker lets another follow. What closes it may be a request
// that another program has picked for: behind a sample that shows it closed, all may fail.
func (c *circuits) probes(source, worker string, one, next window) (n int) {
	if next.trips != one.trips+1 {
		return 0
	}
	end := c.lastNotClosed(source, worker, one.until, next.from)
	for i := range c.Picks {
		p := &c.Picks[i]
		if p.Source != source || p.Worker != worker || p.At.Before(one.until) || p.At.After(end) || !c.someoneElse(p) {
			continue
		}
		rc, r := c.receipt(p), c.requests[p.Request]
		switch {
		case rc == nil || r == nil:
		case rc.Produced || rc.Complete:
			return 0
		case faulted(r, rc):
			n++
		}
	}
	return n
}

// lastNotClosed returns the time of the source's last sample before the worker's circuit
// shows closed between two moments, the later moment when it never does.
func (c *circuits) lastNotClosed(source, worker string, from, to time.Time) time.Time {
	last := from
	for _, s := range c.samples[source] {
		circuit, known := s.Circuits[worker]
		switch {
		case s.At.Before(from):
		case s.At.After(to):
			return to
		case known && circuit.State == Closed:
			return last
		default:
			last = s.At
		}
	}
	return to
}

// faulted reports whether the forwarder held the attempt's end against the worker.
func faulted(r *Request, rc *Receipt) bool {
	switch r.why(rc) {
	case "refused", "connect_timeout", "reset", "5xx", "error_event", "invalid_response", "idle_timeout", "first_token_timeout", "truncated":
		return true
	}
	return false
}

// why returns how the forwarder says that the attempt ended; "" when it is not known.
func (r *Request) why(rc *Receipt) string {
	for _, t := range r.Tries {
		if rc.Attempt == fmt.Sprintf("%s/%s%d", r.ID, t.Leg, t.N) {
			return t.Why
		}
	}
	return ""
}
