package simengine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/fleet"
	"pointsman/wire"
)

// Engine is a running simulated worker.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	id       string
	seed     uint64
	files    *modelFiles // nil for the engine's own tokenizer
	born     time.Time
	sched    *scheduler
	pub      *publisher
	zmq      *sockets
	faults   *faults
	gate     *gate
	control  net.Listener // nil without a control port
	receipts *receiptLog
	named    named // running requests of an SGLang engine
	registry *prometheus.Registry
	inflight inflight
	servers  []*http.Server
	side     *side          // nil unless the engine is half of a pair
	reg      registration   // nil when not registered
	nats     *requestServer // nil when requests come over HTTP only

	life    context.Context //nolint:containedctx // the engine's life time: handlers and parts end with it
	stop    context.CancelFunc
	wg      sync.WaitGroup
	regStop context.CancelFunc
	regDone chan struct{}

	ended sync.Once
	fault struct {
		sync.Mutex
		timer *time.Timer
	}
}

// Start binds every socket, then begins to serve, publish and register. It does
// not wait for etcd or the API server: see [Engine.Registered]. When ctx is done the engine ends
// as by [Engine.Kill]; a call of Kill waits for that. Errors are Config's faults and sockets that can't be bound.
func Start(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, log: cfg.Log, seed: cfg.Seed, born: time.Now(), regDone: make(chan struct{})}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.seed == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		e.seed = binary.LittleEndian.Uint64(b[:]) | 1
	}
	var err error
	if e.files, err = loadFiles(cfg.Files, cfg.Engine); err != nil {
		return nil, err
	}
	e.receipts = &receiptLog{limit: cfg.ReceiptsLimit}
	e.faults = &faults{rng: mathrand.New(mathrand.NewPCG(e.seed, 2))} //nolint:gosec // chance, not secrecy
	e.pub = newPublisher(cfg.KV, cfg.Engine, e.seed, e.log)
	e.sched = newScheduler(cfg.Time, newCache(cfg.Cache.BlockSize, cfg.Cache.Capacity), e.pub.publish)
	e.registry = prometheus.NewRegistry()
	if err := newMetrics(e).Register(e.registry); err != nil {
		return nil, err
	}
	e.life, e.stop = context.WithCancel(ctx)
	if err := e.bind(); err != nil {
		e.stop()
		e.unbind()
		return nil, err
	}
	e.serve() //nolint:contextcheck // parts live as long as the engine does, on a context derived from ctx
	if err := e.SetFault(cfg.Fault); err != nil {
		return nil, errors.Join(err, e.Close()) //nolint:contextcheck // ending does not depend on ctx
	}
	context.AfterFunc(ctx, e.Kill)
	return e, nil
}

// bind opens every socket and prepares the registration.
func (e *Engine) bind() error {
	var err error
	if e.gate, err = openGate(e.life, net.JoinHostPort(e.cfg.Host, itoa(e.cfg.Port)), e.faults); err != nil {
		return fmt.Errorf("http port: %w", err)
	}
	if e.cfg.ControlPort >= 0 {
		addr := net.JoinHostPort(e.cfg.Host, itoa(e.cfg.ControlPort))
		if e.control, err = new(net.ListenConfig).Listen(e.life, "tcp", addr); err != nil {
			return fmt.Errorf("control port: %w", err)
		}
	}
	if e.zmq, err = bindSockets(e.life, e.cfg.Host, e.cfg.KV, e.pub); err != nil {
		return err
	}
	e.id = net.JoinHostPort(e.advertised(), itoa(e.port()))
	if err = e.openSide(); err != nil {
		return err
	}
	if e.cfg.NATS.Server != "" {
		e.nats = newRequestServer(e.cfg.NATS, e.id, e.gate.Addr().String(), e.log)
	}
	return e.prepareRegistration()
}

// prepareRegistration encodes the record and says where it will go.
func (e *Engine) prepareRegistration() error {
	if e.cfg.Etcd.Endpoint == "" && e.cfg.Kube.API == "" {
		return nil
	}
	record, err := wire.EncodeRegistration(e.Worker())
	if err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	// Assigned when it is there only: a nil pointer would not be a nil interface.
	if e.cfg.Kube.API == "" {
		var r *registrar
		if r, err = newRegistrar(e.cfg.Etcd, e.id, record, e.log); err == nil {
			e.reg = r
		}
		return err
	}
	r, err := newKubeRegistrar(e.cfg.Kube, record, e.log)
	if err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	e.reg = r
	return nil
}

// serve starts every part.
func (e *Engine) serve() {
	e.wg.Go(func() { e.sched.run(e.life) })
	e.wg.Go(func() { e.pub.run(e.life) })
	if e.zmq.replay != nil {
		e.wg.Go(func() { e.zmq.serveReplay(e.life, e.pub) })
	}
	e.listen(e.gate, e.routes(), e.gate.track)
	if e.control != nil {
		e.listen(e.control, e.controlRoutes(), nil)
	}
	if e.side != nil {
		e.listen(e.side.ln, http.HandlerFunc(e.serveKV), nil)
	}
	regCtx, cancel := context.WithCancel(e.life)
	e.regStop = cancel
	e.wg.Go(func() {
		defer close(e.regDone)
		if e.nats != nil { // before the registration, so that no request comes too early
			e.nats.run(regCtx, e.life)
		}
		if e.reg != nil && regCtx.Err() == nil {
			e.reg.run(regCtx, e.life)
		}
	})
	e.log.LogAttrs(e.life, slog.LevelInfo, "engine serves", slog.String("worker_id", e.id), slog.String("kv_events", e.KVEvents()))
}

func (e *Engine) listen(ln net.Listener, h http.Handler, state func(net.Conn, http.ConnState)) {
	srv := &http.Server{
		Handler: h, ConnState: state, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return e.life },
		ErrorLog:    slog.NewLogLogger(e.log.Handler(), slog.LevelDebug), // its only news are clients that broke off
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	e.servers = append(e.servers, srv)
	e.wg.Go(func() {
		if err := srv.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) && e.life.Err() == nil {
			e.log.LogAttrs(e.life, slog.LevelError, "server ended", slog.Any("error", err))
		}
	})
}

// advertised is the host that others reach the engine at.
func (e *Engine) advertised() string {
	switch {
	case e.cfg.AdvertiseHost != "":
		return e.cfg.AdvertiseHost
	case e.cfg.Host == "", e.cfg.Host == "0.0.0.0", e.cfg.Host == "::":
		return "127.0.0.1"
	}
	return e.cfg.Host
}

func (e *Engine) port() int {
	addr, ok := e.gate.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return addr.Port
}

// ID returns the worker id: advertised host and HTTP port.
func (e *Engine) ID() string { return e.id }

// URL returns the engine's base URL, without a trailing slash.
func (e *Engine) URL() string { return "http://" + e.id }

// ControlURL returns the control port's base URL, "" without one.
func (e *Engine) ControlURL() string {
	if e.control == nil {
		return ""
	}
	addr, ok := e.control.Addr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	return "http://" + net.JoinHostPort(e.advertised(), itoa(addr.Port))
}

// KVEvents returns the publisher's endpoint, tcp://host:port; "" without one.
func (e *Engine) KVEvents() string { return e.tcp(e.zmq.pubPort) }

// KVReplay returns the replay socket's endpoint, tcp://host:port; "" without one.
func (e *Engine) KVReplay() string { return e.tcp(e.zmq.replayPort) }

func (e *Engine) tcp(port int) string {
	if port < 0 {
		return ""
	}
	return "tcp://" + net.JoinHostPort(e.advertised(), itoa(port))
}

// Worker returns the record that the engine registers. Tests that need no etcd
// put it into a fleet by hand.
func (e *Engine) Worker() *fleet.Worker {
	return &fleet.Worker{
		ID: e.id, URL: e.URL(), Host: e.advertised(), Port: e.port(), Model: e.cfg.Model, Engine: e.cfg.Engine,
		Role: e.cfg.Role, KVEvents: e.KVEvents(), KVReplay: e.KVReplay(), BlockSize: e.cfg.Cache.BlockSize, DPRank: -1, Transport: e.transport(),
		Protocol: e.cfg.PD.Protocol, Params: e.params(), DPSize: e.cfg.PD.Ranks,
		Endpoint: e.cfg.ForwarderEndpoint, Canary: e.canary(),
	}
}

func (e *Engine) transport() string {
	if e.nats != nil {
		return "nats"
	}
	return "http"
}

// Subscribed is closed once requests from the broker are taken; nil when the
// engine has no NATS side.
func (e *Engine) Subscribed() <-chan struct{} {
	if e.nats == nil {
		return nil
	}
	return e.nats.ready
}

// Info describes the engine as it is.
func (e *Engine) Info() Info {
	l := e.sched.load()
	batches, lost := e.pub.counts()
	return Info{
		WorkerID: e.id, URL: e.URL(), ControlURL: e.ControlURL(), KVEvents: e.KVEvents(), KVReplay: e.KVReplay(),
		Model: e.cfg.Model, Engine: string(e.cfg.Engine), Role: e.cfg.Role.String(), BlockSize: e.cfg.Cache.BlockSize,
		Born: e.born, Running: l.running, Waiting: l.waiting, BlocksUsed: l.used, BlocksCached: l.cached,
		EventsSent: batches, EventsLost: lost,
	}
}

// Receipts returns copies of the receipts kept, oldest first.
func (e *Engine) Receipts() []Receipt { return e.receipts.list("") }

// ClearReceipts forgets them.
func (e *Engine) ClearReceipts() { e.receipts.clear() }

// ClearCache empties the KV cache and publishes AllBlocksCleared. Blocks of
// running sequences can't be hit any more.
func (e *Engine) ClearCache() { e.sched.clearCache() }

// SetFault replaces the fault in force. Errors wrap [ErrFault], except when a
// closed port could not be opened again.
func (e *Engine) SetFault(spec Fault) error {
	e.fault.Lock()
	defer e.fault.Unlock()
	f, err := e.faults.set(spec, time.Now())
	if err != nil {
		return err
	}
	if e.fault.timer != nil {
		e.fault.timer.Stop()
	}
	if spec.ForMS > 0 {
		e.fault.timer = time.AfterFunc(time.Duration(spec.ForMS)*time.Millisecond, func() {
			if err := e.SetFault(Fault{}); err != nil && e.life.Err() == nil {
				e.log.LogAttrs(e.life, slog.LevelError, "fault not ended", slog.Any("error", err))
			}
		})
	}
	if f.is(faultRefuse) {
		e.gate.shut()
		return nil
	}
	if !f.is(faultHangAccept) {
		e.gate.release()
	}
	if err := e.gate.open(e.life); err != nil {
		return fmt.Errorf("open the port again: %w", err)
	}
	return nil
}

// Registered is closed once the record is in etcd, or at the Pod; nil when the engine does not
// register.
func (e *Engine) Registered() <-chan struct{} {
	if e.reg == nil {
		return nil
	}
	return e.reg.registered()
}
