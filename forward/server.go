package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/reports"
	"pointsman/trust"
)

// Deps are the rooms that a [Server] uses.
type Deps struct {
	Picker *picker.Picker // required
	Store  *fleet.Store   // required

	// Preparer returns what turns prompts into blocks. It is called when a
	// request first has to be scored, so that direct mode loads no tokenizer
	// before a request without headers comes; the function keeps what it made.
	// It may return nil, and may itself be nil: then picks go by load.
	Preparer func() *prompt.Preparer

	// Transports by the name that a worker registers (fleet.Worker.Transport);
	// a worker that names none is reached by "http". At least one is required.
	Transports map[string]Transport

	// Connectors by the prefill/decode protocol that workers register. Without
	// one for a protocol, its pairs are refused (501), so the picker's
	// Config.Protocols should be theirs; without any, no pair is picked.
	Connectors map[string]Connector

	// Audit is told what engines counted of the requests that were picked for here
	// and served whole. It is called from any goroutine and must not block.
	// Optional.
	Audit func(audit.Report)

	// Reports counts what is in flight for the fleet's endpoint pickers; nil for
	// none of them.
	Reports *reports.Tally

	// PickerID is this router's own ID in the reports of others: that of the picks
	// it makes itself. Optional.
	PickerID string

	// Gate admits requests; nil admits all.
	Gate *admission.Gate

	// Tickets check routing headers; required with [TrustHMAC].
	Tickets *trust.Tickets
	// TLS is how connections of clients are secured; nil is not at all.
	TLS *tls.Config
	// Salts say what becomes of cache salts; nil passes them.
	Salts *trust.Salts

	// Ready reports why requests cannot be served, beyond what the fleet tells;
	// nil when they can. Optional.
	Ready func() error

	// Routes are answered here instead of by a worker: exact paths, such as
	// /metrics or /debug/picks, and with a slash at the end all below. Optional.
	Routes map[string]http.Handler

	Log *slog.Logger // required
}

func (d Deps) validate() error {
	var errs []error
	if d.Picker == nil {
		errs = append(errs, errors.New("no picker"))
	}
	if d.Store == nil {
		errs = append(errs, errors.New("no fleet store"))
	}
	if len(d.Transports) == 0 {
		errs = append(errs, errors.New("no transports"))
	}
	if d.Log == nil {
		errs = append(errs, errors.New("no logger"))
	}
	return errors.Join(errs...)
}

// Server forwards requests. Create it with [New].
type Server struct {
	cfg      atomic.Pointer[Config] // each request keeps the one it started with
	deps     Deps
	metrics  *metrics
	bufs     buffers
	prefixes []string          // of Deps.Routes
	bodies   *admission.Budget // memory of the bodies held
	budget   retryBudget       // of repetitions
	pending  pending           // attempts that wait for a worker's first byte
	records  records           // of finished requests
	prepared sync.Pool         // of *scored
	scans    sync.Pool         // of *prompt.Request
	tickets  sync.Pool         // of *admitted
	tails    sync.Pool         // of *audit.Tail
	idles    lapses            // of workers that say nothing
	firsts   lapses            // of first tokens
	draining atomic.Bool
	legs     sync.WaitGroup // prefill legs that may outlive their request
}

// New returns a server. It does no I/O.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	if cfg.Trust == TrustHMAC && deps.Tickets == nil {
		return nil, errors.New("forward: tickets are to be checked, and there is nothing to check them with")
	}
	bodies := admission.NewBudget(cfg.MaxBuffered)
	s := &Server{deps: deps, metrics: newMetrics(bodies), prefixes: prefixesOf(deps.Routes), bodies: bodies}
	s.cfg.Store(&cfg)
	return s, nil
}

// SetConfig makes cfg the settings of the requests that come from now on; those
// under way keep theirs, with every timer they run. An invalid cfg changes nothing.
// It may be called at any time.
func (s *Server) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	s.cfg.Store(&cfg)
	s.bodies.SetLimit(cfg.MaxBuffered)
	return nil
}

// Handler returns the server's HTTP handler.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Drain makes /ready answer 503. Requests are still served: those who route to
// this forwarder need time to see it.
func (s *Server) Drain() { s.draining.Store(true) }

// Limits of a client connection that are not knobs (failover S8).
const (
	readHeaderTimeout = 10 * time.Second
	clientIdleTimeout = 120 * time.Second
	maxHeaderBytes    = 64 << 10
	maxH2Streams      = 250
	abortGrace        = 2 * time.Second // for error events to reach the clients of streams that the drain broke off
)

// errDraining ends the requests that outlive the drain.
var errDraining = errors.New("the forwarder is shutting down")

// Serve accepts connections on lis until ctx is done, as HTTP/1.1 or, with
// prior knowledge, as unencrypted HTTP/2. Then it drains: /ready turns 503 at
// once, accepting ends after Config.DrainDelay, and running requests have
// Config.DrainTimeout to finish; those that do not are ended in an error event.
// It returns nil after a shutdown, and closes lis.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	base, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	srv := &http.Server{
		Handler:           s.Handler(),
		ConnContext:       withConn,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       clientIdleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxH2Streams},
		Protocols:         new(http.Protocols),
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)

	fleet, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // requests outlive ctx
	defer unwatch()
	var watching sync.WaitGroup // its own: another Serve goes on watching
	watching.Go(func() { s.watch(fleet) })
	failed := make(chan error, 1)
	inner := lis
	if s.deps.TLS != nil { // below the guard, which wants to see what net/http sees
		inner = tls.NewListener(lis, s.deps.TLS)
	}
	limit := func() time.Duration { return s.cfg.Load().WriteTimeout }
	go func() { failed <- srv.Serve(guardedListener{Listener: inner, bufs: &s.bufs, limit: limit}) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	s.Drain()
	err := s.shutdown(context.WithoutCancel(ctx), srv, abort, failed)
	unwatch()
	watching.Wait()
	s.legs.Wait() // each ends prefillGrace after its request
	if served := <-failed; err == nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	return err
}

// shutdown ends srv in the order of Serve's comment. failed is only watched, so
// that a listener that breaks meanwhile does not make the delay pass in vain.
func (s *Server) shutdown(ctx context.Context, srv *http.Server, abort context.CancelCauseFunc, failed chan error) error {
	cfg := s.cfg.Load()
	if cfg.DrainDelay > 0 {
		delay := time.NewTimer(cfg.DrainDelay)
		select {
		case <-delay.C:
		case err := <-failed:
			failed <- err
		}
		delay.Stop()
	}
	srv.SetKeepAlivesEnabled(false)
	if s.deps.Gate != nil {
		s.deps.Gate.Drain()
	}
	finish, cancel := context.WithTimeout(ctx, cfg.DrainTimeout)
	defer cancel()
	if err := srv.Shutdown(finish); err == nil {
		return nil
	}
	s.deps.Log.LogAttrs(ctx, slog.LevelInfo, "drain timeout reached, ending the remaining requests",
		slog.Duration("drain_timeout", cfg.DrainTimeout))
	abort(errDraining)
	grace, cancelGrace := context.WithTimeout(ctx, abortGrace)
	defer cancelGrace()
	if err := srv.Shutdown(grace); err != nil {
		return srv.Close()
	}
	return nil
}
