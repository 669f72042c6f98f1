package kubernetes

import (
	"context"
	"log/slog"

	"pointsman/wire"
)

// note says and counts what Pods' changes mean to whoever runs the fleet.
func (f *follower) note(ctx context.Context, changes []change) {
	for _, c := range changes {
		f.skip(ctx, c)
		f.say(ctx, c)
		for _, id := range c.ids() {
			f.contest(ctx, id)
		}
	}
	f.metrics.observe(f.table.counts, len(f.contested))
}

// skip counts and says that a record cannot be used, once for as long as the
// Pod keeps it.
func (f *follower) skip(ctx context.Context, c change) {
	if c.now == nil || c.now.fault == nil {
		return
	}
	if c.was != nil && c.was.fault != nil && c.was.record == c.now.record && c.was.fault.Error() == c.now.fault.Error() {
		return
	}
	f.feed.Skip(wire.Reason(c.now.fault))
	f.log.LogAttrs(ctx, slog.LevelWarn, "a worker's record cannot be used; it gets no requests",
		slog.String("pod", c.now.name), slog.String("pod_uid", string(c.now.uid)), slog.Any("error", c.now.fault))
}

// say reports workers that come, go or are suspended. A crash, a drain and a
// deletion differ by their states.
func (f *follower) say(ctx context.Context, c change) {
	was, now := stateNone, stateNone
	if c.was != nil {
		was = c.was.state
	}
	if c.now != nil {
		now = c.now.state
	}
	moved := c.was.id() != c.now.id()
	if was == now && !moved {
		return
	}
	if c.was.id() == "" && c.now.id() == "" {
		return
	}
	f.metrics.changed(now)
	if !f.started && now == stateActive {
		return // the listing's own line counts them
	}
	p, level := c.now, slog.LevelInfo
	if p == nil {
		p = c.was
	}
	if now == stateDown {
		level = slog.LevelWarn
	}
	id := c.now.id()
	if id == "" {
		id = c.was.id()
	}
	f.log.LogAttrs(ctx, level, "a worker's state changed", slog.String("worker_id", id),
		slog.String("pod", p.name), slog.String("former", string(was)), slog.String("state", string(now)))
}

// contest says that several Pods claim to be one worker.
func (f *follower) contest(ctx context.Context, id string) {
	if !f.table.contested(id) {
		delete(f.contested, id)
		return
	}
	if f.contested[id] {
		return
	}
	f.contested[id] = true
	f.feed.Conflict()
	f.log.LogAttrs(ctx, slog.LevelWarn, "several Pods claim to be one worker; the oldest of them is believed",
		slog.String("worker_id", id), slog.Int("pods", len(f.table.claims[id])))
}
