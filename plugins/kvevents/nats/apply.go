package nats

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"pointsman/kvindex"
	"pointsman/wire"
)

// arrival is a message as the stream delivers it.
type arrival struct {
	subject string
	data    []byte
	stamp   time.Time
}

// take handles a message of the stream.
func (s *Subscriber) take(ctx context.Context, a arrival) {
	id, rank, err := parseSubject(a.subject)
	if err != nil {
		s.metrics.Ignored.Inc()
		return
	}
	s.metrics.Messages.Inc()
	s.metrics.Bytes.Add(float64(len(a.data)))
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[id]
	if p == nil {
		p = &peer{id: id}
		s.peers[id] = p
		s.unknown++
	}
	p.heard = time.Now()
	m := message{rank: rank, stamp: a.stamp, data: a.data}
	if p.record == nil || !a.stamp.Before(s.brokerNow().Add(-s.cfg.Lead)) {
		s.hold(p, m)
		s.metrics.heldBytes.Set(float64(s.held))
		s.metrics.heldMessages.Set(float64(s.heldMsgs))
	}
	if p.record == nil {
		return
	}
	if err := s.apply(p, &m); err != nil && !s.said {
		s.said = true
		s.log.LogAttrs(ctx, slog.LevelWarn, "a batch of KV events cannot be read; the view of this worker starts anew",
			slog.String("worker_id", id), slog.Int("rank", rank), slog.Any("error", err))
	}
}

// apply makes a message part of its target's view. Its error says that it is no
// batch: what it meant to say is lost, and the view has started over.
func (s *Subscriber) apply(p *peer, m *message) error {
	f := p.feeds[m.rank]
	switch {
	case f == nil:
		s.metrics.Ignored.Inc()
		return nil
	case m.stamp.Before(p.since):
		s.metrics.stale.Inc()
		return nil
	}
	if err := wire.DecodeBatch(m.data, &s.batch); err != nil {
		s.metrics.DecodeErrors.Inc()
		f.restart(kvindex.ResetGap, false)
		s.ask(slot{p.id, m.rank}, f)
		return err
	}
	s.push(f, &s.batch)
	if slices.ContainsFunc(s.batch.Events, func(e kvindex.Event) bool { return e.Kind != kvindex.Stored }) {
		f.shrunk = m.stamp
	}
	if s.up && f.target.NeedsResync() {
		s.ask(slot{p.id, m.rank}, f)
	}
	return nil
}

// push applies a batch as the feed's next one.
func (s *Subscriber) push(f *feed, b *kvindex.Batch) {
	b.Seq, b.HasSeq = f.next, true
	if f.target.Apply(b, time.Now()) != nil { // another feed of this key has been at work
		f.restart(kvindex.ResetGap, false)
		b.Seq = f.next
		f.target.Apply(b, time.Now())
	}
	f.next++
	f.applied = true
}

// lose is for messages that the stream has no more: whose they were is not
// known.
func (s *Subscriber) lose(ctx context.Context, from, to uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.gaps.Inc()
	s.log.LogAttrs(ctx, slog.LevelWarn, "the stream of KV events no longer has what came next; all views start anew",
		slog.Uint64("from", from), slog.Uint64("to", to))
	for _, p := range s.peers {
		s.release(p)
		p.held.lost = s.brokerNow()
		for rank, f := range p.feeds {
			f.restart(kvindex.ResetGap, false)
			if s.up {
				s.ask(slot{p.id, rank}, f)
			}
		}
	}
}

// hole is for messages in the middle of a past of which nothing is known yet
// that the stream has no more. Only oldest messages of a subject go that way (a
// limit or a purge by subject), so a rank that was heard before lost none.
func (s *Subscriber) hole() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		for _, f := range p.feeds {
			if !f.applied {
				f.next = 1
			}
		}
	}
}

// caughtUp is for the moment when all that the stream had is applied. A view
// that is in step is told so by a batch without events: it may be long until its
// worker says something.
func (s *Subscriber) caughtUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up, s.pos.fresh = true, false
	for _, p := range s.peers {
		for rank, f := range p.feeds {
			f.target.Connected(time.Now())
			if f.applied {
				s.push(f, &kvindex.Batch{Rank: -1})
			}
			if f.next > 0 && !f.applied || f.target.NeedsResync() {
				s.ask(slot{p.id, rank}, f)
			}
		}
	}
	s.gauge()
}

// outOfTouch is for the end of a session.
func (s *Subscriber) outOfTouch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = false
	for _, p := range s.peers {
		for _, f := range p.feeds {
			f.target.Lost(time.Now())
		}
	}
	s.gauge()
}

// ask queues a rank for what the bucket has of it, once per start of its view.
func (s *Subscriber) ask(at slot, f *feed) {
	if f.asked {
		return
	}
	f.asked = true
	s.seeds[at] = true
	wake(s.seedWake)
}
