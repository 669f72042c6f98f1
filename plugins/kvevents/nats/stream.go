package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pointsman/internal/retry"
)

const (
	// steady is how long a session must last for its end to start the backoff
	// anew.
	steady = 5 * time.Second
	// pullAhead is how many messages may be on their way to us.
	pullAhead = 1000
	// heartbeat is how often the broker shows that a quiet consumer lives; one
	// that misses two is given up.
	heartbeat = 5 * time.Second
	// unused is how long the broker keeps a consumer that nobody asks for more.
	unused = 30 * time.Second
	// quiet is the silence after which the past counts as delivered, when its
	// last message was deleted on the way.
	quiet = time.Second
)

// errSkipped means that messages were lost between the broker and us, which has
// them still.
var errSkipped = errors.New("the delivery of KV events has a gap")

// position is where we are in the stream.
type position struct {
	joined    bool      // there was a session with this stream
	created   time.Time // which stream it is
	last      uint64    // number of the last message taken
	contained bool      // every message of the stream is ours, so numbers have no holes
	fresh     bool      // nothing was known of this stream, and its past is being read
	truncated bool      // the stream had dropped messages when we joined it
	oldest    time.Time // broker's clock: the first message it had then
}

// followStream holds sessions with the broker until ctx is done.
func (s *Subscriber) followStream(ctx context.Context) {
	backoff, down := retry.NewBackoff(s.cfg.Backoff, s.cfg.MaxBackoff), false
	for ctx.Err() == nil {
		began := time.Now()
		up, err := s.session(ctx)
		if up {
			down = false
		}
		s.outOfTouch()
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errSkipped) {
			s.log.LogAttrs(ctx, slog.LevelInfo, "KV events were lost on the way; they are fetched again")
			continue
		}
		s.metrics.Reconnects.Inc()
		if time.Since(began) > steady {
			backoff.Reset()
		}
		if !down {
			down = true
			s.log.LogAttrs(ctx, slog.LevelWarn, "the stream of KV events is out of reach; it is tried again",
				slog.String("server", s.cfg.Broker.Redacted()), slog.Any("error", err))
		}
		backoff.Pause(ctx)
	}
}

// session connects and takes messages until something breaks; up says that it
// took the consumer to the live end.
func (s *Subscriber) session(ctx context.Context) (up bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nc, closed, err := s.dial(ctx)
	if err != nil {
		return false, err
	}
	s.answered.Store(true)
	defer func() {
		nc.Close()
		<-closed
	}()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(s.cfg.ConnectWait))
	if err != nil {
		return false, err
	}
	stream, err := s.awaitStream(ctx, js, Stream)
	if err != nil {
		return false, err
	}
	s.loadMarks(ctx, js)
	from, to := s.join(ctx, stream.CachedInfo())
	consumer, err := s.consume(ctx, stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, FilterSubject: Subjects,
	})
	if err != nil {
		return false, err
	}
	defer consumer.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.writeMarks(ctx, js) })
	wg.Go(func() { s.seedRanks(ctx, js) })
	wg.Go(func() { s.watchBucket(ctx, js) })
	up, err = s.receive(ctx, consumer, to)
	return up, err
}

// awaitStream returns a stream, which the first relay of a fleet creates. Its
// error says that the broker is out of reach, or has no JetStream.
func (s *Subscriber) awaitStream(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	said := false
	for backoff := retry.NewBackoff(s.cfg.Backoff, s.cfg.MaxBackoff); ; backoff.Pause(ctx) {
		cctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectWait)
		stream, err := js.Stream(cctx, name)
		cancel()
		if !errors.Is(err, jetstream.ErrStreamNotFound) || ctx.Err() != nil {
			return stream, err
		}
		if !said {
			said = true
			s.log.LogAttrs(ctx, slog.LevelDebug, "the broker has no such stream yet", slog.String("stream", name))
		}
	}
}

// consume starts the delivery of a stream's messages, which ends with ctx.
func (s *Subscriber) consume(ctx context.Context, stream jetstream.Stream, cfg jetstream.ConsumerConfig) (jetstream.MessagesContext, error) {
	cfg.AckPolicy, cfg.InactiveThreshold, cfg.MemoryStorage, cfg.Replicas = jetstream.AckNonePolicy, unused, true, 1
	cctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectWait)
	defer cancel()
	c, err := stream.CreateConsumer(cctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("consumer of %s: %w", stream.CachedInfo().Config.Name, err)
	}
	messages, err := c.Messages(
		jetstream.PullMaxMessages(pullAhead), jetstream.PullHeartbeat(heartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true),
	)
	if err != nil {
		return nil, fmt.Errorf("consumer of %s: %w", stream.CachedInfo().Config.Name, err)
	}
	context.AfterFunc(ctx, messages.Stop)
	return messages, nil
}

// join compares the stream with the one of the last session. It returns the
// number from which to go on and the last one that the stream has.
func (s *Subscriber) join(ctx context.Context, info *jetstream.StreamInfo) (from, to uint64) {
	first, last := max(1, info.State.FirstSeq), info.State.LastSeq
	s.mu.Lock()
	s.said = false
	if !info.TimeStamp.IsZero() {
		s.skew = time.Until(info.TimeStamp)
	}
	pos := s.pos
	same := pos.joined && pos.created.Equal(info.Created) && last >= pos.last
	s.pos.created, s.pos.joined = info.Created, true
	s.pos.contained = !slices.ContainsFunc(info.Config.Subjects, func(subject string) bool {
		return !strings.HasPrefix(subject, subjectPrefix)
	})
	if s.pos.fresh = !same; !same {
		s.pos.last = first - 1
	}
	if !pos.joined {
		s.pos.truncated, s.pos.oldest = first > 1, info.State.FirstTime
	}
	from = max(s.pos.last+1, first)
	s.pos.last = from - 1
	s.judge()
	s.mu.Unlock()
	switch {
	case !pos.joined:
	case !same:
		s.lose(ctx, 1, from-1)
	case from > pos.last+1:
		s.lose(ctx, pos.last+1, from-1)
	}
	return from, last
}

// receive takes messages until the delivery ends. to is the last one of the
// past; up says that it was passed.
func (s *Subscriber) receive(ctx context.Context, messages jetstream.MessagesContext, to uint64) (up bool, err error) {
	done := func() {
		up = true
		s.metrics.Replays.WithLabelValues("complete").Inc()
		s.caughtUp()
	}
	if s.pos.last >= to {
		done()
	}
	defer func() {
		if !up && ctx.Err() == nil {
			s.metrics.Replays.WithLabelValues("failed").Inc()
		}
	}()
	var delivered uint64 // by this consumer
	for {
		var opts []jetstream.NextOpt
		if !up {
			opts = append(opts, jetstream.NextMaxWait(quiet))
		}
		msg, err := messages.Next(opts...)
		if errors.Is(err, nats.ErrTimeout) {
			done()
			continue
		}
		if err != nil {
			return up, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			s.metrics.Ignored.Inc()
			continue
		}
		if meta.Sequence.Consumer != delivered+1 {
			return up, errSkipped
		}
		delivered++
		s.arrive(ctx, msg, meta)
		if meta.Sequence.Stream <= to {
			s.metrics.Replayed.Inc()
		}
		if !up && (meta.Sequence.Stream >= to || meta.NumPending == 0) {
			done()
		}
	}
}

// arrive takes one message at its place in the stream. pos.last and pos.contained
// are this goroutine's to write; others read them under the lock.
func (s *Subscriber) arrive(ctx context.Context, msg jetstream.Msg, meta *jetstream.MsgMetadata) {
	seq, last := meta.Sequence.Stream, s.pos.last
	if seq <= last {
		return
	}
	switch {
	case seq == last+1 || !s.pos.contained:
	case s.pos.fresh:
		s.hole()
	default:
		s.lose(ctx, last+1, seq-1)
	}
	s.take(ctx, arrival{subject: msg.Subject(), data: msg.Data(), stamp: meta.Timestamp})
	s.mu.Lock()
	s.pos.last = seq
	s.mu.Unlock()
}
