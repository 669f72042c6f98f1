package nats

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"pointsman/internal/retry"
)

// resetPurge is the reason of resets that the bucket asks for.
const resetPurge = "purge"

// seedRanks reads from the bucket what is asked for until ctx is done.
func (s *Subscriber) seedRanks(ctx context.Context, js jetstream.JetStream) {
	var kv jetstream.KeyValue
	for {
		at, f, ok := s.nextSeed()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-s.seedWake:
			}
			continue
		}
		if err := s.seed(ctx, js, &kv, at, f); err != nil {
			if ctx.Err() != nil {
				return
			}
			s.metrics.bucketErrors.Inc()
			s.log.LogAttrs(ctx, slog.LevelDebug, "the bucket does not say what a rank holds",
				slog.String("worker_id", at.id), slog.Int("rank", at.rank), slog.Any("error", err))
		}
	}
}

// nextSeed takes a rank off the queue that is still worth it: in touch, known,
// and with a view that may lack something.
func (s *Subscriber) nextSeed() (at slot, f *feed, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return slot{}, nil, false
	}
	for at := range s.seeds {
		delete(s.seeds, at)
		if f := s.feedAt(at); f != nil && f.asked && !f.seeded {
			return at, f, true
		}
	}
	return slot{}, nil, false
}

func (s *Subscriber) feedAt(at slot) *feed {
	p := s.peers[at.id]
	if p == nil {
		return nil
	}
	return p.feeds[at.rank]
}

// seed makes predictions of what the bucket lists for a rank. A bucket or key
// that is not there is no error: the deletions' watch asks again when it comes.
func (s *Subscriber) seed(ctx context.Context, js jetstream.JetStream, kv *jetstream.KeyValue, at slot, f *feed) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectWait)
	defer cancel()
	if *kv == nil {
		bucket, err := js.KeyValue(ctx, Bucket)
		if err != nil {
			if errors.Is(err, jetstream.ErrBucketNotFound) {
				return nil
			}
			return err
		}
		*kv = bucket
	}
	e, err := (*kv).Get(ctx, Key(at.id, at.rank))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	hashes, err := decodeView(e.Value(), s.cfg.SeedBlocks)
	if err != nil {
		return err
	}
	s.plant(at, f, hashes, e.Created())
	return nil
}

// plant predicts blocks of a rank that were listed at the given time of the
// broker's clock, once per start of its view. Each is predicted alone, as the
// value has no order. A list from before a removal that is known may hold what
// is gone; the relay writes a new one soon, of which the watch tells.
func (s *Subscriber) plant(at slot, f *feed, hashes []uint64, listed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.feedAt(at) != f, f.seeded, len(hashes) == 0:
		return
	case listed.Before(s.peers[at.id].since), listed.Before(f.shrunk):
		return
	}
	f.seeded = true
	now, in := time.Now(), s.index.Instance(f.key)
	for i := range hashes {
		s.index.Predict(in, hashes[i:i+1], now, s.cfg.SeedFor)
	}
	s.metrics.seeded.Add(float64(len(hashes)))
}

// watchBucket follows the bucket's keys, without their values, until ctx is
// done: a rank that was asked for in vain may be written later, and one that is
// deleted has lost its cache (Infera drops its view then).
func (s *Subscriber) watchBucket(ctx context.Context, js jetstream.JetStream) {
	const prefix = "$KV." + Bucket + "."
	for backoff := retry.NewBackoff(s.cfg.Backoff, s.cfg.MaxBackoff); ctx.Err() == nil; {
		stream, err := s.awaitStream(ctx, js, "KV_"+Bucket)
		if err == nil {
			var keys jetstream.MessagesContext
			keys, err = s.consume(ctx, stream, jetstream.ConsumerConfig{
				DeliverPolicy: jetstream.DeliverNewPolicy, FilterSubject: prefix + ">", HeadersOnly: true,
			})
			if err == nil {
				s.reseed() // what was written before the watch began
				err = s.watchKeys(keys, prefix)
				keys.Stop()
			}
		}
		if ctx.Err() == nil {
			s.log.LogAttrs(ctx, slog.LevelDebug, "the bucket's keys are not followed; it is tried again", slog.Any("error", err))
			backoff.Pause(ctx)
		}
	}
}

func (s *Subscriber) watchKeys(keys jetstream.MessagesContext, prefix string) error {
	for {
		msg, err := keys.Next()
		if err != nil {
			return err
		}
		id, rank, err := parseKey(strings.TrimPrefix(msg.Subject(), prefix))
		if err != nil {
			s.metrics.bucketErrors.Inc()
			continue
		}
		h := msg.Headers()
		gone := h.Get("KV-Operation") == "DEL" || h.Get("KV-Operation") == "PURGE" || h.Get("Nats-Marker-Reason") != ""
		if gone {
			s.purge(slot{id, rank})
		} else {
			s.offered(slot{id, rank})
		}
	}
}

// purge drops a rank's view, and what is held for it.
func (s *Subscriber) purge(at slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[at.id]
	if p == nil {
		return
	}
	s.release(p)
	p.held.lost = s.brokerNow()
	if f := p.feeds[at.rank]; f != nil {
		f.restart(resetPurge, false)
		f.asked = true
	}
}

// offered notes that the bucket has something of a rank.
func (s *Subscriber) offered(at slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.feedAt(at); f != nil && f.asked && !f.seeded {
		s.seeds[at] = true
		wake(s.seedWake)
	}
}

// reseed asks again for all ranks that were asked for in vain.
func (s *Subscriber) reseed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.peers {
		for rank, f := range p.feeds {
			if f.asked && !f.seeded {
				s.seeds[slot{id, rank}] = true
			}
		}
	}
	wake(s.seedWake)
}
