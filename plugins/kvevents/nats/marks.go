package nats

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"pointsman/wire"
)

const (
	// markTTL is how long a note lasts that no router renews.
	markTTL = 7 * 24 * time.Hour
	// markRenewal is how often a router renews the notes of the workers it sees.
	markRenewal = 24 * time.Hour
	// markRetry is how often a note is tried again that could not be written.
	markRetry = 10 * time.Second
	// marksSize bounds the bucket: some 100,000 workers.
	marksSize = 32 << 20
)

// mark is the note of which process of a worker was seen since when, so that a
// router that starts later can tell its events from those of the process before.
type mark struct {
	Incarnation string    `json:"incarnation"` // as discovery gives it
	Since       time.Time `json:"since"`       // broker's clock; zero for as long as there are events
}

// judge says of the workers that discovery listed first which of their past
// counts. It runs once the notes are read and before anything is taken.
func (s *Subscriber) judge() {
	for _, p := range s.peers {
		if !p.first {
			continue
		}
		p.first = false
		whole := !s.pos.truncated
		known, noted := s.marks[p.id]
		switch {
		case p.record.Incarnation == "", !noted:
			s.note(p)
		case known.Incarnation == p.record.Incarnation:
			p.since = known.Since
			whole = whole || s.pos.oldest.Before(p.since)
		default: // it changed, and nobody knows when
			p.since, whole = s.brokerNow(), false
			s.note(p)
		}
		for _, f := range p.feeds {
			f.begin(whole)
		}
	}
}

// note queues p's note to be written.
func (s *Subscriber) note(p *peer) {
	if s.cfg.NoMarks || p.record.Incarnation == "" {
		return
	}
	p.dirty = true
	wake(s.markWake)
}

// loadMarks reads all notes. Without them the stream's whole past counts, which
// is what Infera's routers do.
func (s *Subscriber) loadMarks(ctx context.Context, js jetstream.JetStream) {
	if s.cfg.NoMarks {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectWait)
	defer cancel()
	marks, err := readMarks(ctx, js)
	if err != nil {
		if !errors.Is(err, jetstream.ErrBucketNotFound) {
			s.log.LogAttrs(ctx, slog.LevelDebug, "the notes on workers' processes cannot be read", slog.Any("error", err))
		}
		return
	}
	s.mu.Lock()
	s.marks = marks
	s.mu.Unlock()
}

func readMarks(ctx context.Context, js jetstream.JetStream) (map[string]mark, error) {
	kv, err := js.KeyValue(ctx, MarksBucket)
	if err != nil {
		return nil, err
	}
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return nil, err
	}
	defer stopWatch(ctx, w)
	marks := map[string]mark{}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case e, ok := <-w.Updates():
			if e == nil || !ok { // all of them were sent, or none will be
				return marks, nil
			}
			id, _, err := parseKey(e.Key() + ".0")
			var m mark
			if err == nil && e.Operation() == jetstream.KeyValuePut && json.Unmarshal(e.Value(), &m) == nil {
				marks[id] = m
			}
		}
	}
}

// watchEnd bounds the wait for a watch to end.
const watchEnd = time.Second

// stopWatch ends w and takes what is still under way, for its sender must not be left
// waiting. A watch whose connection broke just when it began has no sender, and the
// library never says that it has ended.
func stopWatch(ctx context.Context, w jetstream.KeyWatcher) {
	_ = w.Stop()
	late := time.NewTimer(watchEnd)
	defer late.Stop()
	for {
		select {
		case _, more := <-w.Updates():
			if !more {
				return
			}
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// writeMarks writes the notes that are due until ctx is done.
func (s *Subscriber) writeMarks(ctx context.Context, js jetstream.JetStream) {
	if s.cfg.NoMarks {
		return
	}
	retry, renewal := time.NewTicker(markRetry), time.NewTicker(markRenewal)
	defer retry.Stop()
	defer renewal.Stop()
	for renew := false; ; {
		if err := s.writeDue(ctx, js, renew); err != nil && ctx.Err() == nil {
			s.log.LogAttrs(ctx, slog.LevelDebug, "a note on a worker's process cannot be written", slog.Any("error", err))
		}
		renew = false
		select {
		case <-ctx.Done():
			return
		case <-s.markWake:
		case <-retry.C:
		case <-renewal.C:
			renew = true
		}
	}
}

// writeDue writes what is due, all that is known if renew.
func (s *Subscriber) writeDue(ctx context.Context, js jetstream.JetStream, renew bool) error {
	due := map[string]mark{}
	s.mu.Lock()
	for _, p := range s.peers {
		if p.record != nil && !p.first && p.record.Incarnation != "" && (p.dirty || renew) {
			due[p.id] = mark{Incarnation: p.record.Incarnation, Since: p.since}
		}
	}
	s.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	cctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectWait)
	defer cancel()
	kv, err := js.KeyValue(cctx, MarksBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(cctx, jetstream.KeyValueConfig{
			Bucket: MarksBucket, Description: "Pointsman: which process of each worker was seen since when",
			TTL: markTTL, MaxBytes: marksSize, Storage: jetstream.FileStorage,
		})
	}
	if err != nil {
		return err
	}
	for id, m := range due {
		if err := s.writeMark(ctx, kv, id, m, renew); err != nil {
			return err
		}
	}
	return nil
}

// writeMark writes one note, unless another router noted the same process
// before: the first to see it knows best.
func (s *Subscriber) writeMark(ctx context.Context, kv jetstream.KeyValue, id string, m mark, renew bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectWait)
	defer cancel()
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	key := wire.Token(id)
	var known mark
	e, err := kv.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		_, err = kv.Create(ctx, key, value)
	case err != nil:
	case json.Unmarshal(e.Value(), &known) == nil && known.Incarnation == m.Incarnation:
		if m = known; renew {
			_, err = kv.Update(ctx, key, e.Value(), e.Revision())
		}
	default:
		_, err = kv.Update(ctx, key, value, e.Revision())
	}
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) { // another router was faster: it is tried again, and agrees
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks[id] = m
	if p := s.peers[id]; err == nil && p != nil && p.record != nil && p.record.Incarnation == m.Incarnation {
		p.dirty = false
	}
	return nil
}
