package forward

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// piecewise is a connection that delivers n bytes at a time.
type piecewise struct {
	net.Conn
	data []byte
	n    int
}

func (p *piecewise) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.n)], p.data)
	p.data = p.data[n:]
	return n, nil
}

// The corpus of failover S6, and what must not be taken for it.
func TestS6GuardedRequests(t *testing.T) {
	const post = "POST / HTTP/1.1\r\nHost: x\r\n"
	tests := []struct {
		name, bytes string
		refused     bool
	}{
		{"no body", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", false},
		{"a length", post + "Content-Length: 5\r\n\r\nhello", false},
		{"a length of nothing", post + "Content-Length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n", false},
		{"chunks", post + "Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n", false},
		{"line ends within a body", post + "Content-Length: 6\r\n\r\na\nb\n\n\nGET / HTTP/1.1\r\n\r\n", false},
		{"an absolute target", "GET http://x/y HTTP/1.1\r\nHost: X\r\n\r\n", false},
		{"a URL in a query", "GET /a?u=http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", false},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\n\n", false},

		{"CL.TE", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
		{"TE.CL", post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", true},
		{"TE.TE", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
		{"an unknown coding", post + "Transfer-Encoding: xchunked\r\n\r\n", true},
		{"a list of codings", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", true},
		{"a coding in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
		{"a list of lengths", post + "Content-Length: 5, 6\r\n\r\nhello", true},
		{"two equal lengths", post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", true},
		{"two lengths", post + "content-length: 5\r\nContent-Length: 6\r\n\r\nhello", true},
		{"a signed length", post + "Content-Length: +5\r\n\r\nhello", true},
		{"a hexadecimal length", post + "Content-Length: 0x5\r\n\r\nhello", true},
		{"an empty length", post + "Content-Length:\r\n\r\n", true},
		{"LF alone in the head", "POST / HTTP/1.1\nHost: x\n\n", true},
		{"LF alone behind a header", "POST / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", true},
		{"CR within a header", post + "X: a\rContent-Length: 5\r\n\r\n", true},
		{"NUL in a header", post + "X: a\x00b\r\n\r\n", true},
		{"a folded header", post + "X: a\r\n b\r\n\r\n", true},
		{"a folded coding", post + "Transfer-Encoding:\r\n chunked\r\n\r\n", true},
		{"an absolute target of another host", "GET http://evil/y HTTP/1.1\r\nHost: x\r\n\r\n", true},
		{"a signed chunk size", post + "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n", true},
		{"a chunk size of another radix", post + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", true},
		{"no chunk size", post + "Transfer-Encoding: chunked\r\n\r\n\r\n", true},
		{"a chunk that goes on", post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n", true},
		{"LF alone behind a chunk size", post + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", true},
		{"the second of two requests", post + "Content-Length: 5\r\n\r\nhello" + post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", true},
		{"a head without end", "GET / HTTP/1.1\r\nX: " + strings.Repeat("a", maxLine+1), true},
	}
	for _, tc := range tests {
		for _, size := range []int{1, 2, 7, 1 << 20} {
			c := &guardedConn{Conn: &piecewise{data: []byte(tc.bytes), n: size}}
			got, err := io.ReadAll(c)
			if refused := errors.Is(err, errFraming); refused != tc.refused {
				t.Errorf("%s, %d bytes at a time: refused %v", tc.name, size, refused)
			}
			if !tc.refused && string(got) != tc.bytes {
				t.Errorf("%s: %q was read", tc.name, got)
			}
		}
	}
}

// FuzzGuard checks that the pieces do not matter, and that nothing is changed.
func FuzzGuard(f *testing.F) {
	f.Add([]byte("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"), 3)
	f.Add([]byte("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		one, oneErr := io.ReadAll(&guardedConn{Conn: &piecewise{data: data, n: len(data) + 1}})
		some, someErr := io.ReadAll(&guardedConn{Conn: &piecewise{data: data, n: max(n, 1)}})
		if errors.Is(oneErr, errFraming) != errors.Is(someErr, errFraming) {
			t.Errorf("refused at once: %v, in pieces: %v", oneErr, someErr)
		}
		if !bytes.HasPrefix(data, some) || oneErr == nil && !bytes.Equal(one, data) {
			t.Error("bytes were changed")
		}
	})
}
