package http

import (
	"net"
	"testing"
	"time"
)

// TestTheConnectTimeoutCoversTheTLSHandshake of both protocols: a listener that
// takes connections and says nothing is not connected to.
func TestTheConnectTimeoutCoversTheTLSHandshake(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	for _, protocol := range []Protocol{HTTP1, H2C} {
		for _, own := range []time.Duration{0, 200 * time.Millisecond} {
			tr := newTransport(t, func(c *Config) { c.Protocol, c.ConnectTimeout = protocol, 100*time.Millisecond })
			w := workerAt(lis.Addr())
			w.URL = "https://" + lis.Addr().String()
			req := post("{}")
			req.ConnectTimeout = own
			want := max(own, 100*time.Millisecond)
			start := time.Now()
			got := do(t, tr, w, req)
			took := time.Since(start)
			if got.class != "dial" || took < want || took > want+2*time.Second {
				t.Errorf("%s with %s of its own: %v (%s) after %s, want a failed dial after %s", protocol, own, got.err, got.class, took, want)
			}
		}
	}
}
