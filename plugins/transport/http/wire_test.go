package http

import (
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/forward"
	"pointsman/internal/testkit"
)

func TestRequestHeads(t *testing.T) {
	tests := []struct {
		name string
		req  forward.Request
		want string
	}{
		{"a GET", forward.Request{Method: "GET", Target: "/v1/models?a=b"}, "GET /v1/models?a=b HTTP/1.1\r\nHost: h:1\r\n\r\n"},
		{"a POST without a body", forward.Request{Method: "POST", Target: "/"}, "POST / HTTP/1.1\r\nHost: h:1\r\nContent-Length: 0\r\n\r\n"},
		{"a POST", forward.Request{Method: "POST", Target: "/x", Body: []byte("abc")}, "POST /x HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\n"},
		{"a DELETE with a body", forward.Request{Method: "DELETE", Target: "/x", Body: []byte("abc")}, "DELETE /x HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\n"},
		{"a DELETE without a body", forward.Request{Method: "DELETE", Target: "/x"}, "DELETE /x HTTP/1.1\r\nHost: h:1\r\n\r\n"},
		{
			"a header of two values",
			forward.Request{Method: "GET", Target: "/", Header: nethttp.Header{"A": {"1", "2"}}},
			"GET / HTTP/1.1\r\nHost: h:1\r\nA: 1\r\nA: 2\r\n\r\n",
		},
		{"an escaped target", forward.Request{Method: "GET", Target: "/a%20b/%C3%A9"}, "GET /a%20b/%C3%A9 HTTP/1.1\r\nHost: h:1\r\n\r\n"},
	}
	for _, tc := range tests {
		got, err := appendHead(nil, "h:1", &tc.req)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %q, %v", tc.name, got, err)
		}
	}
}

// pair returns both ends of a loopback connection.
func pair(t *testing.T) (ours *conn, theirs *net.TCPConn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	nc, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); peer.Close() })
	tcp, _ := peer.(*net.TCPConn)
	return newConn(nc, nc, poolKey{addr: "a"}, new(sync.Pool)), tcp
}

func TestADeadConnectionIsSeenWithoutWriting(t *testing.T) {
	tests := map[string]func(*net.TCPConn){
		"closed":        func(c *net.TCPConn) { c.Close() },
		"half closed":   func(c *net.TCPConn) { _ = c.CloseWrite() },
		"reset":         func(c *net.TCPConn) { _ = c.SetLinger(0); c.Close() },
		"unasked bytes": func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 408 Timeout\r\n\r\n") },
	}
	for name, kill := range tests {
		ours, theirs := pair(t)
		for range 3 { // looking changes nothing
			if !ours.alive() {
				t.Errorf("%s: dead before its time", name)
			}
		}
		kill(theirs)
		testkit.Until(t, name+" seen", func() bool { return !ours.alive() })
	}
	ours, _ := pair(t)
	ours.close()
	if ours.alive() {
		t.Error("closed by us: alive")
	}
}

func TestThePoolLendsTheMostRecentLivingConnection(t *testing.T) {
	cfg := DefaultConfig()
	p := &pool{cfg: cfg}
	key := poolKey{addr: "a"}
	if p.get(key, false) != nil {
		t.Error("a connection from an empty pool")
	}
	first, _ := pair(t)
	second, _ := pair(t)
	third, theirs := pair(t)
	for _, c := range []*conn{first, second, third} {
		p.put(c)
	}
	theirs.Close()
	testkit.Until(t, "the third seen as dead", func() bool { return !third.alive() })
	if got := p.get(poolKey{addr: "a", tls: true}, false); got != nil {
		t.Error("a plain connection for a TLS worker")
	}
	if got := p.get(key, false); got != second {
		t.Error("not the most recent living one")
	}
	if got := p.get(key, false); got != first {
		t.Error("not the other one")
	}
	if got := p.get(key, false); got != nil || len(p.idle[key]) != 0 {
		t.Error("the pool is not empty")
	}

	p.put(first)
	if got := p.get(key, true); got != first {
		t.Error("a connection that its user looks at was not lent")
	}
	p.put(first)
	first.since = time.Now().Add(-cfg.IdleTimeout)
	if p.get(key, false) != nil {
		t.Error("a connection past its idle time was lent")
	}
	if first.alive() {
		t.Error("and it was not closed")
	}
}

func TestASweepTakesOnlyWhatIsOld(t *testing.T) {
	p := &pool{cfg: DefaultConfig()}
	now := time.Now()
	var conns []*conn
	for i := range 4 {
		c, _ := pair(t)
		p.put(c)
		c.since = now.Add(time.Duration(i-4) * time.Second) // -4 s, -3 s, -2 s, -1 s
		conns = append(conns, c)
	}
	p.sweep(now.Add(1500 * time.Millisecond)) // older than 4 s then: the first two
	if kept := p.idle[poolKey{addr: "a"}]; !slices.Equal(kept, conns[2:]) {
		t.Errorf("%d kept, want the last 2", len(kept))
	}
	if conns[0].alive() || conns[1].alive() || !conns[2].alive() || !conns[3].alive() {
		t.Error("the wrong ones were closed")
	}
	p.close()
	if conns[2].alive() || len(p.idle) != 0 {
		t.Error("close left something open")
	}
	none := &pool{cfg: Config{IdleTimeout: 0, MaxIdle: 5}}
	c, _ := pair(t)
	none.put(c)
	if c.alive() {
		t.Error("a pool that keeps nothing kept a connection")
	}
}

// One handler, reached by both protocols: a caller cannot tell them apart.
func TestBothProtocolsGiveOneAnswer(t *testing.T) {
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
		w.Header().Set("X-Connection", r.Header.Get("Connection"))
		switch r.URL.Path {
		case "/empty":
			w.WriteHeader(nethttp.StatusNoContent)
		case "/full":
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(nethttp.StatusTooManyRequests)
			_, _ = io.WriteString(w, "full")
		case "/moved":
			nethttp.Redirect(w, r, "/elsewhere", nethttp.StatusFound)
		case "/flushed":
			for range 5 {
				_, _ = w.Write(body)
				_ = nethttp.NewResponseController(w).Flush()
			}
		case "/broken":
			_, _ = w.Write(body)
			_ = nethttp.NewResponseController(w).Flush()
			panic(nethttp.ErrAbortHandler)
		default:
			_, _ = w.Write(body)
		}
	})
	servers := map[Protocol]*httptest.Server{}
	for _, protocol := range []Protocol{HTTP1, H2C} {
		srv := httptest.NewUnstartedServer(handler)
		srv.Config.Protocols = new(nethttp.Protocols)
		srv.Config.Protocols.SetHTTP1(protocol == HTTP1)
		srv.Config.Protocols.SetUnencryptedHTTP2(protocol == H2C)
		srv.Start()
		defer srv.Close()
		servers[protocol] = srv
	}
	for _, path := range []string{"/", "/?q=%20x", "/empty", "/full", "/moved", "/flushed", "/broken"} {
		for _, size := range []int{1, 5000, 300 << 10} {
			got := map[Protocol]result{}
			for protocol, srv := range servers {
				tr := newTransport(t, func(c *Config) { c.Protocol = protocol })
				req := post(strings.Repeat("z", size))
				req.Target = path
				got[protocol] = do(t, tr, workerAt(srv.Listener.Addr()), req)
				tr.Close()
			}
			one, two := got[HTTP1], got[H2C]
			if one.status == 0 || one.status != two.status || one.body != two.body || one.class != two.class || one.length != two.length {
				t.Errorf("%s with %d bytes:\nhttp1 %d, %d bytes, length %d, %v\nh2c   %d, %d bytes, length %d, %v", path, size,
					one.status, len(one.body), one.length, one.err, two.status, len(two.body), two.length, two.err)
				continue
			}
			for _, name := range []string{"X-Seen", "X-Connection", "Retry-After", "Location"} {
				if a, b := one.resp.Header.Get(name), two.resp.Header.Get(name); a != b {
					t.Errorf("%s: %s is %q and %q", path, name, a, b)
				}
			}
		}
	}
}
