package http

import (
	"strings"
	"testing"
)

// corpus is raw responses and what must come of them.
var corpus = []struct {
	name   string
	raw    string
	head   bool // the request is a HEAD
	status int
	body   string
	class  string
	strict bool // net/http's client is laxer: no comparison
	reused bool // the connection may carry another request
}{
	{name: "a length", raw: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", reused: true},
	{name: "a length of zero", raw: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, reused: true},
	{name: "chunks", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", status: 200, body: "hello", reused: true},
	{name: "chunks in capitals with extensions", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\nA;x=y\r\n0123456789\r\n0;z\r\n\r\n", status: 200, body: "0123456789", reused: true},
	{name: "chunks with leading zeros", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0005\r\nhello\r\n000\r\n\r\n", status: 200, body: "hello", reused: true},
	{name: "trailers", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nhi\r\n0\r\nX-T: v\r\n\r\n", status: 200, body: "hi", reused: true},
	{name: "the end of the connection", raw: "HTTP/1.1 200 OK\r\n\r\nhello", status: 200, body: "hello"},
	{name: "HTTP/1.0", raw: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi"},
	{name: "Connection: close", raw: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi"},
	{name: "no reason phrase", raw: "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi", reused: true},
	{name: "no space behind the status", raw: "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi", reused: true},
	{name: "204", raw: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, reused: true},
	{name: "304 with a length", raw: "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", status: 304, strict: true, reused: true},
	{name: "HEAD", head: true, raw: "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", status: 200, reused: true},
	{name: "HEAD of chunks", head: true, raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", status: 200, reused: true},
	{name: "100 before the answer", raw: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi", reused: true},
	{name: "103 with headers before the answer", raw: "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi", reused: true},
	{name: "an error status", raw: "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno", status: 503, body: "no", reused: true},
	{name: "a redirect is not followed", raw: "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", status: 302, reused: true},
	{name: "a head of 40 KiB", raw: "HTTP/1.1 200 OK\r\nX-Big: " + strings.Repeat("a", 40<<10) + "\r\nContent-Length: 2\r\n\r\nhi", status: 200, body: "hi", reused: true},

	{name: "a cut length", raw: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", status: 200, body: "hello", class: "truncated"},
	{name: "cut chunk data", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello", status: 200, body: "hello", class: "truncated"},
	{name: "no last chunk", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", status: 200, body: "hello", class: "truncated"},
	{name: "half a last chunk", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", status: 200, body: "hello", class: "truncated"},
	{name: "a bad chunk size", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n", status: 200, body: "hello", class: "truncated"},
	{name: "a negative chunk size", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", status: 200, class: "truncated"},
	{name: "a chunk size that overflows", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nhello\r\n0\r\n\r\n", status: 200, class: "truncated"},
	{name: "data behind a chunk", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", status: 200, body: "he", class: "truncated"},
	{name: "a chunk line without CR", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\r\n0\r\n\r\n", status: 200, class: "truncated", strict: true},

	{name: "nothing", raw: "", class: "dispatched"},
	{name: "half a head", raw: "HTTP/1.1 200 OK\r\nContent-", class: "head"},
	{name: "no HTTP", raw: "SSH-2.0-OpenSSH\r\n\r\n", class: "head"},
	{name: "HTTP/2 on a plain connection", raw: "HTTP/2.0 200 OK\r\n\r\n", class: "head", strict: true},
	{name: "a status of two digits", raw: "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", class: "head"},
	{name: "a status below 100", raw: "HTTP/1.1 099 No\r\nContent-Length: 0\r\n\r\n", class: "head", strict: true},
	{name: "both length and chunks", raw: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", class: "head", strict: true},
	{name: "two equal lengths", raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", class: "head", strict: true},
	{name: "two lengths", raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", class: "head"},
	{name: "a list of lengths", raw: "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nhi", class: "head"},
	{name: "a signed length", raw: "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nhi", class: "head"},
	{name: "an empty length", raw: "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhi", class: "head"},
	{name: "an unknown coding", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhi", class: "head"},
	{name: "two codings", raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", class: "head"},
	{name: "a folded header", raw: "HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 0\r\n\r\n", class: "head", strict: true},
	{name: "a space before the colon", raw: "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nhi", class: "head", strict: true},
	{name: "a header without colon", raw: "HTTP/1.1 200 OK\r\nnonsense\r\nContent-Length: 0\r\n\r\n", class: "head"},
	{name: "a NUL in a value", raw: "HTTP/1.1 200 OK\r\nX-A: \x00\r\nContent-Length: 0\r\n\r\n", class: "head", strict: true},
	{name: "a bare CR in a value", raw: "HTTP/1.1 200 OK\r\nX-A: b\rX-B: c\r\nContent-Length: 0\r\n\r\n", class: "head", strict: true},
	{name: "bare LF line ends", raw: "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", class: "head", strict: true},
	{name: "a head above 64 KiB", raw: "HTTP/1.1 200 OK\r\nX-Big: " + strings.Repeat("a", 70<<10) + "\r\n\r\n", class: "head", strict: true},
	{name: "an upgrade", raw: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", class: "head", strict: true},
	{name: "endless informational responses", raw: strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), class: "head"},
}

func TestResponsesAreReadAsNetHTTPReadsThemOrMoreStrictly(t *testing.T) {
	for _, tc := range corpus {
		t.Run(tc.name, func(t *testing.T) {
			w := newScripted(t, say(tc.raw, false))
			req := post(`{"a":1}`)
			if tc.head {
				req.Method, req.Body = "HEAD", nil
			}
			got := do(t, newTransport(t, nil), w.worker(), req)
			if got.status != tc.status || got.body != tc.body || got.class != tc.class {
				t.Errorf("own client: status %d body %q error %q (%v); want %d %q %q",
					got.status, got.body, got.class, got.err, tc.status, tc.body, tc.class)
			}
			if n := len(w.requests()); n != 1 {
				t.Errorf("%d deliveries, want 1", n)
			}
			if tc.strict {
				return
			}
			std := do(t, oracle(t), w.worker(), req)
			if std.status != got.status || std.body != got.body || std.class != got.class ||
				std.length != got.length || std.delimited != got.delimited || std.trailer != got.trailer {
				t.Errorf("net/http: status %d body %q error %q length %d delimited %v trailer %q\nown:      status %d body %q error %q length %d delimited %v trailer %q",
					std.status, std.body, std.class, std.length, std.delimited, std.trailer,
					got.status, got.body, got.class, got.length, got.delimited, got.trailer)
			}
		})
	}
}

func TestAConnectionIsKeptOnlyWhenItsResponseLeftItClean(t *testing.T) {
	for _, tc := range corpus {
		if tc.class != "" {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			w := newScripted(t, say(tc.raw, tc.reused))
			tr := newTransport(t, nil)
			req := post(`{}`)
			if tc.head {
				req.Method, req.Body = "HEAD", nil
			}
			for range 3 {
				if got := do(t, tr, w.worker(), req); got.err != nil || got.body != tc.body {
					t.Fatalf("body %q, error %v", got.body, got.err)
				}
			}
			want := 3
			if tc.reused {
				want = 1
			}
			if n := w.connections(); n != want {
				t.Errorf("%d connections for 3 requests, want %d", n, want)
			}
		})
	}
}

func TestBytesBehindAResponseEndTheConnection(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", true))
	tr := newTransport(t, nil)
	for range 2 {
		if got := do(t, tr, w.worker(), post(`{}`)); got.body != "hi" || got.err != nil {
			t.Fatalf("body %q, error %v", got.body, got.err)
		}
	}
	if n := w.connections(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}
