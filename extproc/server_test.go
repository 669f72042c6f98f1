package extproc

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"pointsman/admission"
	"pointsman/prompt"
	"pointsman/prompt/audit"
)

func TestConfigReportsEveryFault(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	bad := Config{MaxInFlight: -1, DestinationPort: 70000, DrainDelay: -1, DrainTimeout: -1}
	err := bad.Validate()
	for _, what := range []string{"max body", "max message", "chunk size", "max in flight", "destination port", "drain delay", "drain timeout", "ready interval"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s is not reported in %v", what, err)
		}
	}
	if _, err := New(bad, Deps{}); err == nil || !strings.Contains(err.Error(), "required") {
		t.Errorf("New with no rooms: %v", err)
	}
}

func TestABugEndsItsRequestAlone(t *testing.T) {
	t.Run("in the request", func(t *testing.T) {
		w := newWorld(t, testConfig(), mixed(workerID, "m"))
		w.server.deps.Preparer = prompt.NewPreparer(prompt.DefaultConfig(), brokenTokenizer{})
		g := w.open()
		g.send(post(chatPath), requestBody(chat("m", strings.Repeat("hello ", 100)), true))
		checkOpenAIError(t, g.immediate(), 500, "internal_error", false)
		g = w.open()
		g.send(get("/v1/models"))
		g.routedHeaders()
		g.finish()
		if n := testutil.ToFloat64(w.server.metrics.panics); n != 1 {
			t.Errorf("%v panics counted, want 1", n)
		}
	})
	t.Run("in the response", func(t *testing.T) {
		w := newWorld(t, testConfig(), mixed(workerID, "m"))
		w.server.deps.Audit = func(audit.Report) { panic("a bug") }
		g := w.routedChat(fullDuplex)
		g.send(responseHeaders(false, ":status", "200"), responseBody(`{"usage":{"prompt_tokens":1}}`, true))
		g.unchanged(kindResponseHeaders)
		checkOpenAIError(t, g.immediate(), 500, "internal_error", false)
		if w.held() != 0 {
			t.Error("the pick was not given back")
		}
	})
}

type brokenTokenizer struct{}

func (brokenTokenizer) Tokenize(context.Context, *prompt.Request, []uint32) ([]uint32, error) {
	panic("a bug")
}

// stuckTokenizer waits until its request is cancelled.
type stuckTokenizer struct{ entered chan struct{} }

func (s stuckTokenizer) Tokenize(ctx context.Context, _ *prompt.Request, dst []uint32) ([]uint32, error) {
	close(s.entered)
	<-ctx.Done()
	return dst, ctx.Err()
}

func TestAClientThatLeavesWhileWeThinkCostsNothing(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	stuck := stuckTokenizer{make(chan struct{})}
	w.server.deps.Preparer = prompt.NewPreparer(prompt.DefaultConfig(), stuck)
	g := w.open()
	g.send(post(chatPath), requestBody(chat("m", strings.Repeat("hello ", 100)), true))
	<-stuck.entered
	g.cancel()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(w.server.metrics.byEnding[endAborted][0]); n != 1 || w.held() != 0 {
		t.Errorf("%v aborted requests, %d in flight", n, w.held())
	}
}

// dial opens a second kind of client on a listener.
func dial(t *testing.T, addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

// served runs a server on real ports.
type served struct {
	server  *Server
	main    net.Listener
	health  net.Listener
	ready   atomic.Bool
	logs    *syncBuilder
	cancel  context.CancelFunc
	stopped chan error
}

type syncBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuilder) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuilder) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func serveOn(t *testing.T, cfg Config) *served {
	t.Helper()
	inner := newWorld(t, testConfig(), mixed(workerID, "m"))
	s := &served{main: listen(t), health: listen(t), logs: &syncBuilder{}, stopped: make(chan error, 1)}
	cfg.ReadyInterval = time.Millisecond
	var err error
	s.server, err = New(cfg, Deps{
		Picker: inner.picker, Preparer: inner.server.deps.Preparer, Ready: s.ready.Load,
		Log: slog.New(slog.NewTextHandler(s.logs, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.ready.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.stopped <- s.server.Serve(ctx, s.main, s.health) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-s.stopped:
		case <-time.After(20 * time.Second):
			t.Error("the server does not stop")
		}
	})
	return s
}

func TestHealthIsToldUnderFiveNamesOnBothPorts(t *testing.T) {
	s := serveOn(t, testConfig())
	for _, lis := range []net.Listener{s.main, s.health} {
		client := healthpb.NewHealthClient(dial(t, lis.Addr().String(), insecure.NewCredentials()))
		check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
			r, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil {
				t.Fatalf("Check(%q): %v", service, err)
			}
			return r.GetStatus()
		}
		for _, ready := range []bool{true, false} {
			s.ready.Store(ready)
			want := healthpb.HealthCheckResponse_NOT_SERVING
			if ready {
				want = healthpb.HealthCheckResponse_SERVING
			}
			for _, service := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"} {
				if got := check(service); got != want {
					t.Errorf("ready %t: Check(%q) = %v", ready, service, got)
				}
			}
			if got := check("liveness"); got != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("ready %t: liveness is %v", ready, got)
			}
		}
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown service: %v", err)
		}
		s.ready.Store(true)
	}
}

func TestHealthWatchFollowsReadinessAndEndsWithTheServer(t *testing.T) {
	s := serveOn(t, testConfig())
	client := healthpb.NewHealthClient(dial(t, s.main.Addr().String(), insecure.NewCredentials()))
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	next := func() healthpb.HealthCheckResponse_ServingStatus {
		r, failure := watch.Recv()
		if failure != nil {
			t.Fatal(failure)
		}
		return r.GetStatus()
	}
	if got := next(); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("at first: %v", got)
	}
	s.ready.Store(false)
	if got := next(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("not ready: %v", got)
	}
	s.ready.Store(true)
	if got := next(); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("ready again: %v", got)
	}
	s.cancel()
	if got := next(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("draining: %v", got)
	}
	if _, err = watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
	unknown, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	if err == nil { // the server may be gone already
		if r, err := unknown.Recv(); err == nil && r.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Errorf("an unknown service: %v", r)
		}
	}
}

func TestDrainLetsOpenStreamsEnd(t *testing.T) {
	s := serveOn(t, testConfig())
	client := extprocv3.NewExternalProcessorClient(dial(t, s.main.Addr().String(), insecure.NewCredentials()))
	stream, err := client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
		if failure := stream.Send(m); failure != nil {
			t.Fatal(failure)
		}
		r, failure := stream.Recv()
		if failure != nil {
			t.Fatal(failure)
		}
		return r
	}
	exchange(get("/v1/models"))
	watch, err := healthpb.NewHealthClient(dial(t, s.health.Addr().String(), insecure.NewCredentials())).
		Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s.cancel()
	for { // NOT_SERVING, then the end of the watch: the server is waiting for streams
		if _, err := watch.Recv(); err != nil {
			break
		}
	}
	exchange(responseHeaders(false, ":status", "200"))
	exchange(responseBody("x", true))
	select {
	case err := <-s.stopped:
		t.Fatalf("the server stopped (%v) with a stream open", err)
	default:
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := <-s.stopped; err != nil {
		t.Errorf("Serve after a drain: %v", err)
	}
	s.stopped <- nil
	if !strings.Contains(s.logs.String(), "msg=drained") {
		t.Errorf("log: %s", s.logs)
	}
}

func TestDrainCutsStreamsAtItsDeadline(t *testing.T) {
	cfg := testConfig()
	cfg.DrainTimeout = 10 * time.Millisecond
	s := serveOn(t, cfg)
	client := extprocv3.NewExternalProcessorClient(dial(t, s.main.Addr().String(), insecure.NewCredentials()))
	stream, err := client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(get("/v1/models")); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.cancel()
	if err := <-s.stopped; err != nil {
		t.Errorf("Serve after a drain: %v", err)
	}
	s.stopped <- nil
	if n := s.server.metrics.open.Load(); n != 0 {
		t.Errorf("%d streams are open after the server stopped", n)
	}
}

func TestAListenerThatFailsEndsTheServer(t *testing.T) {
	inner := newWorld(t, testConfig(), mixed(workerID, "m"))
	lis := listen(t)
	_ = lis.Close()
	if err := inner.server.Serve(t.Context(), lis, nil); err == nil {
		t.Error("Serve on a closed listener returned nil")
	}
}

func TestSecureServingIsSelfSignedByDefault(t *testing.T) {
	cfg := testConfig()
	cfg.Secure = true
	s := serveOn(t, cfg)
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}).
		DialContext(t.Context(), "tcp", s.main.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	state := conn.(*tls.Conn).ConnectionState()
	_ = conn.Close()
	if state.NegotiatedProtocol != "h2" {
		t.Errorf("ALPN gave %q", state.NegotiatedProtocol)
	}
	if _, ok := state.PeerCertificates[0].PublicKey.(*ecdsa.PublicKey); !ok || state.PeerCertificates[0].NotAfter.Before(time.Now().AddDate(9, 0, 0)) {
		t.Errorf("certificate: %v", state.PeerCertificates[0])
	}
	client := extprocv3.NewExternalProcessorClient(dial(t, s.main.Addr().String(),
		credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	stream, err := client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(get("/v1/models")); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.GetRequestHeaders() == nil {
		t.Errorf("over TLS: %v, %v", r, err)
	}
	_ = stream.CloseSend()
}

func TestMetricsAreWellNamedAndRegisterOnce(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	reg := prometheus.NewPedanticRegistry()
	if err := w.server.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := w.server.Register(reg); err == nil {
		t.Error("registered twice")
	}
	g := w.routedChat(none)
	g.finish()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "pointsman_epp_") {
			t.Errorf("metric %s", f.GetName())
		}
	}
	if n := testutil.CollectAndCount(w.server.metrics.pick); n != 1 {
		t.Errorf("%d pick histograms", n)
	}
}

// TestManyStreamsAtOnce drives pooled memory hard: every body must come back
// as it was sent, whatever buffers were reused meanwhile.
func TestManyStreamsAtOnce(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"), mixed("10.0.0.2:30000", "m"))
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for i := range 30 {
				body := chat("m", strings.Repeat(fmt.Sprintf("%d-%d ", c, i), 1+(i*i*97+c*13)%20000))
				if err := roundTrip(w, body, 1+(i*7919)%40000); err != nil {
					t.Errorf("client %d request %d: %v", c, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func roundTrip(w *world, body string, chunk int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := w.client.Process(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(post(chatPath)); err != nil {
		return err
	}
	for rest := body; ; {
		n := min(chunk, len(rest))
		if err := stream.Send(requestBody(rest[:n], n == len(rest))); err != nil {
			return err
		}
		if rest = rest[n:]; rest == "" {
			break
		}
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	var got strings.Builder
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		piece := r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		got.Write(piece.GetBody())
		if piece.GetEndOfStream() {
			break
		}
	}
	if got.String() != body {
		return fmt.Errorf("a body of %d bytes came back wrong (%d bytes)", len(body), got.Len())
	}
	event := strings.Repeat("e", len(body)/3)
	if err := stream.Send(responseHeaders(false, ":status", "200")); err != nil {
		return err
	}
	if err := stream.Send(responseBody(event, true)); err != nil {
		return err
	}
	got.Reset()
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		piece := r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		got.Write(piece.GetBody())
		if piece.GetEndOfStream() {
			break
		}
	}
	if got.String() != event {
		return fmt.Errorf("a response of %d bytes came back wrong", len(event))
	}
	return stream.CloseSend()
}

// While load balancers look away, the server says NOT_SERVING and still works.
func TestNewStreamsAreTakenDuringTheDrainDelay(t *testing.T) {
	cfg := testConfig()
	cfg.DrainDelay = time.Hour // the server is stopped by its listener below
	s := serveOn(t, cfg)
	conn := dial(t, s.main.Addr().String(), insecure.NewCredentials())
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s.server.health.drain()
	for {
		r, failure := watch.Recv()
		if failure != nil {
			t.Fatal(failure)
		}
		if r.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING {
			break
		}
	}
	live, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "liveness"})
	if err != nil || live.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("liveness while draining: %v, %v", live, err)
	}
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err = stream.Send(get("/v1/models")); err != nil {
		t.Fatal(err)
	}
	if r, failure := stream.Recv(); failure != nil || r.GetRequestHeaders() == nil {
		t.Errorf("a new stream while draining: %v, %v", r, failure)
	}
	_ = stream.CloseSend()
	_ = s.main.Close() // Serve returns with the listener's error
	if err := <-s.stopped; err == nil {
		t.Error("Serve returned nil after its listener failed")
	}
	s.stopped <- nil
}

func TestEndingsAreCountedByClass(t *testing.T) {
	m := newMetrics(admission.NewBudget(0), func() int { return 0 })
	for _, c := range []struct {
		ending ending
		status int
		code   string
	}{
		{endComplete, 200, "2xx"},
		{endComplete, 0, "none"},
		{endComplete, 999, "none"},
		{endComplete, -1, "none"},
		{endAborted, 101, "1xx"},
		{endRefused, 503, "5xx"},
		{endUnobserved, 302, "3xx"},
	} {
		before := testutil.ToFloat64(m.requests.WithLabelValues(c.ending.String(), c.code))
		m.end(c.ending, c.status)
		if got := testutil.ToFloat64(m.requests.WithLabelValues(c.ending.String(), c.code)); got != before+1 {
			t.Errorf("%v with status %d is not counted as %s", c.ending, c.status, c.code)
		}
	}
	m.refuse(418)
	if testutil.ToFloat64(m.otherCode) != 1 {
		t.Error("a status of another kind is not counted as other")
	}
	if n := testutil.CollectAndCount(m.requests); n != int(endings)*classes {
		t.Errorf("%d series of requests, want %d: labels must stay bounded", n, int(endings)*classes)
	}
}
