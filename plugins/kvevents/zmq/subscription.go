package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"pointsman/internal/retry"
	"pointsman/kvindex"
	"pointsman/wire"
)

// steady is how long a connection must last for its loss to start the backoff
// anew: a peer that accepts and hangs up is tried less and less often.
const steady = 5 * time.Second

// subscription is one target's; its methods belong to one goroutine.
type subscription struct {
	*Subscriber
	source
	feed *kvindex.Feed
	log  *slog.Logger

	seen    bool    // a numbered batch was applied: last and lastAt are its
	last    uint64  // its number
	lastAt  float64 // its time
	down    bool    // the outage has been logged
	settled bool    // see settle
	said    bool    // a batch that is none has been logged since the connection

	resynced    time.Time     // when the whole history was last asked for
	owed        bool          // a replay is still to be had, from owedAt on
	owedAt      time.Time     // when it is due
	lost        time.Time     // when the publisher was last reached; zero while it is
	dropped     bool          // the view was given up in this outage
	replayAfter time.Time     // after one that failed no replay is asked for before
	replayWait  time.Duration // since one failed, for that long; 0 after one that went well
}

func newSubscription(s *Subscriber, src source) *subscription {
	s.unsettled.Add(1)
	return &subscription{
		Subscriber: s, source: src, feed: s.index.Feed(src.key),
		log: s.log.With(slog.String("worker_id", src.worker), slog.String("target", src.key), slog.String("endpoint", src.addr)),
	}
}

// run follows the publisher until ctx is done.
func (u *subscription) run(ctx context.Context) {
	u.metrics.Subscriptions.Inc()
	defer u.settle()
	defer u.metrics.Subscriptions.Dec()
	backoff := retry.NewBackoff(u.cfg.Backoff, u.cfg.MaxBackoff)
	for ctx.Err() == nil {
		began := time.Now()
		err := u.session(ctx)
		if ctx.Err() != nil {
			return
		}
		u.settle()
		u.lose(ctx, time.Now())
		u.metrics.Reconnects.Inc()
		if time.Since(began) > steady {
			backoff.Reset()
		}
		if !u.down {
			u.down = true
			u.log.LogAttrs(ctx, slog.LevelWarn, "a publisher of KV events is out of reach; it is tried again", slog.Any("error", err))
		}
		backoff.Pause(ctx)
	}
}

// settle notes that the publisher's history has been read, or cannot be for now.
func (u *subscription) settle() {
	if !u.settled {
		u.settled = true
		u.unsettled.Add(-1)
	}
}

// lose notes that the publisher is out of reach. Its view is kept for a while,
// since most outages are short, and then given up.
func (u *subscription) lose(ctx context.Context, now time.Time) {
	u.feed.Lost(now)
	if u.lost.IsZero() {
		u.lost = now
	}
	if u.dropped || now.Sub(u.lost) < u.cfg.GiveUp {
		return
	}
	u.dropped = true
	u.feed.Reset(kvindex.ResetLost)
	u.log.LogAttrs(ctx, slog.LevelInfo, "a publisher of KV events stays out of reach: its view is dropped",
		slog.Duration("after", u.cfg.GiveUp))
}

// session connects and takes messages until something breaks.
func (u *subscription) session(ctx context.Context) error {
	c, err := dial(ctx, u.addr, sub, u.cfg.DialTimeout, u.cfg.MaxMessage)
	if err != nil {
		return err
	}
	defer c.close()
	// All topics, because an engine that was not started by Infera has an empty
	// one; what is not meant is left out here.
	if err := c.subscribe(""); err != nil {
		return err
	}
	u.metrics.Connected.Inc()
	defer u.metrics.Connected.Dec()
	u.feed.Connected(time.Now())
	u.said, u.lost, u.dropped = false, time.Time{}, false
	if u.down {
		u.down = false
		u.log.LogAttrs(ctx, slog.LevelInfo, "a publisher of KV events is back")
	}
	u.catchUp(ctx)
	u.settle()
	for {
		err := u.await(c)
		switch {
		case err == nil:
			err = u.message(ctx, c)
		case u.owed && errors.Is(err, os.ErrDeadlineExceeded):
			u.catchUp(ctx)
			err = nil
		}
		if err != nil {
			return err
		}
	}
}

// await blocks until a message begins, or until a replay that is owed is due.
func (u *subscription) await(c *conn) error {
	var due time.Time
	if u.owed {
		due = u.owedAt
	}
	if err := c.SetReadDeadline(due); err != nil {
		return err
	}
	if err := c.await(); err != nil {
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

// message takes one message off c.
func (u *subscription) message(ctx context.Context, c *conn) error {
	s := u.scratch.Get().(*scratch) //nolint:forcetypeassert // the pool has no other
	defer u.scratch.Put(s)
	if err := c.receive(&s.msg); err != nil {
		return err
	}
	if !u.meant(&s.msg) {
		u.metrics.Ignored.Inc()
		return nil
	}
	u.metrics.Messages.Inc()
	u.metrics.Bytes.Add(float64(len(s.msg.bytes)))
	s.batch.Seq, s.batch.HasSeq = sequence(&s.msg)
	if err := wire.DecodeBatch(s.msg.frame(-1), &s.batch); err != nil {
		u.undecodable(ctx, &s.batch, err)
		return nil
	}
	u.live(ctx, &s.batch)
	return nil
}

// meant reports whether a message is one of KV events, by its topic.
func (u *subscription) meant(m *message) bool {
	if len(m.ends) < 2 {
		return false
	}
	topic := string(m.frame(0))
	return topic == "" || strings.HasPrefix(topic, u.cfg.Topic)
}

// sequence returns the number of a message of three frames, [topic, number,
// payload]; ATOM's have two and no number (§4.2).
func sequence(m *message) (seq uint64, ok bool) {
	if len(m.ends) < 3 || len(m.frame(1)) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(m.frame(1)), true
}

// undecodable handles a batch that is none. What it meant to say is lost: with a
// number it shows as a gap before the next batch, without one the view is
// dropped here.
func (u *subscription) undecodable(ctx context.Context, b *kvindex.Batch, err error) {
	u.metrics.DecodeErrors.Inc()
	if !b.HasSeq {
		u.feed.Reset(kvindex.ResetGap)
	}
	if !u.said {
		u.said = true
		u.log.LogAttrs(ctx, slog.LevelWarn, "a batch of KV events cannot be read; the view of this worker starts anew", slog.Any("error", err))
	}
}

// live applies a batch as it came, after what is missing before it.
func (u *subscription) live(ctx context.Context, b *kvindex.Batch) {
	if gap := u.feed.Apply(b, time.Now()); gap != nil {
		u.log.LogAttrs(ctx, slog.LevelDebug, "batches of KV events are missing",
			slog.Uint64("from", gap.From), slog.Uint64("to", gap.To))
		u.fill(ctx, gap.From)
		if u.feed.Apply(b, time.Now()) != nil {
			u.feed.Reset(kvindex.ResetGap)
			u.feed.Apply(b, time.Now())
		}
	}
	u.note(b)
	if u.feed.NeedsResync() {
		u.resync(ctx, b)
	}
}

// note remembers the newest batch.
func (u *subscription) note(b *kvindex.Batch) {
	if b.HasSeq {
		u.seen, u.last, u.lastAt = true, b.Seq, b.At
	}
}
