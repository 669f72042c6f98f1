package lab

import (
	"math"
	"time"

	"pointsman/picker"
)

// step begins w's next step, if there is anything to do.
func (m *sim) step(w *worker) {
	took, ok := w.begin()
	m.publish(w) // what was evicted to admit
	if ok {
		m.clock.add(event{at: m.now + max(1, int64(took)), kind: stepEnds, w: w, try: w.lives})
	}
}

// stepped ends w's step: tokens come out.
func (m *sim) stepped(w *worker) {
	w.finish()
	m.publish(w)
	for _, q := range w.first {
		c := q.call
		c.first, c.hit = m.now, q.cached
		c.flight.First(at(m.now))
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: firstSeen, c: c, try: c.try})
	}
	for _, q := range w.done {
		c := q.call
		c.ended = m.now
		c.flight.Leave(at(m.now))
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: endSeen, c: c, try: c.try})
	}
	m.step(w)
}

// publish sends what has changed in w's cache.
func (m *sim) publish(w *worker) {
	if b := m.pub.take(w); b != nil && m.s.Policy.Guess == Events {
		m.clock.add(event{at: m.now + int64(m.s.EventLag), kind: eventsCome, w: w, b: b})
	}
}

// deliver brings a batch to every router, unless it gets lost on the way.
func (m *sim) deliver(w *worker, b *batch) {
	msg := m.pub.encode(b)
	for _, r := range m.routers {
		if m.s.Loss > 0 {
			kept := msg
			kept.Events = kept.Events[:0:0]
			for _, e := range msg.Events {
				if r.rand.Float64() >= m.s.Loss {
					kept.Events = append(kept.Events, e)
				}
			}
			r.feeds[w.n].Apply(&kept, at(m.now))
			continue
		}
		r.feeds[w.n].Apply(&msg, at(m.now))
	}
	m.pub.free = append(m.pub.free, b)
}

func (w *worker) id(m *sim) string { return m.ids[w.n] }

// dies kills w: its requests are lost, and its cache with them.
func (m *sim) dies(w *worker) {
	for _, q := range w.fail() {
		q.call.flight.Leave(at(m.now))
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: endSeen, c: q.call, try: q.call.try})
	}
	w.lives++
	w.busy = false
	m.clock.add(event{at: m.now + int64(m.s.EventLag), kind: eventsCome, w: w, b: &batch{cleared: true}})
}

// scrape tells every router what w's engine says of itself.
func (m *sim) scrape(w *worker) {
	seen := picker.Scraped{Queued: float64(len(w.queue)), Usage: w.cache.used()}
	for _, r := range m.routers {
		r.picker.SetScraped(m.ids[w.n], -1, seen)
	}
	m.clock.add(event{at: m.now + int64(m.s.Policy.Scrape), kind: scrapeDue, w: w})
}

// sample looks at the queues.
func (m *sim) sample() {
	q := make([]int, len(m.workers))
	for i, w := range m.workers {
		q[i] = len(w.queue) + len(w.prefills)
	}
	m.samples = append(m.samples, Sample{At: time.Duration(m.now - epoch), Queues: q})
	if m.ended < len(m.calls) && m.now < math.MaxInt64-m.every {
		m.clock.add(event{at: m.now + m.every, kind: sampleDue})
	}
}
