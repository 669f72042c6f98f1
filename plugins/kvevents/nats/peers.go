package nats

import (
	"time"

	"pointsman/fleet"
	"pointsman/kvindex"
)

// peer is one worker, known to discovery or only from its messages.
type peer struct {
	id     string
	record *fleet.Worker // nil while discovery does not know it
	first  bool          // there when discovery first listed the fleet, and [Subscriber.judge] still has to say since when
	left   string        // its incarnation when discovery last knew it
	since  time.Time     // broker's clock: what was published before is of an earlier process; zero for nothing
	feeds  map[int]*feed // by the rank in subjects; nil while discovery does not know it
	held   hold          // unknown: its messages; known: its last ones, in case it is a new process already
	heard  time.Time     // our clock: its last message, or when it left
	dirty  bool          // its note is to be written
}

// feed is one target's. The numbers of batches are ours, since relays send none:
// one that starts at 0 tells the index that the view is whole from there.
type feed struct {
	key     string
	target  *kvindex.Feed
	next    uint64
	applied bool      // a batch was
	asked   bool      // for a seed, since the view started over
	seeded  bool      // there was one
	shrunk  time.Time // broker's clock: the last message that took blocks away
}

// restart drops the view; whole says whether all events since the cache was
// empty are still to come.
func (f *feed) restart(reason string, whole bool) {
	f.target.Reset(reason)
	f.begin(whole)
}

func (f *feed) begin(whole bool) {
	f.next, f.applied, f.asked, f.seeded, f.shrunk = 1, false, false, false, time.Time{}
	if whole {
		f.next = 0
	}
}

// brokerNow is the time by the broker's clock, with which it stamps messages.
func (s *Subscriber) brokerNow() time.Time { return time.Now().Add(s.skew) }

// reconcile makes peers what a snapshot says. initial marks the first one, whose
// workers may have been there for long.
func (s *Subscriber) reconcile(snap *fleet.Snapshot, initial bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[string]bool, len(snap.Workers))
	for _, w := range snap.Workers {
		if w.Status == fleet.Dead {
			continue
		}
		there[w.ID] = true
		p := s.peers[w.ID]
		switch {
		case p == nil:
			p = &peer{id: w.ID}
			s.peers[w.ID] = p
			s.unknown++
			s.appear(p, w, initial)
		case p.record == nil:
			s.appear(p, w, false)
		case p.record.Incarnation != w.Incarnation:
			s.renew(p, w)
		default:
			p.record = w
			s.refeed(p)
		}
	}
	for _, p := range s.peers {
		if p.record != nil && !there[p.id] {
			s.depart(p)
		}
	}
	s.gauge()
}

// appear makes a worker known and applies what was held of it.
func (s *Subscriber) appear(p *peer, w *fleet.Worker, initial bool) {
	s.unknown--
	p.record, p.first = w, initial
	whole := false
	switch {
	case initial: // judge decides
	case p.left != "" && p.left == w.Incarnation: // the same process, missed for a while
	default:
		p.since = s.brokerNow().Add(-s.cfg.Lead)
		whole = p.held.whole(p.since)
		s.note(p)
	}
	s.refeed(p)
	for _, f := range p.feeds {
		f.begin(whole)
	}
	s.applyHeld(p)
}

// renew is for a worker that is a new process under the same ID.
func (s *Subscriber) renew(p *peer, w *fleet.Worker) {
	p.record, p.first = w, false
	p.since = s.brokerNow().Add(-s.cfg.Lead)
	whole := p.held.whole(p.since)
	s.refeed(p)
	for _, f := range p.feeds {
		f.restart(kvindex.ResetIncarnation, whole)
	}
	s.note(p)
	s.applyHeld(p)
}

// depart forgets a worker's views, whose targets the picker forgets, and frees
// what is kept of it. What it says from here on is held for a while: it may be
// the next process of that name.
func (s *Subscriber) depart(p *peer) {
	for _, f := range p.feeds {
		f.target.Reset(kvindex.ResetIncarnation)
	}
	p.left, p.record, p.feeds, p.first, p.dirty = p.record.Incarnation, nil, nil, false, false
	p.since = time.Time{}
	s.release(p)
	p.heard = time.Now()
	s.unknown++
}

// refeed makes p's feeds those of its record's targets.
func (s *Subscriber) refeed(p *peer) {
	former := make(map[string]*feed, len(p.feeds))
	for _, f := range p.feeds {
		former[f.key] = f
	}
	p.feeds = make(map[int]*feed, len(former))
	for _, t := range p.record.Targets(nil) {
		f := former[t.Key]
		if f == nil {
			f = &feed{key: t.Key, target: s.index.Feed(t.Key)}
			if s.up {
				f.target.Connected(time.Now())
			}
		}
		delete(former, t.Key)
		p.feeds[max(0, t.Rank)] = f
		if p.record.Ranks() == 1 && p.record.DPRank > 0 {
			p.feeds[p.record.DPRank] = f // one rank of several workers: its relay may give either number
		}
	}
	for _, f := range former {
		f.target.Reset(kvindex.ResetIncarnation)
	}
}

// applyHeld applies what is held of a worker that is now known, and keeps the
// newest of it.
func (s *Subscriber) applyHeld(p *peer) {
	for i := range p.held.list {
		_ = s.apply(p, &p.held.list[i]) // counted there; the view has started over
	}
	s.prune(p)
}

// sweep drops what was held for too long.
func (s *Subscriber) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.peers {
		switch {
		case p.record != nil:
			s.prune(p)
		case time.Since(p.heard) > s.cfg.HoldFor:
			s.release(p)
			delete(s.peers, id)
			s.unknown--
		}
	}
	s.gauge()
}

// hold keeps a message of p within all bounds.
func (s *Subscriber) hold(p *peer, m message) {
	bytes, n := p.held.bytes, len(p.held.list)
	if p.record != nil {
		p.held.prune(s.brokerNow().Add(-s.cfg.Lead))
	}
	dropped := p.held.add(m, s.cfg.HoldMessages, s.cfg.HoldBytes)
	s.held += p.held.bytes - bytes
	s.heldMsgs += len(p.held.list) - n
	if p.record == nil {
		s.metrics.heldDropped.Add(float64(dropped))
	}
	for s.held > s.cfg.HoldTotal || s.unknown > s.cfg.HoldWorkers {
		if !s.evict() {
			s.release(p)
			p.held.lost = m.stamp
			break
		}
	}
}

// evict forgets the unknown worker that was silent for longest.
func (s *Subscriber) evict() bool {
	var oldest *peer
	for _, p := range s.peers {
		if p.record == nil && (oldest == nil || p.heard.Before(oldest.heard)) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	s.metrics.heldDropped.Add(float64(len(oldest.held.list)))
	s.release(oldest)
	delete(s.peers, oldest.id)
	s.unknown--
	return true
}

// prune drops the held messages of a known worker that no new process of it can
// have sent.
func (s *Subscriber) prune(p *peer) {
	bytes, n := p.held.bytes, len(p.held.list)
	p.held.prune(s.brokerNow().Add(-s.cfg.Lead))
	s.held += p.held.bytes - bytes
	s.heldMsgs += len(p.held.list) - n
}

// release frees all that is held of p.
func (s *Subscriber) release(p *peer) {
	s.held -= p.held.bytes
	s.heldMsgs -= len(p.held.list)
	p.held = hold{}
}

// gauge exports the sizes.
func (s *Subscriber) gauge() {
	n := 0
	for _, p := range s.peers {
		if p.record != nil {
			n += p.record.Ranks()
		}
	}
	s.metrics.Subscriptions.Set(float64(n))
	if !s.up {
		n = 0
	}
	s.metrics.Connected.Set(float64(n))
	s.metrics.heldBytes.Set(float64(s.held))
	s.metrics.heldMessages.Set(float64(s.heldMsgs))
}
