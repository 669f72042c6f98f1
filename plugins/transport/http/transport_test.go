package http

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/forward"
	"pointsman/internal/testkit"
)

func TestTheRequestArrivesAsItWasGiven(t *testing.T) {
	for _, size := range []int{0, 10, oneWrite, oneWrite + 1, 2 << 20} {
		w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true))
		req := post(strings.Repeat("x", size))
		req.Header["Traceparent"] = []string{"00-a-b-01"}
		req.Header["X-Multi"] = []string{"1", "2"}
		if got := do(t, newTransport(t, nil), w.worker(), req); got.err != nil {
			t.Fatal(got.err)
		}
		got := w.requests()
		if len(got) != 1 {
			t.Fatalf("%d deliveries, want 1", len(got))
		}
		r := got[0]
		if sha256.Sum256(r.body) != sha256.Sum256(req.Body) {
			t.Errorf("a body of %d bytes arrived as %d others", size, len(r.body))
		}
		if r.head.RequestURI != req.Target || r.head.Method != nethttp.MethodPost || r.head.Host != w.lis.Addr().String() {
			t.Errorf("arrived as %s %s for host %s", r.head.Method, r.head.RequestURI, r.head.Host)
		}
		if r.head.ContentLength != int64(size) || len(r.head.Header["X-Multi"]) != 2 || r.head.Header.Get("Traceparent") == "" {
			t.Errorf("length %d, headers %v", r.head.ContentLength, r.head.Header)
		}
	}
}

func TestARequestThatCouldSmuggleAnotherIsNotSent(t *testing.T) {
	tests := map[string]func(*forward.Request){
		"a space in the target":        func(r *forward.Request) { r.Target = "/a b" },
		"a line end in the target":     func(r *forward.Request) { r.Target = "/a\r\nX: y" },
		"an absolute target":           func(r *forward.Request) { r.Target = "http://evil/" },
		"no target":                    func(r *forward.Request) { r.Target = "" },
		"a line end in the method":     func(r *forward.Request) { r.Method = "GET\r\n" },
		"a line end in a header value": func(r *forward.Request) { r.Header["X-A"] = []string{"b\r\nX-B: c"} },
		"a colon in a header name":     func(r *forward.Request) { r.Header["X:A"] = []string{"b"} },
	}
	for name, spoil := range tests {
		w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true))
		req := post("{}")
		spoil(req)
		got := do(t, newTransport(t, nil), w.worker(), req)
		if got.class != "write" || !errors.Is(got.err, errRequest) {
			t.Errorf("%s: error %v, want a refusal", name, got.err)
		}
		if n := w.connections(); n != 0 {
			t.Errorf("%s: the worker was connected to", name)
		}
	}
}

func TestARefusedConnectionFailsInTheDialStage(t *testing.T) {
	w := newScripted(t, say("", false))
	worker := w.worker()
	w.close()
	for name, tr := range map[string]*Transport{"own": newTransport(t, nil), "net/http": oracle(t)} {
		got := do(t, tr, worker, post("{}"))
		if got.class != "dial" || !errors.Is(got.err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want a refused dial", name, got.err)
		}
	}
}

func TestTheConnectTimeoutIsApplied(t *testing.T) {
	addr := blackHole(t)
	for name, protocol := range map[string]Protocol{"own": HTTP1, "h2c": H2C} {
		tr := newTransport(t, func(c *Config) { c.Protocol, c.ConnectTimeout = protocol, 100*time.Millisecond })
		start := time.Now()
		got := do(t, tr, workerAt(addr), post("{}"))
		took := time.Since(start)
		if got.class != "dial" {
			t.Errorf("%s: %v, want a failed dial", name, got.err)
		}
		if took < 90*time.Millisecond || took > 3*time.Second {
			t.Errorf("%s: took %s, want some 100ms", name, took)
		}
	}
}

// blackHole returns an address that never completes a handshake: a listener
// whose backlog is full.
func blackHole(t *testing.T) net.Addr {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	if err != nil {
		t.Skip(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Skip(err)
	}
	in4, _ := sa.(*syscall.SockaddrInet4)
	addr := &net.TCPAddr{IP: net.IP(in4.Addr[:]), Port: in4.Port}
	for range 10 { // fill the backlog
		c, err := net.DialTimeout("tcp", addr.String(), 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Skip("the backlog does not fill on this system")
	return nil
}

func TestAConnectionThatDiesTellsHowFarTheRequestGot(t *testing.T) {
	reset := func(c net.Conn) {
		if tc, ok := c.(*net.TCPConn); ok {
			_ = tc.SetLinger(0)
		}
		c.Close()
	}
	w := newScripted(t, func(c net.Conn, _ received) bool { reset(c); return false })
	if got := do(t, newTransport(t, nil), w.worker(), post("{}")); got.class != "dispatched" {
		t.Errorf("reset after the request: %v, want dispatched", got.err)
	}
	if n := len(w.requests()); n != 1 {
		t.Errorf("%d deliveries, want 1: a dispatched request must not be repeated here", n)
	}

	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := lis.Accept()
		if err == nil {
			_, _ = c.Read(make([]byte, 100))
			reset(c)
		}
	}()
	if got := do(t, newTransport(t, nil), workerAt(lis.Addr()), post(strings.Repeat("x", 30<<20))); got.class != "write" {
		t.Errorf("reset within the request: %v, want write", got.err)
	}
	<-done
}

// A server that checks a key answers before it reads the body, and then closes
// with bytes unread, which resets the connection: the answer must not be lost.
func TestAWorkerMayRefuseABodyBeforeItHasReadIt(t *testing.T) {
	for name, drains := range map[string]bool{"and drain it": true, "and reset": false} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := lis.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Read(make([]byte, 1024))
			_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 3\r\n\r\nkey")
			if drains {
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		got := do(t, newTransport(t, nil), workerAt(lis.Addr()), post(strings.Repeat("x", 16<<20)))
		if got.status != 401 || got.body != "key" || got.err != nil {
			t.Errorf("%s: status %d body %q error %v", name, got.status, got.body, got.err)
		}
		lis.Close()
		<-done
	}
}

func TestADeadIdleConnectionIsReplacedWithoutAnAttempt(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", false)) // closes without saying so
	tr := newTransport(t, nil)
	for i := range 5 {
		if got := do(t, tr, w.worker(), post("{}")); got.err != nil {
			t.Fatalf("request %d: %v", i, got.err)
		}
		untilDead(t, tr, keyOf(w.worker())) // what is closed while it is written to is another matter
	}
	if n := len(w.requests()); n != 5 {
		t.Errorf("%d deliveries of 5 requests", n)
	}
}

// untilDead waits until the idle connection to a worker, if one was kept, has
// noticed that the worker closed it.
func untilDead(t *testing.T, tr *Transport, key poolKey) {
	t.Helper()
	c := tr.pool.pop(key)
	if c == nil {
		return
	}
	testkit.Until(t, "the worker's end of the connection closed", func() bool { return !c.alive() })
	tr.pool.push(c)
}

func TestIdleConnectionsAreBoundedInNumberAndTime(t *testing.T) {
	hold := make(chan struct{})
	w := newScripted(t, func(c net.Conn, _ received) bool {
		<-hold
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		return err == nil
	})
	tr := newTransport(t, func(c *Config) { c.MaxIdle, c.IdleTimeout = 2, time.Minute })
	done := make(chan result, 5)
	for range 5 {
		go func() { done <- do(t, tr, w.worker(), post("{}")) }()
	}
	close(hold)
	for range 5 {
		if got := <-done; got.err != nil {
			t.Fatal(got.err)
		}
	}
	if n := len(tr.pool.idle[keyOf(w.worker())]); n > 2 {
		t.Errorf("%d connections kept, want at most 2", n)
	}
	tr.pool.sweep(time.Now().Add(59 * time.Second))
	if len(tr.pool.idle) != 1 {
		t.Error("connections were closed before their time")
	}
	tr.pool.sweep(time.Now().Add(61 * time.Second))
	if len(tr.pool.idle) != 0 {
		t.Error("connections outlived the idle timeout")
	}
}

func TestCancelingClosesTheConnectionAtOnce(t *testing.T) {
	stages := map[string]string{
		"before the head":    "",
		"within the head":    "HTTP/1.1 200",
		"before the body":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"within the body":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
		"of a fixed length":  "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel",
		"of a close-limited": "HTTP/1.1 200 OK\r\n\r\nhel",
	}
	for name, raw := range stages {
		t.Run(name, func(t *testing.T) {
			sent := make(chan struct{}, 1)
			w := newScripted(t, func(c net.Conn, _ received) bool {
				_, _ = io.WriteString(c, raw)
				sent <- struct{}{}
				return true
			})
			tr := newTransport(t, nil)
			why := errors.New("no more interest")
			ctx, cancel := context.WithCancelCause(t.Context())
			failed := make(chan error, 1)
			go func() {
				resp, err := tr.Do(ctx, w.worker(), post("{}"))
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				failed <- err
			}()
			<-sent
			start := time.Now()
			cancel(why)
			<-w.gone
			if took := time.Since(start); took > time.Second {
				t.Errorf("the worker saw it after %s", took)
			}
			err := <-failed
			var typed *forward.Error
			if !errors.Is(err, why) || !errors.As(err, &typed) {
				t.Errorf("error %v, want a typed one with the cause", err)
			}
		})
	}
}

func TestClosingAnUnfinishedBodyTellsTheWorker(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", true))
	resp, err := newTransport(t, nil).Do(t.Context(), w.worker(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	resp.Body.Close() // once more does no harm
	<-w.gone
	if _, err := resp.Body.Read(make([]byte, 1)); class(err) != "body" {
		t.Errorf("a read after Close returned %v", err)
	}
}

func TestReadReturnsWhatIsThereWithoutWaitingForMore(t *testing.T) {
	more := make(chan struct{})
	w := newScripted(t, func(c net.Conn, _ received) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n3\r\ngh")
		<-more
		_, _ = io.WriteString(c, "i\r\n0\r\n\r\n")
		return true
	})
	resp, err := newTransport(t, nil).Do(t.Context(), w.worker(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 100)
	got := ""
	for got != "abcdefgh" {
		n, rerr := resp.Body.Read(buf)
		if rerr != nil || n == 0 {
			t.Fatalf("%d bytes, error %v behind %q", n, rerr, got)
		}
		got += string(buf[:n])
	}
	close(more)
	rest, err := io.ReadAll(resp.Body)
	if string(rest) != "i" || err != nil {
		t.Errorf("rest %q, error %v", rest, err)
	}
}

func TestABurstOfChunksComesInOneReadWithItsEnd(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat("2\r\nhi\r\n", 50)+"0\r\n\r\n", true))
	resp, err := newTransport(t, nil).Do(t.Context(), w.worker(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := resp.Body.Read(make([]byte, 4096))
	if n != 100 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes and %v, want 100 and EOF", n, err)
	}
}

func TestWorkerSocketsHaveNoDelayAndKeepAlive(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", true))
	tr := newTransport(t, func(c *Config) { c.KeepAlive = 33 * time.Second })
	if got := do(t, tr, w.worker(), post("{}")); got.err != nil {
		t.Fatal(got.err)
	}
	c := tr.pool.pop(keyOf(w.worker()))
	defer c.close()
	tc, ok := c.raw.(syscall.Conn)
	if !ok {
		t.Fatalf("a %T", c.raw)
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var noDelay, idle int
	err = raw.Control(func(fd uintptr) {
		noDelay, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
		idle, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
	})
	if err != nil || noDelay != 1 || idle != 33 {
		t.Errorf("TCP_NODELAY %d, TCP_KEEPIDLE %d, error %v", noDelay, idle, err)
	}
}

func TestWorkersAreReachedOverTLSAndIPv6(t *testing.T) {
	hello := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Proto+" "+string(body))
	})
	srv := httptest.NewUnstartedServer(hello)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	worker := workerAt(srv.Listener.Addr())
	worker.URL = srv.URL
	for protocol, want := range map[Protocol]string{HTTP1: "HTTP/1.1 {}", H2C: "HTTP/2.0 {}"} {
		tr := newTransport(t, func(c *Config) {
			c.Protocol, c.ConnectTimeout = protocol, 5*time.Second
			c.TLS = func() *tls.Config { return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} }
		})
		for range 2 {
			if got := do(t, tr, worker, post("{}")); got.body != want || got.err != nil {
				t.Errorf("%s: body %q, error %v", protocol, got.body, got.err)
			}
		}
		tr.Close()
	}
	got := do(t, newTransport(t, func(c *Config) { c.ConnectTimeout = 5 * time.Second }), worker, post("{}"))
	if got.class != "dial" {
		t.Errorf("a certificate of an unknown authority: %v, want a failed dial", got.err)
	}

	v6 := scriptedOn(t, "[::1]:0", say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", true))
	if got := do(t, newTransport(t, nil), v6.worker(), post("{}")); got.body != "hi" || !strings.HasPrefix(v6.requests()[0].head.Host, "[::1]:") {
		t.Errorf("IPv6: %q, error %v", got.body, got.err)
	}
}

func TestH2CBehavesLikeHTTP1(t *testing.T) {
	gone := make(chan struct{}, 1)
	srv := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/hang":
			nethttp.NewResponseController(w).Flush()
			<-r.Context().Done()
			gone <- struct{}{}
		case "/cut":
			w.Write([]byte("part"))
			nethttp.NewResponseController(w).Flush()
			panic(nethttp.ErrAbortHandler)
		default:
			w.Header().Set("Trailer", "X-T")
			w.Write([]byte(r.Proto + " "))
			nethttp.NewResponseController(w).Flush()
			w.Write(body)
			w.Header().Set("X-T", "v")
		}
	}))
	srv.Config.Protocols = new(nethttp.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	worker := workerAt(srv.Listener.Addr())
	tr := newTransport(t, func(c *Config) { c.Protocol = H2C })

	req := post(strings.Repeat("y", 1<<20))
	if got := do(t, tr, worker, req); got.err != nil || got.body != "HTTP/2.0 "+string(req.Body) || got.trailer != "X-T: v\r\n" {
		t.Errorf("%d bytes, trailer %q, error %v", len(got.body), got.trailer, got.err)
	}
	req = post("{}")
	req.Target = "/cut"
	if got := do(t, tr, worker, req); got.class != "truncated" || got.body != "part" {
		t.Errorf("a reset stream: body %q, error %v", got.body, got.err)
	}
	req.Target = "/hang"
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := tr.Do(ctx, worker, req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-gone
	if _, err := io.ReadAll(resp.Body); class(err) != "body" || !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: %v", err)
	}
	resp.Body.Close()
	tr.Close()
}

func TestRunClosesEverythingAtItsEnd(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", true))
	tr := newTransport(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- tr.Run(ctx) }()
	do(t, tr, w.worker(), post("{}"))
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	<-w.gone
}

func TestConfigNamesAllItsFaults(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	bad := Config{Protocol: "h3", ConnectTimeout: time.Hour, IdleTimeout: -1, MaxIdle: -1, KeepAlive: -1}
	err := bad.Validate()
	for _, want := range []string{"h3", "connect timeout", "idle timeout", "max idle", "keep-alive"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
	if _, err := New(bad); err == nil {
		t.Error("New took a bad config")
	}
}

func BenchmarkDo(b *testing.B) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &nethttp.Server{Handler: nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"ok":true}`)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	defer func() { srv.Close(); <-done }()
	tr, err := New(DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	worker := workerAt(lis.Addr())
	req := post(strings.Repeat("x", 400))
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.Do(b.Context(), worker, req)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = resp.Body.Read(buf)
		}
		resp.Body.Close()
	}
}
