package forward_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/forward"
)

func h2cClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestAClientsDisconnectReachesTheWorkerWithinASecond(t *testing.T) {
	half := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
	tests := []struct {
		name, body, said string
	}{
		{"an object, before the head", chatBody, ""},
		{"an object, within its body", chatBody, half},
		{"a stream, before the head", streamBody, ""},
		{"a stream, before an event", streamBody, sseOpen()},
		{"a stream, held at its role", streamBody, sseOpen(role)},
		{"a stream, running", streamBody, sseOpen(tok0)},
		{"an unknown path", "", ""},
	}
	for _, protocol := range []string{"HTTP/1.1", "h2c"} {
		for _, tc := range tests {
			t.Run(protocol+": "+tc.name, func(t *testing.T) {
				said := make(chan struct{}, 2)
				silent := func(c net.Conn, _ receipt) bool {
					_, _ = io.WriteString(c, tc.said)
					said <- struct{}{}
					return true
				}
				w := newWorld(t, []script{silent, silent})
				client := w.client
				if protocol == "h2c" {
					client = h2cClient(t)
				}
				c := call{body: tc.body}
				if tc.body == "" {
					c.method, c.path = "GET", "/metrics-of-engine"
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					resp, err := client.Do(w.request(ctx, c))
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				<-said
				left := time.Now()
				cancel()
				var seen time.Time
				select {
				case seen = <-w.engines[0].gone:
				case seen = <-w.engines[1].gone:
				case <-time.After(5 * time.Second):
					t.Fatal("the worker never saw it")
				}
				if took := seen.Sub(left); took > time.Second {
					t.Errorf("the worker saw it after %s", took)
				}
				<-ended
				w.settled(1)
				if n := w.receipts(); n[0]+n[1] != 1 {
					t.Errorf("deliveries %v: an abandoned request was repeated", n)
				}
				if w.count("pointsman_forward_client_disconnects_total") != 1 || w.count("infera_request_duration_seconds", "outcome=client_gone") != 1 {
					t.Error("not counted as a client's disconnect")
				}
				if !w.breakers.Circuit("w1").Allows(time.Now()) {
					t.Error("the worker was blamed")
				}
			})
		}
	}
}

func TestALargePromptArrivesWhole(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 400<<10) + `"}]}`
	for name, client := range map[string]*http.Client{"HTTP/1.1": nil, "h2c": h2cClient(t)} {
		w := newWorld(t, []script{good})
		if client == nil {
			client = w.client
		}
		if got := w.with(client, call{body: body}); got.status != 200 {
			t.Fatalf("%s: status %d body %s", name, got.status, got.body)
		}
		r := w.engines[0].got()[0]
		if sha256.Sum256(r.body) != sha256.Sum256([]byte(body)) || r.head.ContentLength != int64(len(body)) {
			t.Errorf("%s: %d bytes of %d arrived", name, len(r.body), len(body))
		}
	}
}

func TestH2CClientsAreServed(t *testing.T) {
	w := newWorld(t, []script{good})
	client := h2cClient(t)
	if got := w.with(client, call{body: streamBody}); got.proto != 2 || got.body != goodBody {
		t.Errorf("HTTP/%d, body %q", got.proto, got.body)
	}
	w = newWorld(t, []script{rawClose(sseOpen(tok0))})
	got := w.with(client, call{body: streamBody})
	rest, _ := strings.CutPrefix(got.body, tok0)
	checkTerminal(t, rest, "upstream_stream_truncated")
	if got.err != nil {
		t.Errorf("the stream ended in %v", got.err)
	}
}

func TestBodiesOverTheLimitAreRefused(t *testing.T) {
	limit := change(func(c *forward.Config) { c.MaxBody = 1000 })
	w := newWorld(t, []script{good}, limit)
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 2000) + `"}`
	for name, send := range map[string]io.Reader{
		"announced": strings.NewReader(body),
		"chunked":   io.MultiReader(strings.NewReader(body)),
	} {
		req := w.request(t.Context(), call{path: "/v1/completions"})
		r2, err := http.NewRequestWithContext(t.Context(), http.MethodPost, req.URL.String(), send)
		fatal(t, err)
		resp, err := w.client.Do(r2)
		fatal(t, err)
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if e := errorOf(t, reply{body: string(text), header: resp.Header}); resp.StatusCode != http.StatusRequestEntityTooLarge || e.Code != "request_too_large" || e.Type != "invalid_request_error" {
			t.Errorf("%s: status %d %+v", name, resp.StatusCode, e)
		}
	}
	exact := `{"model":"m","prompt":"` + strings.Repeat("x", 1000-25) + `"}`
	if got := w.do(call{path: "/v1/completions", body: exact}); len(exact) != 1000 || got.status != 200 {
		t.Errorf("a body of %d bytes: status %d", len(exact), got.status)
	}
	if n := len(w.engines[0].got()); n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
	w.settled(3)
}

func TestBadRequestsAreAnsweredHereAndReachNoWorker(t *testing.T) {
	tests := []struct {
		name   string
		call   call
		status int
		code   string
	}{
		{"malformed JSON", call{body: `{"model":`}, 400, "invalid_json"},
		{"no object", call{body: `[1]`}, 400, ""},
		{"no body", call{}, 400, ""},
		{"no model", call{body: `{"messages":[]}`}, 400, "no_model"},
		{"model twice", call{body: `{"model":"m","model":"n"}`}, 400, "duplicate_key"},
		{"deep nesting", call{body: `{"model":"m","x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`}, 400, "too_deep"},
		{"a wrong type", call{body: `{"model":7}`}, 400, "wrong_type"},
		{"a second value", call{body: chatBody + chatBody}, 400, ""},
		{"a compressed body", call{body: "\x1f\x8b", header: map[string]string{"Content-Encoding": "gzip"}}, 415, "unsupported_encoding"},
		{"an unknown model", call{body: `{"model":"gpt-9","messages":[{"role":"user","content":"x"}]}`}, 404, "model_not_found"},
	}
	w := newWorld(t, []script{good})
	for _, tc := range tests {
		got := w.do(tc.call)
		e := errorOf(t, got)
		if got.status != tc.status || tc.code != "" && e.Code != tc.code || e.Type != "invalid_request_error" {
			t.Errorf("%s: status %d %+v", tc.name, got.status, e)
		}
		if len(got.header.Get("X-Infera-Request-Id")) != 36 {
			t.Errorf("%s: no request ID", tc.name)
		}
	}
	if n := len(w.engines[0].got()); n != 0 {
		t.Errorf("%d deliveries", n)
	}
	w.settled(len(tests))
	if n := w.count("infera_request_duration_seconds", "outcome=4xx"); n != len(tests) {
		t.Errorf("%d counted as 4xx", n)
	}

	got := w.do(call{path: "/v1/messages", body: `{"model":`})
	if got.status != 400 || !strings.Contains(got.body, `"type":"error"`) || !strings.Contains(got.body, `"invalid_request_error"`) {
		t.Errorf("Anthropic: status %d body %s", got.status, got.body)
	}
}

func TestAnEmptyFleetIsUnavailable(t *testing.T) {
	w := newWorld(t, nil)
	got := w.do(call{body: chatBody})
	if got.status != 404 && got.status != 503 {
		t.Errorf("status %d body %s", got.status, got.body)
	}
	got = w.do(call{path: "/tokenize", body: `{"prompt":"x"}`})
	if got.status != 503 && got.status != 404 {
		t.Errorf("status %d body %s", got.status, got.body)
	}
}

func TestHeadersArePassedOnEndToEnd(t *testing.T) {
	w := newWorld(t, []script{raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Engine: e\r\nConnection: X-Hop\r\nX-Hop: h\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\n{}")})
	sent := map[string]string{
		"Authorization": "Bearer key", "Traceparent": "00-1-2-01", "Tracestate": "a=b", "Baggage": "c=d", "B3": "1-2-1",
		"X-Request-Id": "client-7", "X-Custom": "v", "Cookie": "k=v", "User-Agent": "ua",
	}
	withheld := map[string]string{
		"Connection": "X-Private", "X-Private": "p", "Proxy-Authorization": "x", "Te": "trailers", "Keep-Alive": "9",
		"X-Worker-Instance-Id": "w9", "X-Prefill-Instance-Id": "w9", "X-Worker-Fallback-Ids": "w9",
		"X-Gateway-Destination-Endpoint": "evil:1", "X-Gateway-Destination-Endpoint-Subset": "evil:1",
		"X-Prefiller-Host-Port": "evil:1", "X-Data-Parallel-Rank": "3", "X-Data-Parallel-Host-Port": "evil:1", "X-Infera-Route-Sig": "s",
	}
	header := map[string]string{}
	maps.Copy(header, sent)
	maps.Copy(header, withheld)
	got := w.do(call{path: "/v1/chat/completions?a=b%20c", body: chatBody, header: header})
	if got.status != 200 {
		t.Fatalf("status %d body %s", got.status, got.body)
	}
	r := w.engines[0].got()[0]
	for k, v := range sent {
		if arrived := r.head.Header.Get(k); arrived != v && (k != "X-Request-Id" || !strings.HasPrefix(arrived, v+"/m1/")) {
			t.Errorf("%s arrived as %q", k, r.head.Header.Get(k))
		}
	}
	for k := range withheld {
		if r.head.Header.Get(k) != "" && k != "Connection" {
			t.Errorf("%s arrived as %q", k, r.head.Header.Get(k))
		}
	}
	if r.head.Host != w.engines[0].lis.Addr().String() || r.head.RequestURI != "/v1/chat/completions?a=b%20c" {
		t.Errorf("host %q, target %q", r.head.Host, r.head.RequestURI)
	}
	if got.header.Get("X-Engine") != "e" || len(got.header["Set-Cookie"]) != 2 || got.header.Get("Content-Length") != "2" || got.header.Get("X-Infera-Request-Id") != "client-7" {
		t.Errorf("response headers %v", got.header)
	}
	for _, k := range []string{"X-Hop", "Keep-Alive"} {
		if got.header.Get(k) != "" {
			t.Errorf("%s was passed to the client", k)
		}
	}
}

func TestTrailersArePassedOn(t *testing.T) {
	w := newWorld(t, []script{raw(sseHead + chunk(tok0) + chunk(done) + "0\r\nX-Usage: 7\r\n\r\n")})
	resp, err := w.client.Do(w.request(t.Context(), call{body: streamBody}))
	fatal(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != tok0+done || resp.Trailer.Get("X-Usage") != "7" {
		t.Errorf("body %q, trailers %v, error %v", body, resp.Trailer, err)
	}
}

func TestPlainBodiesAreRelayedWholeOrVisiblyBroken(t *testing.T) {
	big := `{"x":"` + strings.Repeat("y", 300<<10) + `"}`
	tests := []struct {
		name   string
		script script
		body   string // exact, when it does not break
		status int
		breaks bool
		length bool // Content-Length is known to the client
	}{
		{name: "a small object", script: raw(jsonReply(200, `{"a":1}`)), body: `{"a":1}`, length: true},
		{name: "an empty body", script: raw(jsonReply(200, "")), length: true},
		{name: "an object in chunks", script: raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(`{"a"`) + chunk(`:1}`) + "0\r\n\r\n"), body: `{"a":1}`, length: true},
		{name: "a large object", script: raw(jsonReply(200, big)), body: big, length: true},
		{name: "a large object in chunks", script: raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(big) + "0\r\n\r\n"), body: big},
		{name: "a large object to the connection's end", script: rawClose("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + big), body: big},
		{name: "no JSON in spite of its type, with a length", script: raw(jsonReply(200, `{"a"`)), body: `{"a"`, length: true},
		{name: "204", script: raw("HTTP/1.1 204 No Content\r\n\r\n"), status: 204},
		{name: "304", script: raw("HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"), status: 304},
		{name: "text", script: rawClose("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"), body: "hello"},

		{name: "a large object cut by its length", script: rawClose("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999999\r\n\r\n" + big), breaks: true, length: true},
		{name: "a large object cut within chunks", script: rawClose("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(big)), breaks: true},
		{name: "a large object cut at the connection's end", script: rawClose("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + big[:200<<10]), breaks: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, []script{tc.script})
			w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp, err := w.client.Do(w.request(t.Context(), call{body: chatBody}))
			fatal(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			w.settled(1)
			if (err != nil) != tc.breaks {
				t.Errorf("the body ended in %v after %d bytes", err, len(body))
			}
			if tc.breaks {
				if w.count("infera_request_duration_seconds", "outcome=truncated") != 1 {
					t.Error("not counted as truncated")
				}
				return
			}
			want := tc.status
			if want == 0 {
				want = 200
			}
			if resp.StatusCode != want || string(body) != tc.body {
				t.Errorf("status %d, %d bytes, want %d and %d", resp.StatusCode, len(body), want, len(tc.body))
			}
			if tc.length && resp.ContentLength != int64(len(tc.body)) {
				t.Errorf("Content-Length %d, want %d", resp.ContentLength, len(tc.body))
			}
		})
	}
}

func TestAHeadRequestKeepsTheLengthOfItsGet(t *testing.T) {
	w := newWorld(t, []script{raw("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\n")})
	got := w.do(call{method: "HEAD", path: "/version"})
	if got.status != 200 || got.header.Get("Content-Length") != "99" || got.body != "" {
		t.Errorf("status %d headers %v", got.status, got.header)
	}
}

func TestEveryPathOfAnEngineIsPassedThrough(t *testing.T) {
	w := newWorld(t, []script{raw(jsonReply(200, `{}`))})
	calls := []call{
		{path: "/v1/messages", body: `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`},
		{path: "/v1/responses", body: `{"model":"m","input":"x"}`},
		{path: "/v1/embeddings", body: `{"model":"m","input":["x"]}`},
		{path: "/v1/embeddings", body: `{"model":"an-adapter-only-the-engine-knows","input":"x"}`},
		{path: "/tokenize", body: `{"prompt":"x"}`},
		{path: "/v1/audio/transcriptions", body: "--b\r\nnot json"},
		{path: "/v1/embeddings", body: "\x1f\x8b\x00", header: map[string]string{"Content-Encoding": "gzip"}},
		{method: "GET", path: "/version"},
		{method: "PUT", path: "/x", body: "y"},
		{method: "DELETE", path: "/v1/responses/r1"},
		{method: "PATCH", path: "/x", body: "y"},
	}
	for i, c := range calls {
		got := w.do(c)
		seen := w.engines[0].got()
		if got.status != 200 || len(seen) != i+1 {
			t.Fatalf("%s %s: status %d %s", c.method, c.path, got.status, got.body)
		}
		last := seen[i]
		if last.head.URL.Path != c.path || c.method != "" && last.head.Method != c.method || !bytes.Equal(last.body, []byte(c.body)) {
			t.Errorf("%s %s arrived as %s %s with %q", c.method, c.path, last.head.Method, last.head.URL, last.body)
		}
	}
}

func TestClientSocketsHaveNoDelay(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	seen := make(chan net.Conn, 1)
	w := newWorld(t, []script{good})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(ctx, &watched{lis, seen}) }()
	w.url = "http://" + lis.Addr().String()
	w.do(call{body: streamBody})
	tc, ok := (<-seen).(*net.TCPConn)
	if !ok {
		t.Fatal("no TCP connection")
	}
	sc, err := tc.SyscallConn()
	fatal(t, err)
	value := 0
	fatal(t, sc.Control(func(fd uintptr) {
		value, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
	}))
	if value != 1 {
		t.Error("TCP_NODELAY is not set towards clients")
	}
	cancel()
	fatal(t, <-served)
}

type watched struct {
	net.Listener
	seen chan net.Conn
}

func (l *watched) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		select {
		case l.seen <- c:
		default:
		}
	}
	return c, err
}

func TestARequestThatSmugglesAnotherIsRefused(t *testing.T) {
	w := newWorld(t, []script{good})
	n := strconv.Itoa(len(chatBody))
	for name, head := range map[string]string{
		"two lengths":            "Content-Length: " + n + "\r\nContent-Length: 3\r\n",
		"an unknown coding":      "Transfer-Encoding: xchunked\r\n",
		"a list of lengths":      "Content-Length: 5, 6\r\n",
		"CL.TE":                  "Content-Length: " + n + "\r\nTransfer-Encoding: chunked\r\n",
		"a folded header":        "X: a\r\n Content-Length: 5\r\n",
		"LF alone":               "X: a\nContent-Length: " + n + "\r\n",
		"a header without colon": "nonsense\r\n",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		fatal(t, err)
		_, err = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+head+"\r\n"+chatBody)
		fatal(t, err)
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		answer, err := io.ReadAll(c)
		c.Close()
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 400")) && !bytes.HasPrefix(answer, []byte("HTTP/1.1 501")) || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
	if n := len(w.engines[0].got()); n != 0 {
		t.Errorf("%d deliveries", n)
	}
}
