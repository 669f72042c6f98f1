package extproc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server with real rooms behind it and a gateway's client in front.
type world struct {
	t        testing.TB
	server   *Server
	picker   *picker.Picker
	breakers *breaker.Set
	feed     *fleet.Feed
	log      *strings.Builder // of the server; read it after stop
	usage    []audit.Report   // what was audited; read it after stop

	conn   *grpc.ClientConn
	client extprocv3.ExternalProcessorClient
	stop   func() error // ends the server, waits for its streams
}

func mixed(id, model string) *fleet.Worker {
	host, _, _ := strings.Cut(id, ":")
	return &fleet.Worker{ID: id, URL: "http://" + id, Host: host, Port: 30000, Model: model, DPRank: -1, BlockSize: 16}
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Secure = false
	cfg.DrainDelay, cfg.DrainTimeout = 0, 10*time.Second
	return cfg
}

func newWorld(tb testing.TB, cfg Config, workers ...*fleet.Worker) *world {
	tb.Helper()
	w := buildWorld(tb, cfg, workers...)
	w.serve()
	return w
}

// buildWorld makes the rooms without a listener.
func buildWorld(tb testing.TB, cfg Config, workers ...*fleet.Worker) *world {
	tb.Helper()
	w := &world{t: tb, log: new(strings.Builder)}
	store := new(fleet.Store)
	w.feed = fleet.NewFeed(store)
	w.feed.Replace(workers)
	bc := breaker.DefaultConfig()
	bc.Threshold, bc.OriginThreshold = 2, 2
	w.breakers = breaker.NewSet(bc)
	pc := picker.DefaultConfig()
	pc.Seed = 1
	var err error
	if w.picker, err = picker.New(pc, store, kvindex.New(kvindex.Config{}), w.breakers); err != nil {
		tb.Fatal(err)
	}
	w.server, err = New(cfg, Deps{
		Picker:   w.picker,
		Preparer: prompt.NewPreparer(prompt.DefaultConfig(), nil),
		Store:    store,
		Log:      slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Audit: func(r audit.Report) {
			if r.Counted > 0 {
				w.usage = append(w.usage, r)
			}
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	w.server.pool.dirty = poisoned().dirty
	return w
}

func (w *world) serve() {
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(ctx, lis, nil) }()
	var err error
	w.conn, err = grpc.NewClient("passthrough:///epp", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.client = extprocv3.NewExternalProcessorClient(w.conn)
	stopped := false
	w.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		err := <-done
		return errors.Join(err, w.conn.Close())
	}
	w.t.Cleanup(func() {
		if err := w.stop(); err != nil {
			w.t.Error(err)
		}
		if held := w.held(); held != 0 {
			w.t.Errorf("%d reservations were never given back", held)
		}
	})
}

// held is how many picks are in flight.
func (w *world) held() int { return len(w.picker.Held(time.Now(), 0)) }

// gateway plays the data plane's part of one stream.
type gateway struct {
	w      *world
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func (w *world) open() *gateway {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	stream, err := w.client.Process(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cancel)
	return &gateway{w: w, stream: stream, cancel: cancel}
}

func (g *gateway) send(msgs ...*extprocv3.ProcessingRequest) {
	g.w.t.Helper()
	for _, m := range msgs {
		if err := g.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			g.w.t.Fatal(err)
		}
	}
}

func (g *gateway) receive() *extprocv3.ProcessingResponse {
	g.w.t.Helper()
	r, err := g.stream.Recv()
	if err != nil {
		g.w.t.Fatalf("no answer: %v", err)
	}
	return r
}

// finish half-closes the stream and expects the server to end it with OK and
// without another word.
func (g *gateway) finish() {
	g.w.t.Helper()
	if err := g.stream.CloseSend(); err != nil {
		g.w.t.Fatal(err)
	}
	g.ended()
}

func (g *gateway) ended() {
	g.w.t.Helper()
	r, err := g.stream.Recv()
	if !errors.Is(err, io.EOF) {
		g.w.t.Fatalf("the stream ended with %v (answer %v), want OK", err, r)
	}
}

// mutations are the headers that an answer sets and removes.
type mutations struct {
	set     map[string]string
	removed map[string]bool
}

func mutationsOf(m *extprocv3.HeaderMutation) mutations {
	out := mutations{map[string]string{}, map[string]bool{}}
	for _, h := range m.GetSetHeaders() {
		out.set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	for _, name := range m.GetRemoveHeaders() {
		out.removed[name] = true
	}
	return out
}

// routedHeaders expects the answer to request headers with a pick in it.
func (g *gateway) routedHeaders() mutations {
	g.w.t.Helper()
	r := g.receive()
	if r.GetRequestHeaders() == nil {
		g.w.t.Fatalf("got %v, want an answer to the request headers", r)
	}
	m := mutationsOf(r.GetRequestHeaders().GetResponse().GetHeaderMutation())
	g.checkRouted(r, m)
	return m
}

func (g *gateway) checkRouted(r *extprocv3.ProcessingResponse, m mutations) {
	g.w.t.Helper()
	destination := m.set[HeaderDestination]
	lb := r.GetDynamicMetadata().GetFields()[namespaceLB].GetStructValue().GetFields()[HeaderDestination].GetStringValue()
	if destination == "" || lb != destination {
		g.w.t.Fatalf("destination header %q and metadata %q: want the same, not empty", destination, lb)
	}
	g.checkControl(m)
}

// checkControl expects every control header to be set or removed, not both.
func (g *gateway) checkControl(m mutations) {
	g.w.t.Helper()
	for _, h := range controls {
		if _, set := m.set[h.name]; set == m.removed[h.name] {
			g.w.t.Errorf("header %s: set %t, removed %t", h.name, set, m.removed[h.name])
		}
	}
}

// streamedBody collects body pieces up to the one that ends the stream, or
// until n bytes came.
func (g *gateway) streamedBody(n int, eos bool) string {
	g.w.t.Helper()
	var b strings.Builder
	for {
		r := g.receive()
		piece := r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			piece = r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		}
		if piece == nil {
			g.w.t.Fatalf("got %v, want a streamed body", r)
		}
		b.Write(piece.GetBody())
		if piece.GetEndOfStream() {
			if !eos {
				g.w.t.Fatal("the body ended with end_of_stream")
			}
			return b.String()
		}
		if !eos && b.Len() >= n {
			return b.String()
		}
	}
}

// unchanged expects an answer that lets the message of kind k pass.
func (g *gateway) unchanged(k kind) {
	g.w.t.Helper()
	want := decode(g.w.t, g.w.server.asm.same(k))
	if r := g.receive(); !proto.Equal(r, want) {
		g.w.t.Fatalf("got %v, want %v", r, want)
	}
}

// immediate expects an ImmediateResponse and the end of the stream.
func (g *gateway) immediate() *extprocv3.ImmediateResponse {
	g.w.t.Helper()
	r := g.receive()
	if r.GetImmediateResponse() == nil {
		g.w.t.Fatalf("got %v, want an immediate response", r)
	}
	g.ended()
	return r.GetImmediateResponse()
}

const chatPath = "/v1/chat/completions"

func chat(model, text string) string {
	return `{"model":"` + model + `","messages":[{"role":"user","content":"` + text + `"}]}`
}

func post(path string, extra ...string) *extprocv3.ProcessingRequest {
	return requestHeaders(false, append([]string{":method", "POST", ":path", path, "content-type", "application/json", "x-request-id", "r-1"}, extra...)...)
}

func get(path string) *extprocv3.ProcessingRequest {
	return requestHeaders(true, ":method", "GET", ":path", path)
}
