package forward_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman/forward"
	"pointsman/internal/testkit"
)

// A client's connection carries on after every answer that ended cleanly, with
// whatever came on it before, and with no deadline left over.
func TestAClientsConnectionCarriesMixedRequests(t *testing.T) {
	w := newWorld(t, []script{func(c net.Conn, r receipt) bool {
		switch r.head.Header.Get("X-Case") {
		case "400":
			return raw(jsonReply(400, `{"e":1}`))(c, r)
		case "cut":
			return rawClose(sseOpen(tok0))(c, r)
		case "slow":
			testkit.Pass(400*time.Millisecond, "a worker slower than the write timeout")
		}
		return good(c, r)
	}}, change(func(c *forward.Config) { c.WriteTimeout, c.MaxRetries = 200*time.Millisecond, 0 }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	steps := []struct {
		path, body, kase string
		status           int
		contains         string
	}{
		{"/v1/chat/completions", chatBody, "", 200, "ok"},
		{"/v1/chat/completions", streamBody, "", 200, "[DONE]"},
		{"/v1/chat/completions", "{", "", 400, "invalid_json"},
		{"/v1/chat/completions", chatBody, "400", 400, `{"e":1}`},
		{"/v1/chat/completions", streamBody, "cut", 200, "upstream_stream_truncated"},
		{"/health", "", "", 200, "ok"},
		{"/v1/chat/completions", streamBody, "slow", 200, "[DONE]"},
		{"/ready", "", "", 200, "ready"},
		{"/v1/chat/completions", chatBody, "slow", 200, "ok"},
	}
	for i, st := range steps {
		method := http.MethodPost
		if st.body == "" {
			method = http.MethodGet
		}
		_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nX-Case: %s\r\nContent-Length: %d\r\n\r\n%s", method, st.path, st.kase, len(st.body), st.body)
		fatal(t, err)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != st.status || !strings.Contains(string(body), st.contains) {
			t.Errorf("step %d: status %d body %q error %v", i, resp.StatusCode, body, err)
		}
	}
}

func TestAnHTTP10ClientIsServed(t *testing.T) {
	w := newWorld(t, []script{good})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(streamBody), streamBody)
	fatal(t, err)
	got, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(got), goodBody) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestH2CStreamsOutliveAShutdownToo(t *testing.T) {
	goOn := make(chan struct{})
	w := newWorld(t, []script{func(c net.Conn, _ receipt) bool {
		_, _ = io.WriteString(c, sseOpen(tok0))
		<-goOn
		_, _ = io.WriteString(c, chunk(done)+"0\r\n\r\n")
		return true
	}})
	resp, err := h2cClient(t).Do(w.request(t.Context(), call{body: streamBody}))
	fatal(t, err)
	defer resp.Body.Close()
	_, err = io.ReadFull(resp.Body, make([]byte, len(tok0)))
	fatal(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	for {
		c, refused := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if refused != nil {
			break
		}
		c.Close()
	}
	close(goOn)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(rest) != done {
		t.Errorf("rest %q, error %v", rest, err)
	}
	fatal(t, <-stopped)
}

func TestOneH2CConnectionCarriesManyStreams(t *testing.T) {
	w := newWorld(t, []script{good, good})
	client := h2cClient(t)
	const streams = 50
	ended := make(chan error, streams)
	for range streams {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			resp, err := client.Do(w.request(ctx, call{body: streamBody}))
			if err != nil {
				ended <- err
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err == nil && string(body) != goodBody {
				err = fmt.Errorf("body %q", body)
			}
			ended <- err
		}()
	}
	for range streams {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	w.settled(streams)
	if n := w.receipts(); n[0]+n[1] != streams || n[0] == 0 || n[1] == 0 {
		t.Errorf("deliveries %v", n)
	}
}

// Whether one header is too long or all of them are, the client is told which it is.
func TestAHeadThatIsTooLongIsA431(t *testing.T) {
	w := newWorld(t, []script{good})
	for name, head := range map[string]string{
		"one line":   "X: " + strings.Repeat("a", 200<<10) + "\r\n",
		"many lines": strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 200),
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		fatal(t, err)
		go func() { _, _ = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n"+head+"\r\n") }() // it is not read to its end
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		_ = conn.Close()
	}
}
