package forward_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"pointsman/forward"
	"pointsman/internal/testkit"
)

// TestBodiesOfAllRequestsShareOneBudget fills the memory for bodies with a
// client that does not send all of its: the next is refused, and when the first
// has gone there is room again.
func TestBodiesOfAllRequestsShareOneBudget(t *testing.T) {
	const size = 600_000
	w := newWorld(t, []script{good}, change(func(c *forward.Config) { c.MaxBody, c.MaxBuffered = 1<<20, 1<<20 }))
	held := func(want bool) {
		t.Helper()
		testkit.Until(t, fmt.Sprintf("memory held for bodies %v", want), func() bool {
			return w.series("pointsman_forward_buffered_body_bytes")[0].GetGauge().GetValue() > 0 == want
		})
	}
	big := strings.Replace(chatBody, "hello", strings.Repeat("x", size), 1)

	slow, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	defer slow.Close()
	_, err = fmt.Fprintf(slow, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", size)
	fatal(t, err)
	held(true)
	got := w.do(call{body: big})
	if got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "admission_memory") || got.header.Get("Retry-After") != "1" {
		t.Errorf("beside a full budget: status %d, Retry-After %q, body %s", got.status, got.header.Get("Retry-After"), got.body)
	}
	fatal(t, slow.Close())
	held(false)
	if got := w.do(call{body: big}); got.status != http.StatusOK {
		t.Errorf("with room again: status %d, body %s", got.status, got.body)
	}
	held(false)
	if n := w.receipts(); n[0] != 1 {
		t.Errorf("the worker got %d requests, want 1", n[0])
	}
}
