package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"time"

	"pointsman/kvindex"
	"pointsman/wire"
)

// endOfReplay is the number, -1, with which vLLM's publisher ends a replay.
const endOfReplay = math.MaxUint64

var errReplay = errors.New("the publisher's answer is no replay")

// history asks the publisher for what it has from number from on, and calls
// each with every batch, oldest first; each returns false to break off. The
// batch and its memory are history's own, not that of the live message at hand.
//
// The request is [empty, number] and every answer [empty, number, payload], as
// a REQ socket would see them (vLLM vllm/distributed/kv_events.py).
func (u *subscription) history(ctx context.Context, from uint64, each func(*kvindex.Batch) bool) error {
	c, err := dial(ctx, u.replay, dealer, u.cfg.DialTimeout, u.cfg.MaxMessage)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	s := u.scratch.Get().(*scratch) //nolint:forcetypeassert // the pool has no other
	defer u.scratch.Put(s)
	for {
		if err := c.SetReadDeadline(time.Now().Add(u.cfg.ReplayTimeout)); err != nil {
			return err
		}
		if err := c.receive(&s.msg); err != nil {
			return err
		}
		seq, ok := sequence(&s.msg)
		switch {
		case !ok:
			return errReplay
		case seq == endOfReplay:
			return nil
		case seq < from:
			continue
		}
		u.metrics.Replayed.Inc()
		s.batch.Seq, s.batch.HasSeq = seq, true
		if err := wire.DecodeBatch(s.msg.frame(-1), &s.batch); err != nil {
			u.metrics.DecodeErrors.Inc()
			continue // shows as a gap before the next one
		}
		if !each(&s.batch) {
			return nil
		}
	}
}

// pull is history without its holes. A ROUTER socket drops what it cannot queue
// (with libzmq's defaults, beyond 1,000 messages), be it in the middle or at the
// end of an answer. So one that skips a number is broken off, and what follows
// is asked for until nothing comes. A number that then still is missing is no
// longer kept.
func (u *subscription) pull(ctx context.Context, from uint64, each func(*kvindex.Batch) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*u.cfg.ReplayTimeout)
	defer cancel()
	for {
		next, more := from, true
		err := u.history(ctx, from, func(b *kvindex.Batch) bool {
			if b.Seq > next && next > from {
				return false
			}
			next = b.Seq + 1
			more = each(b)
			return more
		})
		if err != nil || !more || next == from {
			return err
		}
		from = next
	}
}

// canReplay reports whether the publisher may be asked now. While it is asked
// nobody takes its live messages, so one that does not answer is asked less and
// less often.
func (u *subscription) canReplay() bool { return u.replay != "" && !time.Now().Before(u.replayAfter) }

// maxReplayWait is the longest pause between replays of which none went well.
const maxReplayWait = 5 * time.Minute

// replayDone counts and says how a replay ended.
func (u *subscription) replayDone(ctx context.Context, err error) {
	if err == nil {
		u.replayWait = 0
		u.metrics.Replays.WithLabelValues("complete").Inc()
		return
	}
	if ctx.Err() != nil {
		return
	}
	u.replayWait = min(max(2*u.replayWait, u.cfg.ResyncEvery), maxReplayWait)
	u.replayAfter = time.Now().Add(u.replayWait)
	u.owed, u.owedAt = true, u.replayAfter
	u.metrics.Replays.WithLabelValues("failed").Inc()
	u.log.LogAttrs(ctx, slog.LevelDebug, "past KV events are not to be had", slog.String("replay_endpoint", u.replay), slog.Any("error", err))
}

// fill asks for the batches from number from on, which the live ones have
// passed over.
func (u *subscription) fill(ctx context.Context, from uint64) {
	if !u.canReplay() {
		return
	}
	err := u.pull(ctx, from, u.past)
	u.replayDone(ctx, err)
}

// past applies a batch of the history. A gap before it is one that the publisher
// cannot fill.
func (u *subscription) past(b *kvindex.Batch) bool {
	if u.feed.ApplyReplayed(b, time.Now()) != nil {
		u.feed.Reset(kvindex.ResetGap)
		u.feed.ApplyReplayed(b, time.Now())
	}
	u.note(b)
	return true
}

// catchUp makes up for what was sent before the connection was there. The last
// batch known is asked for again: a publisher that does not have it, or has
// another one of that number, is a new process, whose cache is empty.
func (u *subscription) catchUp(ctx context.Context) {
	switch {
	case !u.canReplay():
		return
	case !u.seen, u.feed.NeedsResync():
		u.resync(ctx, nil)
		return
	}
	last, at, same := u.last, u.lastAt, false
	err := u.pull(ctx, last, func(b *kvindex.Batch) bool {
		if b.Seq == last {
			same = b.At == at
		}
		return same && u.past(b)
	})
	u.owed = false
	u.replayDone(ctx, err)
	if err == nil && !same {
		u.feed.Reset(kvindex.ResetRestart)
		u.seen, u.resynced = false, time.Time{}
		u.resync(ctx, nil)
	}
}

// resync replays all that the publisher has, and live, which may be nil, after
// it. The view stays as it is until the history begins to arrive.
func (u *subscription) resync(ctx context.Context, live *kvindex.Batch) {
	if !u.canReplay() {
		return
	}
	if next := u.resynced.Add(u.cfg.ResyncEvery); time.Now().Before(next) {
		u.owed, u.owedAt = true, next // a gap may be filled meanwhile
		return
	}
	u.resynced, u.owed = time.Now(), false
	begun := false
	err := u.pull(ctx, 0, func(b *kvindex.Batch) bool {
		if !begun {
			begun = true
			u.feed.Reset(kvindex.ResetResync)
		}
		return u.past(b)
	})
	u.replayDone(ctx, err)
	if begun && live != nil && u.feed.Apply(live, time.Now()) != nil {
		u.feed.Reset(kvindex.ResetGap)
		u.feed.Apply(live, time.Now())
	}
}
