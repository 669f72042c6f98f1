package kvindex

import (
	"sync/atomic"
	"time"
)

// The reasons for a reset that the metric of resets tells apart; any other string
// counts as "other".
const (
	ResetGap         = "gap"         // missed batches that could not be replayed
	ResetRestart     = "restart"     // the publisher's sequence went backwards
	ResetIncarnation = "incarnation" // discovery says that the worker is a new process
	ResetReconnect   = "reconnect"   // a publisher without sequence numbers was out of touch
	ResetResync      = "resync"      // the source replays from the start
	ResetLost        = "lost"        // the publisher was out of touch for too long
	ResetBlockSize   = "block_size"  // events came with another block size
)

// Feed takes one target's batches in order. Its methods may be called from any
// goroutine, but the order of batches is their caller's.
//
// # Sequence numbers
//
// Numbers of live batches ([Feed.Apply]) go up by one; replayed ones
// ([Feed.ApplyReplayed]) may overlap with live ones on either side.
//
//   - The first batch after the start or a Reset is taken whatever its number. A
//     number above 0 means that earlier ones were missed: the view is partial.
//   - A number that is further than the next one is a [Gap]: the batch is not
//     applied. Replay the gap with ApplyReplayed, oldest first, and Apply the
//     batch again; or Reset(ResetGap) and Apply it again.
//   - A replayed number that is already applied is ignored.
//   - A live number that only replay has brought so far is ignored too, unless the
//     batch is younger than the newest one applied: then it is a restart.
//   - A live number that live batches have passed is a restart of the publisher,
//     whose cache is empty: the view is dropped, then the batch applied. Only an
//     exact repetition of the last live batch (number and time) is ignored.
//
// Batches without a number are applied as they come.
type Feed struct {
	x   *Index
	key string
	cur atomic.Pointer[target]
}

// Gap is the range of sequence numbers that a feed has missed.
type Gap struct{ From, To uint64 } // inclusive

// sequence is where a target's feed is. The zero value is before the first batch.
type sequence struct {
	numbered bool    // a numbered batch was applied: next counts
	any      bool    // any batch was applied
	replayed bool    // the history was replayed from as far back as there was
	open     bool    // a gap up to openTo is not filled
	next     uint64  // the number after the last one applied
	nextLive uint64  // the number after the last live one
	openTo   uint64  // last number of the open gap
	at       float64 // time of the newest batch applied
	liveAt   float64 // time of the last live batch
}

type verdict uint8

const (
	take verdict = iota
	duplicate
	restart
	gap
)

func (s *sequence) judge(b *Batch, live bool) verdict {
	switch {
	case !b.HasSeq || !s.numbered || b.Seq == s.next:
		return take
	case b.Seq > s.next:
		return gap
	case !live:
		return duplicate
	case b.Seq < s.nextLive:
		if b.Seq == s.nextLive-1 && b.At == s.liveAt && b.At != 0 {
			return duplicate
		}
		return restart
	case b.At > s.at && s.at != 0:
		return restart
	}
	return duplicate
}

// advance notes that b was applied, or was a duplicate.
func (s *sequence) advance(b *Batch, live bool) {
	s.any = true
	if !b.HasSeq {
		return
	}
	s.numbered = true
	s.next = max(s.next, b.Seq+1)
	s.at = max(s.at, b.At)
	if live {
		s.nextLive, s.liveAt = b.Seq+1, b.At
	}
	if s.open && s.next > s.openTo {
		s.open = false
	}
}

// Feed returns the feed of the target with the given key, and starts to keep the
// target if it is new. All feeds of one key share their state. A feed outlives
// [Index.Forget]: it does nothing until the key is kept again.
func (x *Index) Feed(key string) *Feed {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &Feed{x: x, key: key}
	f.cur.Store(x.keep(key))
	return f
}

// lock returns the feed's target, locked for its feed; nil when it is not kept.
func (f *Feed) lock() *target {
	t := f.cur.Load()
	if f.x.lookupTarget(t.in) != t {
		f.x.mu.Lock()
		t = f.x.byKey[f.key]
		f.x.mu.Unlock()
		if t == nil {
			return nil
		}
		f.cur.Store(t)
	}
	t.feed.Lock()
	if f.x.lookupTarget(t.in) != t { // forgotten while we waited
		t.feed.Unlock()
		return nil
	}
	return t
}

// Connected says that the publisher is reached (again). What was known stays if
// the publisher numbers its batches, which then show whether any were missed;
// else the view is dropped after a loss.
func (f *Feed) Connected(time.Time) {
	t := f.lock()
	if t == nil {
		return
	}
	defer t.feed.Unlock()
	if !t.connected.Swap(true) && t.seq.any && !t.seq.numbered {
		f.x.reset(t, ResetReconnect)
		t.seq = sequence{}
	}
}

// Lost says that the publisher is out of reach. The view stays as the best that
// is known, but no longer counts as [Exact]; a source that gives up calls Reset.
func (f *Feed) Lost(time.Time) {
	t := f.lock()
	if t == nil {
		return
	}
	defer t.feed.Unlock()
	t.connected.Store(false)
	t.inStep.Store(false)
	t.silent.Store(0)
}

// Apply makes a live batch part of the view. A gap means that b was not applied;
// the type's comment says what to do then.
func (f *Feed) Apply(b *Batch, now time.Time) (missed *Gap) { return f.apply(b, now, true) }

// ApplyReplayed is [Feed.Apply] for a batch that the publisher sent again on
// request. A gap means that the publisher's memory does not reach back far
// enough: Reset(ResetGap) and go on with b.
func (f *Feed) ApplyReplayed(b *Batch, now time.Time) (missed *Gap) { return f.apply(b, now, false) }

func (f *Feed) apply(b *Batch, now time.Time, live bool) *Gap {
	t := f.lock()
	if t == nil {
		return nil
	}
	defer t.feed.Unlock()
	x := f.x
	switch t.seq.judge(b, live) {
	case duplicate:
		t.counts.duplicates.Add(1)
		t.seq.advance(b, live)
		t.inStep.Store(!t.seq.open)
		return nil
	case gap:
		if !t.seq.open {
			t.counts.gaps.Add(1)
		}
		t.seq.open, t.seq.openTo = true, max(t.seq.openTo, b.Seq-1)
		t.inStep.Store(false)
		return &Gap{From: t.seq.next, To: b.Seq - 1}
	case restart:
		x.reset(t, ResetRestart)
		t.seq = sequence{}
	case take:
	}
	if b.HasSeq && !t.seq.numbered {
		t.seq.replayed = !live
		t.partial.Store(b.Seq != 0)
		t.resync.Store(b.Seq != 0 && live)
	}
	t.seq.advance(b, live)
	x.counts.skipped[skipDecoder].Add(uint64(max(0, b.Skipped)))
	for i := range b.Events {
		x.apply(t, &b.Events[i], &t.applier)
	}
	t.inStep.Store(!t.seq.open)
	t.silent.Store(0)
	x.Expire(now)
	return nil
}

// Reset drops the view and forgets the sequence: the next batch is a first one.
// Give one of the Reset constants as the reason.
func (f *Feed) Reset(reason string) {
	t := f.lock()
	if t == nil {
		return
	}
	defer t.feed.Unlock()
	f.x.reset(t, reason)
	t.seq = sequence{}
	t.inStep.Store(false)
}

// reset drops a target's views. Holders of t.feed only.
func (x *Index) reset(t *target, reason string) {
	x.counts.resets[resetIndex(reason)].Add(1)
	x.sweep(t)
	t.partial.Store(true)
	t.resync.Store(true)
	t.silent.Store(0)
}

// Partial reports whether the target's cache may hold blocks that the view lacks:
// the feed joined late, lost batches for good, or met an unknown parent. It ends
// when the cache is known to be empty, or a history is replayed from its start.
func (f *Feed) Partial() bool { return f.cur.Load().partial.Load() }

// NeedsResync reports whether the view is partial and the history was not
// replayed yet. A source that can replay then calls Reset(ResetResync), passes
// what the publisher has to ApplyReplayed, oldest first, and goes on with Apply;
// one that can't may ignore it: first tokens heal the view ([Index.Present]).
func (f *Feed) NeedsResync() bool { return f.cur.Load().resync.Load() }
