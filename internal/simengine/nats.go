package simengine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/wire"
)

// NATSConfig is the worker's NATS side: it takes requests from a broker, posts
// them to the engine's own port and publishes the answers, as the server that
// Infera's launchers run beside an engine does (infera/common/nats_request.py).
// It is off while Server is empty.
type NATSConfig struct {
	Server      string        // URLs, comma separated; "" takes requests over HTTP only
	MaxPending  int           // above 0 requests come through the JetStream work queue. Default 0
	IdleTimeout time.Duration // longest silence of the engine; 0 for ever. Default 900 s
	MaxDuration time.Duration // longest duration of a request; 0 (default) no limit
	Number      bool          // number the reply frames, which Infera does not. Default false
	Deaf        bool          // register, but do not subscribe: a worker whose NATS side has died. Default false
}

// Wait between attempts of a worker to reach its broker (Infera: 1 s).
const natsRetry = time.Second

// requestServer is the NATS side of one engine.
type requestServer struct {
	cfg    NATSConfig
	id     string
	base   string // URL of the engine
	log    *slog.Logger
	client *http.Client
	ready  chan struct{} // closed once the subscriptions have reached the broker

	mu      sync.Mutex
	link    *requestLink // nil while deaf
	jobs    map[string]*requestJob
	closing bool // nothing new is taken
	wg      sync.WaitGroup
}

// requestLink is one connection and its subscriptions.
type requestLink struct {
	nc       *nats.Conn
	requests *nats.Subscription
	cancels  *nats.Subscription
}

func newRequestServer(cfg NATSConfig, id, addr string, log *slog.Logger) *requestServer {
	transport := &http.Transport{
		MaxIdleConnsPerHost: 256, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
		ResponseHeaderTimeout: cfg.IdleTimeout,
	}
	return &requestServer{
		cfg: cfg, id: id, base: "http://" + addr, log: log, client: &http.Client{Transport: transport},
		ready: make(chan struct{}), jobs: map[string]*requestJob{},
	}
}

// run subscribes, however long the broker is away, and returns then or when ctx
// is done. Requests run until life is done.
func (s *requestServer) run(ctx, life context.Context) {
	retry := time.NewTicker(natsRetry)
	defer retry.Stop()
	for {
		err := s.listen(life)
		if err == nil {
			close(s.ready)
			return
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "nats broker not reached", slog.Any("error", err))
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

// listen connects and subscribes. It returns when the broker knows of it, so
// that no request gets lost that comes right after the registration (N10).
func (s *requestServer) listen(ctx context.Context) error {
	if s.cfg.Deaf {
		return nil
	}
	back := func(*nats.Conn) {
		if s.cfg.MaxPending > 0 {
			s.wg.Go(func() { s.rejoin(ctx) })
		}
	}
	nc, err := nats.Connect(s.cfg.Server, nats.Name("infera-worker-req"), nats.MaxReconnects(-1), nats.ReconnectWait(natsRetry), nats.ReconnectHandler(back))
	if err != nil {
		return err
	}
	l := &requestLink{nc: nc}
	take := func(m *nats.Msg) { s.take(ctx, nc, m) }
	if l.cancels, err = nc.Subscribe(wire.CancelSubject(s.id), s.cancel); err == nil {
		if s.cfg.MaxPending > 0 {
			l.requests, err = s.consume(nc, take)
		} else {
			l.requests, err = nc.Subscribe(wire.RequestSubject(s.id), take)
		}
	}
	if err == nil {
		err = nc.FlushTimeout(callTimeout)
	}
	if err != nil {
		nc.Close()
		return fmt.Errorf("subscribe: %w", err)
	}
	s.mu.Lock()
	s.link = l
	s.mu.Unlock()
	return nil
}

// consume subscribes through the work queue (infera.md §3.6).
func (s *requestServer) consume(nc *nats.Conn, take nats.MsgHandler) (*nats.Subscription, error) {
	js, err := nc.JetStream()
	if err != nil {
		return nil, err
	}
	stream := &nats.StreamConfig{
		Name: wire.RequestStream, Subjects: []string{wire.RequestSubjects}, Retention: nats.WorkQueuePolicy,
		Storage: nats.MemoryStorage, Discard: nats.DiscardOld, MaxMsgs: 1_000_000,
	}
	if _, err := js.AddStream(stream); err != nil {
		if _, err := js.UpdateStream(stream); err != nil {
			return nil, err
		}
	}
	return js.Subscribe(wire.RequestSubject(s.id), take, nats.Durable(wire.Token(s.id)), nats.ManualAck(), nats.AckExplicit(),
		nats.DeliverAll(), nats.AckWait(time.Hour), nats.MaxDeliver(1), nats.MaxAckPending(1000))
}

// rejoin makes the work queue and its consumer again, which a broker that was
// restarted has lost with its memory. Infera's worker does not, and stays away
// until it is restarted itself.
func (s *requestServer) rejoin(ctx context.Context) {
	retry := time.NewTicker(natsRetry)
	defer retry.Stop()
	for {
		s.mu.Lock()
		l, closing := s.link, s.closing
		s.mu.Unlock()
		if l == nil || closing {
			return
		}
		if _, err := l.requests.ConsumerInfo(); err == nil {
			return // the broker has kept it
		}
		_ = l.requests.Unsubscribe()
		requests, err := s.consume(l.nc, func(m *nats.Msg) { s.take(ctx, l.nc, m) })
		if err == nil {
			s.mu.Lock()
			if s.link == l {
				s.link = &requestLink{nc: l.nc, requests: requests, cancels: l.cancels}
			}
			s.mu.Unlock()
			return
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "request consumer not made again", slog.Any("error", err))
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

// SetDeaf takes the worker off its broker, or puts it back: it stays registered
// and goes on serving HTTP. Errors are the broker's; an engine without a NATS
// side has none.
func (e *Engine) SetDeaf(deaf bool) error {
	if e.nats == nil {
		return nil
	}
	s := e.nats
	s.mu.Lock()
	l := s.link
	s.cfg.Deaf = deaf
	if deaf {
		s.link = nil
	}
	s.mu.Unlock()
	switch {
	case deaf && l != nil:
		// The broker must have seen it when this returns. The consumer of a work
		// queue stays, as it does behind a worker that died.
		if s.cfg.MaxPending <= 0 {
			_ = l.requests.Unsubscribe()
		}
		_ = l.cancels.Unsubscribe()
		_ = l.nc.FlushTimeout(callTimeout)
		l.nc.Close()
	case !deaf && l == nil:
		return s.listen(e.life)
	}
	return nil
}

// drain ends the NATS side as Infera's launcher does (infera.md §3.6, §3.7): what
// is queued is still taken, then nothing new; what has not finished when ctx is
// done is handed back, if the router said that it can go on elsewhere, and
// canceled.
func (s *requestServer) drain(ctx context.Context) {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil {
		return
	}
	s.awaitQueued(ctx, l)
	_ = l.requests.Unsubscribe() // deletes the durable consumer, too
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		s.handBack(l.nc)
		<-done
	}
	_ = l.cancels.Unsubscribe()
	_ = l.nc.FlushTimeout(callTimeout)
	l.nc.Close()
}

// awaitQueued waits until the work queue holds nothing for this worker.
func (s *requestServer) awaitQueued(ctx context.Context, l *requestLink) {
	if s.cfg.MaxPending <= 0 {
		return
	}
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for {
		info, err := l.requests.ConsumerInfo()
		if err != nil || info.NumPending == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
}

// handBack returns what can go on elsewhere, and cancels everything.
func (s *requestServer) handBack(nc *nats.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.migratable {
			j.handedBack = true
			_ = j.reply(nc, "error", []byte(wire.NoticeDraining), 0)
		}
		j.cancel(errCanceled)
	}
}

// kill ends the NATS side as the process's death would.
func (s *requestServer) kill() {
	s.mu.Lock()
	l := s.link
	s.link, s.closing = nil, true
	for _, j := range s.jobs {
		j.cancel(errKilled)
	}
	s.mu.Unlock()
	if l != nil {
		l.nc.Close()
	}
	s.wg.Wait()
	s.client.CloseIdleConnections()
}

// Errors with which a request is ended from outside.
var (
	errCanceled = errors.New(wire.NoticeCancelled)
	errDuration = errors.New(wire.NoticeDuration)
	errKilled   = errors.New("the worker was killed")
)
