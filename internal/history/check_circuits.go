package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// openMeansOut is I8: whom a circuit leaves out gets nothing, but for one probe when
// its cooldown is over. What was picked by an endpoint picker goes by the circuits of
// these, of which any may have picked; what a forwarder has picked after a failure
// goes by its own. When all circuits of a kind are open, one is tried anyway.
func openMeansOut(v *view, broken func(string, ...any)) {
	c := newCircuits(v)
	for i := range v.Requests {
		r := &v.Requests[i]
		for _, rc := range v.receipts[r.ID] {
			if v.late(rc, r.Sent) || v.struck("", r.Sent, rc.Received, "lease-loss", "kill") {
				continue
			}
			sources, tried := c.pickers, []string(nil)
			if !strings.HasSuffix(rc.Attempt, "1") {
				if sources, tried = c.later(r, rc); sources == nil {
					continue
				}
			}
			if s, ok := c.shut(sources, rc.Worker, tried, r.Sent, rc.Received); ok {
				broken("%s: attempt %s at %s, whose circuit was open until %s in the eyes of %s", rc.Request, rc.Attempt, rc.Worker,
					s.until.Format(time.StampMilli), strings.Join(sources, " and "))
			}
		}
	}
	for worker := range v.workers {
		c.probes(worker, broken)
	}
}

// window is a time in which a circuit was open for certain: from a sample that
// showed it to the end of its cooldown.
type window struct{ from, until time.Time }

// circuits is what the samples say, by source.
type circuits struct {
	*view
	pickers []string
	samples map[string][]*Sample
	beside  map[string]string // source, by the worker that it is beside
	windows map[string]map[string][]window
}

func newCircuits(v *view) *circuits {
	c := &circuits{view: v, samples: map[string][]*Sample{}, beside: map[string]string{}, windows: map[string]map[string][]window{}}
	for i := range v.Samples {
		s := &v.Samples[i]
		if len(c.samples[s.Source]) == 0 {
			c.windows[s.Source] = map[string][]window{}
			if s.Beside == "" {
				c.pickers = append(c.pickers, s.Source)
			} else {
				c.beside[s.Beside] = s.Source
			}
		}
		c.samples[s.Source] = append(c.samples[s.Source], s)
		for id, one := range s.Circuits {
			all := c.windows[s.Source][id]
			if one.State == Open && (len(all) == 0 || !all[len(all)-1].until.Equal(one.Until)) {
				c.windows[s.Source][id] = append(all, window{s.At, one.Until})
			}
		}
	}
	return c
}

// later returns by whose circuits an attempt was picked that is not the first of its
// leg, and which workers were left out because they were tried. It returns nil for a
// further dial of the same worker, which is no pick, and where it cannot be known.
func (c *circuits) later(r *Request, rc *Receipt) (sources, tried []string) {
	source, known := c.beside[r.forwarder()]
	if !known {
		return nil, nil
	}
	last := ""
	for _, t := range r.Tries {
		if t.Leg != rc.Leg[:1] {
			continue
		}
		if rc.Attempt == fmt.Sprintf("%s/%s%d", r.ID, t.Leg, t.N) {
			if t.Worker != rc.Worker || t.Worker == last {
				return nil, nil
			}
			return []string{source}, tried
		}
		tried, last = append(tried, t.Worker), t.Worker
	}
	return nil, nil
}

// shut returns the end of a window of each source in which all of [from, to] lies,
// while another worker could have been picked.
func (c *circuits) shut(sources []string, worker string, tried []string, from, to time.Time) (found window, ok bool) {
	for _, source := range sources {
		all := c.windows[source][worker]
		i := slices.IndexFunc(all, func(w window) bool { return w.from.Before(from) && w.until.After(to) })
		if i < 0 || !c.someoneElse(source, worker, tried, from, to) {
			return window{}, false
		}
		found = all[i]
	}
	return found, len(sources) > 0
}

// someoneElse reports whether the source could have picked another worker of the
// kind at any moment in [from, to]: its circuit was closed all along, and nothing else
// was wrong with it.
func (c *circuits) someoneElse(source, worker string, tried []string, from, to time.Time) bool {
	w := c.workers[worker]
	around := c.around(source, from, to)
	for id, other := range c.workers {
		if id == worker || other.Model != w.Model || other.Role != w.Role || slices.Contains(tried, id) {
			continue
		}
		fit := len(around) > 1
		for _, s := range around {
			one, known := s.Circuits[id]
			fit = fit && known && one.State == Closed && one.Trips == around[0].Circuits[id].Trips && !slices.Contains(s.Unfit, id)
		}
		if fit {
			return true
		}
	}
	return false
}

// around returns the source's samples within [from, to] and the one on each side;
// nil when there is none on one.
func (c *circuits) around(source string, from, to time.Time) []*Sample {
	all := c.samples[source]
	first := -1
	for i, s := range all {
		if s.At.Before(from) {
			first = i
		}
		if s.At.After(to) {
			if first < 0 {
				return nil
			}
			return all[first : i+1]
		}
	}
	return nil
}

// span is a time in which a circuit was not closed, and how many probes were let
// through in it at most.
type span struct {
	from, to time.Time
	probes   int
}

// probes looks at what a worker got while its circuit was not closed for any endpoint
// picker: of each of them one probe per window. A probe whose client left tells
// nothing, so that another may follow; one that produced something has closed it.
func (c *circuits) probes(worker string, broken func(string, ...any)) {
	if len(c.pickers) == 0 {
		return
	}
	for _, first := range c.spans(c.pickers[0], worker) {
		s, ok := c.together(first, worker)
		if !ok || c.disturbed("", s.from, s.to) {
			continue
		}
		got := 0
		for _, rc := range c.firsts(worker, s) {
			if got++; rc.Produced || rc.Complete {
				break
			}
		}
		if got > s.probes {
			broken("%s: %d failed attempts from %s to %s, of which at most %d were probes", worker, got,
				s.from.Format(time.StampMilli), s.to.Format(time.StampMilli), s.probes)
		}
	}
}

// together cuts s to the time in which no endpoint picker had the circuit closed, and
// adds up what they may have let through.
func (c *circuits) together(s span, worker string) (span, bool) {
	for _, source := range c.pickers[1:] {
		other := c.spans(source, worker)
		i := slices.IndexFunc(other, func(o span) bool { return o.from.Before(s.to) && o.to.After(s.from) })
		if i < 0 {
			return s, false
		}
		if o := other[i]; o.from.After(s.from) {
			s.from = o.from
		}
		if o := other[i]; o.to.Before(s.to) {
			s.to = o.to
		}
		s.probes += other[i].probes
	}
	return s, s.from.Before(s.to)
}

// spans returns when the source had the worker's circuit open or half-open.
func (c *circuits) spans(source, worker string) (out []span) {
	open, trips := false, 0
	for _, s := range c.samples[source] {
		one, known := s.Circuits[worker]
		switch {
		case !known || one.State == Closed:
			open = false
		case !open:
			open, trips = true, one.Trips
			out = append(out, span{s.At, s.At, 1})
		default:
			last := &out[len(out)-1]
			last.to, last.probes = s.At, 1+one.Trips-trips
		}
	}
	return out
}

// firsts returns the attempts within s that an endpoint picker has sent to the worker
// and that have failed, in the order of their coming.
func (c *circuits) firsts(worker string, s span) (out []*Receipt) {
	for i := range c.Requests {
		r := &c.Requests[i]
		if !r.Canceled.IsZero() || r.Sent.Before(s.from) {
			continue
		}
		for _, rc := range c.receipts[r.ID] {
			if rc.Worker == worker && strings.HasSuffix(rc.Attempt, "1") && rc.Received.Before(s.to) && faulted(r, rc) &&
				c.elsewhere(worker, r.Sent, rc.Received) {
				out = append(out, rc)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Receipt) int { return a.Received.Compare(b.Received) })
	return out
}

func (c *circuits) elsewhere(worker string, from, to time.Time) bool {
	for _, source := range c.pickers {
		if !c.someoneElse(source, worker, nil, from, to) {
			return false
		}
	}
	return true
}

// faulted reports whether the forwarder held the attempt's end against the worker.
func faulted(r *Request, rc *Receipt) bool {
	return slices.ContainsFunc(r.Tries, func(t Try) bool {
		if rc.Attempt != fmt.Sprintf("%s/%s%d", r.ID, t.Leg, t.N) {
			return false
		}
		switch t.Why {
		case "refused", "connect_timeout", "reset", "5xx", "error_event", "invalid_response", "idle_timeout", "first_token_timeout", "truncated":
			return true
		}
		return false
	})
}
