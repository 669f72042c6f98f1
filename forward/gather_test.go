package forward

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// countingListener counts the writes to its connections.
type countingListener struct {
	net.Listener
	writes *atomic.Int32
}

type countingConn struct {
	net.Conn
	writes *atomic.Int32
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.writes}, err
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// A burst, of the size given, goes out when it is flushed; another with the end.
func TestABurstIsOneWrite(t *testing.T) {
	const small, burst, huge = 100, 12 << 10, 60 << 10
	tests := []struct {
		name, proto string
		size        int
		abort       bool
		most        int32 // writes
	}{
		{"small", "HTTP/1.1", small, false, 2},
		{"a burst", "HTTP/1.1", burst, false, 2},
		{"more than is gathered", "HTTP/1.1", huge, false, 6},
		{"an older client", "HTTP/1.0", burst, false, 8},
		{"an abort", "HTTP/1.1", burst, true, 2},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var writes atomic.Int32
			var bufs buffers
			srv := &http.Server{ConnContext: withConn, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				x := &exchange{cfg: new(Config), w: w, r: r, rc: *http.NewResponseController(w), client: connOf(r.Context())}
				x.conn = x.gathering()
				for i, f := range []flushing{flush, noFlush} {
					if gone := x.write(bytes.Repeat([]byte{'a' + byte(i)}, tc.size), f); gone != nil {
						t.Error(gone)
					}
				}
				if tc.abort {
					panic(http.ErrAbortHandler)
				}
			})}
			go srv.Serve(guardedListener{Listener: countingListener{lis, &writes}, bufs: &bufs, limit: func() time.Duration { return time.Minute }})
			defer srv.Close()
			c, err := net.Dial("tcp", lis.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err = io.WriteString(c, "GET / "+tc.proto+"\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if (err != nil) != tc.abort {
				t.Errorf("the body ends in %v", err)
			}
			if want := strings.Repeat("a", tc.size) + strings.Repeat("b", tc.size); string(body) != want {
				t.Errorf("%d bytes, want %d", len(body), len(want))
			}
			if n := writes.Load(); n > tc.most {
				t.Errorf("%d writes, want %d at most", n, tc.most)
			}
		})
	}
}
