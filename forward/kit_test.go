package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"

	httptransport "pointsman/plugins/transport/http"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start.func1"),
	)
}

const model = "m"

// receipt is a request as a worker saw it.
type receipt struct {
	head *http.Request
	body []byte
}

// script answers one request with raw bytes; false closes the connection.
type script func(c net.Conn, r receipt) bool

// engine is a scripted worker on a loopback socket.
type engine struct {
	lis    net.Listener
	script script
	gone   chan time.Time // when a client closed or reset a connection

	mu       sync.Mutex
	receipts []receipt
	conns    []net.Conn
	wg       sync.WaitGroup
}

func newEngine(tb testing.TB, s script) *engine {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	e := &engine{lis: lis, script: s, gone: make(chan time.Time, 1000)}
	tb.Cleanup(e.close)
	if s == nil { // refuses connections
		lis.Close()
		return e
	}
	e.wg.Add(1)
	go e.accept()
	return e
}

func (e *engine) accept() {
	defer e.wg.Done()
	for {
		c, err := e.lis.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		e.conns = append(e.conns, c)
		e.mu.Unlock()
		e.wg.Add(1)
		go e.serve(c)
	}
}

func (e *engine) serve(c net.Conn) {
	defer e.wg.Done()
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		head, err := http.ReadRequest(in)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				e.gone <- time.Now()
			}
			return
		}
		body, err := io.ReadAll(head.Body)
		if err != nil {
			return
		}
		r := receipt{head: head, body: body}
		if head.URL.Path != "/abort_request" { // is about a delivery, and none itself
			e.mu.Lock()
			e.receipts = append(e.receipts, r)
			e.mu.Unlock()
		}
		if !e.script(c, r) {
			return
		}
	}
}

func (e *engine) close() {
	e.lis.Close()
	e.mu.Lock()
	for _, c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

func (e *engine) got() []receipt {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]receipt(nil), e.receipts...)
}

// world is a forwarder with workers w1, w2, … behind it.
type world struct {
	t        *testing.T
	engines  []*engine
	store    *fleet.Store
	feed     *fleet.Feed
	breakers *breaker.Set
	picker   *picker.Picker
	server   *forward.Server
	reg      *prometheus.Registry
	logs     *syncBuffer
	url      string
	stop     func() error // ends Serve and returns its error
	client   *http.Client
}

type option func(*forward.Config, *forward.Deps)

func newWorld(t *testing.T, scripts []script, options ...option) *world {
	t.Helper()
	w := &world{t: t, store: new(fleet.Store), reg: prometheus.NewRegistry(), logs: new(syncBuffer)}
	w.feed = fleet.NewFeed(w.store)
	for _, s := range scripts {
		w.engines = append(w.engines, newEngine(t, s))
	}
	w.feed.Replace(w.fleet())
	w.breakers = breaker.NewSet(breaker.DefaultConfig())
	pc := picker.DefaultConfig()
	pc.Seed = 1
	var err error
	w.picker, err = picker.New(pc, w.store, kvindex.New(kvindex.DefaultConfig()), w.breakers)
	fatal(t, err)
	tr, err := httptransport.New(httptransport.DefaultConfig())
	fatal(t, err)
	t.Cleanup(tr.Close)
	cfg := forward.DefaultConfig()
	cfg.DrainDelay = 0
	preparer := prompt.NewPreparer(prompt.Config{}, nil)
	deps := forward.Deps{
		Picker: w.picker, Store: w.store, Preparer: func() *prompt.Preparer { return preparer },
		Transports: map[string]forward.Transport{"http": tr},
		Log:        slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, o := range options {
		o(&cfg, &deps)
	}
	w.server, err = forward.New(cfg, deps)
	fatal(t, err)
	fatal(t, w.server.Register(w.reg))
	w.serve()
	w.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

func (w *world) fleet() []*fleet.Worker {
	var out []*fleet.Worker
	for i, e := range w.engines {
		out = append(out, worker("w"+strconv.Itoa(i+1), e))
	}
	return out
}

func worker(id string, e *engine) *fleet.Worker {
	host, port, _ := net.SplitHostPort(e.lis.Addr().String())
	n, _ := strconv.Atoi(port)
	return &fleet.Worker{
		ID: id, URL: "http://" + e.lis.Addr().String(), Host: host, Port: n, Model: model,
		Engine: fleet.VLLM, BlockSize: 16, DPRank: -1, Transport: "http",
	}
}

func (w *world) serve() {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(w.t, err)
	w.url = "http://" + lis.Addr().String()
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, lis) }()
	var once sync.Once
	var result error
	w.stop = func() error {
		once.Do(func() {
			cancel()
			result = <-ended
		})
		return result
	}
	w.t.Cleanup(func() { _ = w.stop() })
}

func fatal(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
	proto  int
}

// call is a client's request.
type call struct {
	method string // POST if empty
	path   string // /v1/chat/completions if empty
	body   string
	header map[string]string
}

const (
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

func (w *world) request(ctx context.Context, c call) *http.Request {
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.path == "" {
		c.path = "/v1/chat/completions"
	}
	req, err := http.NewRequestWithContext(ctx, c.method, w.url+c.path, strings.NewReader(c.body))
	fatal(w.t, err)
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	return req
}

func (w *world) do(c call) reply {
	w.t.Helper()
	return w.with(w.client, c)
}

func (w *world) with(client *http.Client, c call) reply {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	resp, err := client.Do(w.request(ctx, c))
	fatal(w.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	resp.Header.Del("Date")
	return reply{status: resp.StatusCode, header: resp.Header, body: string(body), err: err, proto: resp.ProtoMajor}
}

// settled waits until every request has been counted and every reservation is
// back, and fails the test when that does not come.
func (w *world) settled(requests int) {
	w.t.Helper()
	var counted, held int
	var open float64
	testkit.Until(w.t, fmt.Sprintf("%d requests counted and nothing held", requests), func() bool {
		counted, open = 0, 0
		for _, m := range w.series("infera_request_duration_seconds") {
			counted += int(m.GetHistogram().GetSampleCount())
		}
		held = len(w.picker.Held(time.Now().Add(time.Hour), 0))
		for _, m := range w.series("infera_request_inflight") {
			open += m.GetGauge().GetValue()
		}
		return counted == requests && held == 0 && open == 0
	}, func() string {
		return fmt.Sprintf("%d requests counted; %d reservations held; %v in flight", counted, held, open)
	})
}

func (w *world) series(name string) []*dto.Metric {
	families, err := w.reg.Gather()
	fatal(w.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

// count returns the value of a counter, or a histogram's count, with the labels.
func (w *world) count(name string, labels ...string) int {
	total := 0.0
	for _, m := range w.series(name) {
		match := true
		for _, want := range labels {
			found := false
			for _, l := range m.GetLabel() {
				found = found || l.GetName()+"="+l.GetValue() == want
			}
			match = match && found
		}
		if match {
			total += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return int(total)
}

func (w *world) receipts() []int {
	var n []int
	for _, e := range w.engines {
		n = append(n, len(e.got()))
	}
	return n
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Scripts.

func raw(text string) script {
	return func(c net.Conn, _ receipt) bool {
		_, err := io.WriteString(c, text)
		return err == nil
	}
}

// rawClose sends text and closes the connection.
func rawClose(text string) script {
	return func(c net.Conn, _ receipt) bool {
		_, _ = io.WriteString(c, text)
		return false
	}
}

// rawReset sends text, waits for go-on if it is not nil, and resets.
func rawReset(text string, goOn <-chan struct{}) script {
	return func(c net.Conn, _ receipt) bool {
		_, _ = io.WriteString(c, text)
		if goOn != nil {
			<-goOn
		}
		if tc, ok := c.(*net.TCPConn); ok {
			_ = tc.SetLinger(0)
		}
		return false
	}
}

func jsonReply(status int, body string, headers ...string) string {
	var h strings.Builder
	h.WriteString("HTTP/1.1 " + strconv.Itoa(status) + " X\r\nContent-Type: application/json\r\n")
	for _, line := range headers {
		h.WriteString(line + "\r\n")
	}
	return h.String() + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(data string) string {
	return strconv.FormatInt(int64(len(data)), 16) + "\r\n" + data + "\r\n"
}

// sse is a whole stream, each part in a chunk of its own.
func sse(parts ...string) string {
	var out strings.Builder
	out.WriteString(sseHead)
	for _, p := range parts {
		out.WriteString(chunk(p))
	}
	return out.String() + "0\r\n\r\n"
}

// sseOpen is a stream that has not ended.
func sseOpen(parts ...string) string { return strings.TrimSuffix(sse(parts...), "0\r\n\r\n") }

const (
	role = `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	tok0 = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"tok0 "},"finish_reason":null}]}` + "\n\n"
	tok1 = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"tok1 "},"finish_reason":null}]}` + "\n\n"
	stop = `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done = "data: [DONE]\n\n"
)

var (
	goodStream = sse(role, tok0, tok1, stop, done)
	goodBody   = role + tok0 + tok1 + stop + done
	goodJSON   = jsonReply(200, `{"choices":[{"message":{"content":"ok"}}]}`)
)

// good answers as the request asks: a stream or an object.
func good(c net.Conn, r receipt) bool {
	if bytes.Contains(r.body, []byte(`"stream":true`)) {
		return raw(goodStream)(c, r)
	}
	return raw(goodJSON)(c, r)
}

func direct(c *forward.Config, _ *forward.Deps) { c.Mode = forward.Direct }

func change(f func(*forward.Config)) option {
	return func(c *forward.Config, _ *forward.Deps) { f(c) }
}

var toW1 = map[string]string{"X-Worker-Instance-Id": "w1"}
