package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/objectives"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/trust"
)

// Deps are the rooms that the server leads to.
type Deps struct {
	Picker   *picker.Picker   // required
	Preparer *prompt.Preparer // required
	Gate     *admission.Gate  // admits requests; nil admits all
	Store    *fleet.Store     // required unless Ready is given
	Log      *slog.Logger     // nil discards

	// Objectives and rewrites of the pool; nil for none.
	Objectives *objectives.Book

	Ready func() bool      // readiness; nil is Store.Synced. Called often, from any goroutine
	Now   func() time.Time // nil is time.Now

	TLS   *tls.Config  // of the main port, when Config.Secure; nil is a self-signed certificate
	Salts *trust.Salts // under which prompts are cached; nil for the clients' own
	Keys  *trust.Keys  // sign the routing headers; nil signs nothing

	// Audit is told what engines counted of the requests that a worker has served
	// whole; nil for none. It is called from any goroutine and must not block.
	Audit func(audit.Report)

	// PickerID names this replica to forwarders, which report by it; "" for no
	// reports.
	PickerID string
	// Mine returns how many of this replica's requests a worker's rank has, as its
	// forwarders say, and when they said so; false when nobody does. Nil when there
	// are no reports.
	Mine func(worker string, rank int, now time.Time) (n int, at time.Time, heard bool)
}

// Server is the ext-proc server. Make it with [New].
type Server struct {
	cfg     atomic.Pointer[Config] // each stream keeps the one it began with
	message int                    // Config.MaxMessage as it was given to New
	deps    Deps
	log     *slog.Logger
	now     func() time.Time
	pool    *bufferPool
	bodies  *admission.Budget // bytes of bodies held
	asm     *assembler
	metrics *metrics
	health  *health
	streams sync.Pool // of *conversation
	picks   atomic.Uint64
	unseen  unseen

	overrides overrides
}

// New returns a server that does not listen yet. It fails on a configuration
// that Validate refuses and on missing dependencies.
func New(cfg Config, deps Deps) (*Server, error) {
	err := cfg.Validate()
	if deps.Picker == nil || deps.Preparer == nil {
		err = errors.Join(err, errors.New("picker and preparer are required"))
	}
	if deps.Ready == nil {
		if deps.Store == nil {
			err = errors.Join(err, errors.New("a store or a ready function is required"))
		} else {
			deps.Ready = deps.Store.Synced
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ext-proc server: %w", err)
	}
	s := &Server{message: cfg.MaxMessage, deps: deps, log: deps.Log, now: deps.Now, pool: new(bufferPool), bodies: admission.NewBudget(cfg.MaxBuffered)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.cfg.Store(&cfg)
	s.asm = newAssembler(s.pool)
	s.unseen.open = map[uint64]*parked{}
	s.metrics = newMetrics(s.bodies, s.unseen.waiting)
	s.health = newHealth(deps.Ready)
	return s, nil
}

// SetConfig makes cfg the settings of the streams that come from now on; those
// that are open keep theirs. What a listener is made of, Secure, MaxMessage and
// ReadyInterval, stays as [New] was given it, so a cfg whose MaxBody does not fit
// into that message is refused like one that is invalid: nothing changes then. It
// may be called at any time.
func (s *Server) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("ext-proc server: %w", err)
	}
	if cfg.MaxBody+messageOverhead > s.message {
		return fmt.Errorf("ext-proc server: max body %d: this process takes messages of %d bytes since its start; restart it for a larger body", cfg.MaxBody, s.message)
	}
	s.cfg.Store(&cfg)
	s.bodies.SetLimit(cfg.MaxBuffered)
	return nil
}

// Register puts the server's metrics on reg.
func (s *Server) Register(reg prometheus.Registerer) error { return s.metrics.register(reg) }

// What a stream may have in flight in each direction before its reader must
// catch up, and how much is read from or written to a socket at once. Fixed
// windows switch off grpc-go's bandwidth probing.
const (
	streamWindow = 1 << 20
	connWindow   = 8 << 20
	socketBuffer = 64 << 10
)

// minPing is the shortest interval at which gateways may ping. grpc-go's own
// default, 5 minutes, closes connections of gateways that ping more often.
const minPing = 5 * time.Second

// A gateway that vanishes without closing its connection would hold its picks'
// load for ever: a silent connection is asked for a sign of life.
const (
	pingIdle    = time.Minute
	pingTimeout = 20 * time.Second
)

func (s *Server) options() ([]grpc.ServerOption, error) {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(s.pool)),
		experimental.BufferPool(s.pool),
		grpc.MaxRecvMsgSize(s.message),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(socketBuffer),
		grpc.WriteBufferSize(socketBuffer),
		grpc.NumStreamWorkers(uint32(2 * runtime.GOMAXPROCS(0))), //nolint:gosec // a small number
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if !s.cfg.Load().Secure {
		return opts, nil
	}
	conf, err := tlsConfig(s.deps.TLS, s.now())
	if err != nil {
		return nil, err
	}
	return append(opts, grpc.Creds(credentials.NewTLS(conf))), nil
}

// Serve takes streams from lis, and health checks from lis and healthLis (nil
// for none; always plaintext, since Kubernetes' gRPC probes speak no TLS). When
// ctx is done it drains: health says NOT_SERVING, new streams are still taken
// for DrainDelay, then open ones may end within DrainTimeout. It returns when
// all is closed; nil after a drain, even one that had to cut streams.
func (s *Server) Serve(ctx context.Context, lis, healthLis net.Listener) error {
	opts, err := s.options()
	if err != nil {
		return fmt.Errorf("ext-proc server: %w", err)
	}
	main := grpc.NewServer(opts...)
	main.RegisterService(s.service(), nil) //nolint:contextcheck // each stream has its own
	healthpb.RegisterHealthServer(main, s.health)
	probes := grpc.NewServer()
	healthpb.RegisterHealthServer(probes, s.health)

	var wg sync.WaitGroup
	failed := make(chan error, 2)
	serve := func(srv *grpc.Server, lis net.Listener, name string) {
		if failure := srv.Serve(lis); failure != nil {
			failed <- fmt.Errorf("%s port: %w", name, failure)
		}
	}
	ready, stopReady := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { s.health.run(ready, s.cfg.Load().ReadyInterval) })
	wg.Go(func() { s.watchUnseen(ready) })
	wg.Go(func() { serve(main, lis, "ext-proc") })
	if healthLis != nil {
		wg.Go(func() { serve(probes, healthLis, "health") })
	}
	select {
	case <-ctx.Done():
		s.drain(ctx, main)
	case err = <-failed:
		s.health.drain()
		s.health.release()
		main.Stop()
	}
	probes.Stop()
	stopReady()
	wg.Wait()
	s.abandon(s.now())
	return err
}

// drain ends main's service without cutting a generation, if time allows.
func (s *Server) drain(ctx context.Context, main *grpc.Server) {
	s.health.drain()
	cfg := s.cfg.Load()
	s.log.LogAttrs(ctx, slog.LevelInfo, "draining",
		slog.Int64("streams", s.metrics.open.Load()), slog.Duration("delay", cfg.DrainDelay), slog.Duration("timeout", cfg.DrainTimeout))
	pause := time.NewTimer(cfg.DrainDelay)
	defer pause.Stop()
	<-pause.C
	s.health.release()
	if s.deps.Gate != nil {
		s.deps.Gate.Drain()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		main.GracefulStop()
	}()
	deadline := time.NewTimer(cfg.DrainTimeout)
	defer deadline.Stop()
	select {
	case <-done:
	case <-deadline.C:
		s.log.LogAttrs(ctx, slog.LevelWarn, "drain timeout; streams are cut", slog.Int64("streams", s.metrics.open.Load()))
		main.Stop()
		<-done
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "drained")
}
