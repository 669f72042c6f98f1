package forward_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"pointsman/forward"
)

// TestAClientThatSendsAllBeforeItReadsStillGetsThe413: closing the connection on
// unread bytes would reset it, and the answer would be lost on its way.
func TestAClientThatSendsAllBeforeItReadsStillGetsThe413(t *testing.T) {
	w := newWorld(t, []script{good}, change(func(c *forward.Config) { c.MaxBody = 1000 }))
	body := strings.Repeat("x", 32<<20)
	tests := []struct{ name, head, body string }{
		{"announced", fmt.Sprintf("Content-Length: %d", len(body)), body},
		{"chunked", "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nc, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
			fatal(t, err)
			defer nc.Close()
			if _, err = io.WriteString(nc, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"+tt.head+"\r\n\r\n"+tt.body); err != nil {
				t.Fatalf("the body was not taken: %v", err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
			fatal(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || err != nil || !strings.Contains(string(text), "request_too_large") {
				t.Errorf("status %d, %q, %v", resp.StatusCode, text, err)
			}
		})
	}
	w.settled(2)
}

// TestAClientThatClosesItsHalfIsNotToldOfASuccess: net/http takes it for gone and
// ends the request; what goes out then must not look like an empty answer.
func TestAClientThatClosesItsHalfIsNotToldOfASuccess(t *testing.T) {
	silent := func(c net.Conn, _ receipt) bool {
		_, _ = c.Read(make([]byte, 1)) // until the forwarder hangs up
		return false
	}
	w := newWorld(t, []script{silent})
	nc, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	defer nc.Close()
	_, err = fmt.Fprintf(nc, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody)
	fatal(t, err)
	fatal(t, nc.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(nc)
	if len(got) != 0 {
		t.Errorf("the client got %q (%v), want nothing", got, err)
	}
	w.settled(1)
}
