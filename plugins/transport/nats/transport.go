package nats

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/retry"
	"pointsman/wire"
)

// Waits between attempts to connect.
const (
	firstWait   = 50 * time.Millisecond
	longestWait = 2 * time.Second
	deniedWait  = time.Second     // at least, when the broker refused us
	lastFlush   = time.Second     // for what is still to be sent at the end
	gatherTime  = 5 * time.Second // after an outage, for the workers to subscribe again: Infera's client waits 2 s between attempts
)

// Transport sends requests through a broker. Make it with [New], and run it:
// without a connection every request is answered 503.
type Transport struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	link     atomic.Pointer[link] // nil while there is no connection
	buffered atomic.Int64         // bytes in the queues of all exchanges
	rooms    rooms
	chores   chores
	bufs     sync.Pool // *[]byte, for envelopes
}

var _ forward.Transport = (*Transport)(nil)

// New returns a transport. It does not connect: see [Transport.Run].
func New(cfg Config, log *slog.Logger) (*Transport, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.Broker = cfg.Broker.WithDefaults()
	t := &Transport{cfg: cfg, log: log, metrics: newMetrics()}
	t.metrics.buffered(&t.buffered)
	t.rooms.max = cfg.MaxPending
	t.rooms.byID = map[string]*room{}
	t.chores.wake = make(chan struct{}, 1)
	return t, nil
}

// Connected reports whether there is a connection to the broker.
func (t *Transport) Connected() bool { return t.link.Load() != nil }

// Ping asks at subject over the connection and returns nil when anybody answers.
// Without a connection, and when nobody listens there, it fails at once.
func (t *Transport) Ping(ctx context.Context, subject string) error {
	l := t.link.Load()
	if l == nil {
		return errLost
	}
	_, err := l.nc.RequestWithContext(ctx, subject, nil)
	return err
}

// Run keeps a connection to the broker until ctx is done, whether or not the
// broker is there at the start. It returns nil.
func (t *Transport) Run(ctx context.Context) error {
	var chores sync.WaitGroup
	rest, stop := context.WithCancel(context.WithoutCancel(ctx)) // chores outlive ctx to send the last cancelations
	chores.Go(func() { t.chores.run(rest, t) })
	defer chores.Wait()
	defer stop()
	backoff, down, again := retry.NewBackoff(firstWait, longestWait), false, false
	for ctx.Err() == nil {
		l, err := t.dial(ctx)
		if err == nil {
			if again { // the workers come back in their own time
				l.gather = time.Now().Add(gatherTime)
			}
			backoff.Reset()
			down, again = false, true
			t.serve(ctx, l)
			continue
		}
		if ctx.Err() != nil {
			break
		}
		wait := backoff.Next()
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			wait = max(wait, deniedWait)
		}
		level := slog.LevelDebug // the outage has been said
		again = true
		if !down {
			down, level = true, slog.LevelWarn
		}
		t.log.LogAttrs(ctx, level, "nats broker not reached; it is tried again", slog.String("servers", t.cfg.Broker.Redacted()),
			slog.Duration("retry_in", wait), slog.Any("error", err))
		retry.Sleep(ctx, wait)
	}
	return nil
}

// serve lets requests use l until it or ctx ends.
func (t *Transport) serve(ctx context.Context, l *link) {
	t.link.Store(l)
	t.metrics.connected.Set(1)
	t.metrics.connects.Inc()
	t.log.LogAttrs(ctx, slog.LevelInfo, "nats broker connected", slog.String("servers", t.cfg.Broker.Redacted()))
	t.chores.poke()
	select {
	case <-ctx.Done():
		t.chores.flush(t)
		for _, x := range l.all() {
			_ = l.nc.Publish(wire.CancelSubject(x.worker.ID), []byte(x.inbox))
		}
		_ = l.nc.FlushTimeout(lastFlush) // the connection ends in any case
	case <-l.closed:
		t.log.LogAttrs(ctx, slog.LevelWarn, "nats broker lost", slog.String("servers", t.cfg.Broker.Redacted()), slog.Any("error", l.nc.LastError()))
	}
	t.link.Store(nil)
	t.metrics.connected.Set(0)
	l.end()
}

// Do sends req to w and returns when the answer's status is known. See
// [forward.Transport].
func (t *Transport) Do(ctx context.Context, w *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	if refused := unfit(req); refused != nil {
		return t.elsewhere(ctx, w, req, refused)
	}
	l := t.link.Load()
	if l == nil {
		return t.count("no_broker", down()), nil
	}
	lent, ok := t.bufs.Get().(*[]byte)
	if !ok {
		lent = new([]byte)
	}
	defer t.bufs.Put(lent)
	data, err := appendEnvelope((*lent)[:0], req, t.cfg.WholeReplies)
	*lent = data
	if err != nil {
		return t.elsewhere(ctx, w, req, notCarried(err))
	}
	if int64(len(data)+headerRoom) > l.nc.MaxPayload() {
		return t.elsewhere(ctx, w, req, tooLarge(l.nc.MaxPayload()))
	}
	place, ok := t.rooms.enter(ctx, l, w.ID)
	if !ok {
		return t.count("pending_cap", busy()), nil
	}
	x := newExchange(t, l, w, place)
	if !l.open(x) {
		place.leave()
		return t.count("no_broker", down()), nil
	}
	req.Progress.Reach(forward.StageWrite)
	if err := x.publish(data); err != nil {
		x.abandon()
		return t.count("no_broker", down()), nil
	}
	req.Progress.Reach(forward.StageDispatched)
	return x.answer(ctx)
}

// elsewhere gives a request that the broker cannot carry to the fallback. When
// that has no connection to the worker, the fault is the request's.
func (t *Transport) elsewhere(ctx context.Context, w *fleet.Worker, req *forward.Request, refused *forward.Response) (*forward.Response, error) {
	if t.cfg.Fallback == nil || w.URL == "" {
		return t.count("not_carried", refused), nil
	}
	resp, err := t.cfg.Fallback.Do(ctx, w, req)
	var failed *forward.Error
	if errors.As(err, &failed) && failed.Stage == forward.StageDial && ctx.Err() == nil {
		return t.count("not_carried", refused), nil
	}
	t.metrics.requests.WithLabelValues("fallback").Inc()
	return resp, err
}

// TimesIdle says that an idle timer runs here: --nats-req-idle-timeout.
func (t *Transport) TimesIdle() bool { return true }

// count notes how a request ended that was answered here.
func (t *Transport) count(outcome string, r *forward.Response) *forward.Response {
	t.metrics.requests.WithLabelValues(outcome).Inc()
	return r
}
