package forward_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/admission"
	"pointsman/forward"
	"pointsman/internal/testkit"
)

// gated puts a gate before the picker.
func gated(out **admission.Gate, change func(*admission.Config)) option {
	cfg := admission.DefaultConfig()
	cfg.Mode = admission.Enforce
	change(&cfg)
	*out = admission.NewGate(cfg)
	return func(_ *forward.Config, d *forward.Deps) {
		d.Gate = *out
		d.Picker.OnRelease((*out).Wake)
	}
}

// busyEngine answers when it is told to, and knows how many it had at once.
type busyEngine struct {
	open, most atomic.Int64
	goOn       chan struct{}
}

func (b *busyEngine) script(c net.Conn, r receipt) bool {
	n := b.open.Add(1)
	for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
	}
	<-b.goOn
	b.open.Add(-1)
	return good(c, r)
}

// contract 2C, fc_max_outstanding: 16 with 40 held requests: never more than 16
// receipts open.
func TestFcMaxOutstandingNeverRunsMoreThanTheCeiling(t *testing.T) {
	b := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{b.script}, gated(&gate, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 16, 40, time.Minute }))
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if got := w.do(call{body: chatBody}); got.status != http.StatusOK || got.header.Get(admission.HeaderLimit) != "16" {
				t.Errorf("status %d, headers %v, body %s", got.status, got.header, got.body)
			}
		})
	}
	testkit.Until(t, "16 run and 24 wait", func() bool { s := gate.Snapshot(); return b.open.Load() == 16 && s.Inflight == 16 && s.Queued == 24 })
	close(b.goOn)
	wg.Wait()
	w.settled(40)
	if s := gate.Snapshot(); b.most.Load() != 16 || s.Inflight != 0 || s.Queued != 0 {
		t.Errorf("%d at once, left over %+v", b.most.Load(), s)
	}
}

func TestAClientThatLeavesTheQueueIsNeverSentToAWorker(t *testing.T) {
	b := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{b.script}, gated(&gate, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 1, 5, time.Minute }))
	first := make(chan reply, 1)
	go func() { first <- w.do(call{body: chatBody}) }()
	testkit.Until(t, "one runs", func() bool { return b.open.Load() == 1 })
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		resp, err := w.client.Do(w.request(ctx, call{body: streamBody}))
		if err == nil {
			resp.Body.Close()
		}
	}()
	testkit.Until(t, "one waits", func() bool { return gate.Snapshot().Queued == 1 })
	leave()
	testkit.Until(t, "nobody waits", func() bool { return gate.Snapshot().Queued == 0 })
	close(b.goOn)
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("status %d", got.status)
	}
	w.settled(2)
	if n := w.receipts(); n[0] != 1 {
		t.Errorf("the worker got %d requests, want 1", n[0])
	}
}

func TestAWaitInTheForwardersQueueEndsIn504WithItsLength(t *testing.T) {
	b := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{b.script}, gated(&gate, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 1, 5, 50*time.Millisecond }))
	go w.do(call{body: chatBody})
	testkit.Until(t, "one runs", func() bool { return b.open.Load() == 1 })
	got := w.do(call{body: chatBody})
	seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))
	if got.status != http.StatusGatewayTimeout || !strings.Contains(got.body, admission.CodeQueueTime) || !strings.Contains(got.body, `"queued_ms":5`) ||
		seconds < 1 || got.header.Get("Retry-After-Ms") == "" || got.header.Get("X-Should-Retry") != "" {
		t.Errorf("status %d, headers %v, body %s", got.status, got.header, got.body)
	}
	close(b.goOn)
	w.settled(2)
	if n := w.receipts(); n[0] != 1 {
		t.Errorf("the worker got %d requests, want 1", n[0])
	}
}

// contract 2C, max_total_inflight: the connection over the bound stays in the
// backlog, and one pause counts once.
func TestMaxTotalInflightPausesAcceptOncePerPause(t *testing.T) {
	const bound = 10
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	v := forward.NewValve(bound)
	reg := prometheus.NewRegistry()
	fatal(t, v.Register(reg))
	lis := v.Listen(inner)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), ReadHeaderTimeout: time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()

	var conns []net.Conn
	connect := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		fatal(t, err)
		conns = append(conns, c)
		return c
	}
	ask := func(c net.Conn, patience time.Duration) bool {
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		fatal(t, err)
		fatal(t, c.SetReadDeadline(time.Now().Add(patience)))
		n, _ := c.Read(make([]byte, 100))
		return n > 0
	}
	for range bound {
		if !ask(connect(), 5*time.Second) {
			t.Fatal("a connection below the bound is not served")
		}
	}
	eleventh := connect()
	if ask(eleventh, 100*time.Millisecond) {
		t.Error("the connection over the bound is served")
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP infera_router_accept_blocked_total How often accepting client connections was paused at the bound.\n# TYPE infera_router_accept_blocked_total counter\ninfera_router_accept_blocked_total 1\n"), "infera_router_accept_blocked_total"); err != nil {
		t.Error(err)
	}
	fatal(t, conns[0].Close())
	fatal(t, eleventh.SetReadDeadline(time.Now().Add(5*time.Second)))
	if n, err := eleventh.Read(make([]byte, 100)); n == 0 {
		t.Errorf("not served when there is room: %v", err)
	}
	fatal(t, srv.Close()) // a paused Accept ends too
	<-served
	for _, c := range conns {
		c.Close()
	}
}
