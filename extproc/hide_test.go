package extproc

import (
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/internal/testkit"
)

// reporting is a world whose forwarders report.
func reporting(t *testing.T, cfg Config) *world {
	t.Helper()
	w := buildWorld(t, cfg, mixed(workerID, "m"))
	w.server.deps.PickerID = "A"
	w.serve()
	return w
}

// overridden sends response headers and returns the modes that the answer asks for;
// nil for none.
func (g *gateway) overridden() *modev3.ProcessingMode {
	g.w.t.Helper()
	g.send(responseHeaders(false, ":status", "200"))
	r := g.receive()
	if r.GetResponseHeaders() == nil {
		g.w.t.Fatalf("got %v, want an answer to the response's headers", r)
	}
	return r.GetModeOverride()
}

// TestTheGatewayIsAskedToHideBodies: who heeds it ends the stream, and the
// forwarder's report ends the request.
func TestTheGatewayIsAskedToHideBodies(t *testing.T) {
	for _, mode := range []modev3.ProcessingMode_BodySendMode{streamed, buffered} {
		t.Run(mode.String(), func(t *testing.T) {
			w := reporting(t, testConfig())
			g := w.routedChat(mode)
			if got := g.overridden(); got == nil || got.GetResponseBodyMode() != none || got.GetRequestBodyMode() != fullDuplex || got.GetResponseTrailerMode() == modev3.ProcessingMode_SEND {
				t.Fatalf("the gateway is asked for %v", got)
			}
			g.cancel()
			testkit.Until(t, "a reservation that waits for a report", func() bool { return w.server.unseen.waiting() == 1 })
			if w.held() != 1 {
				t.Errorf("%d reservations, want that of the running request", w.held())
			}
			w.server.Done(done(1, 200, "m1@"+workerID+";ok"), time.Now())
			if w.held() != 0 || w.server.unseen.waiting() != 0 || len(w.usage) != 1 {
				t.Errorf("%d reservations are left, the audit was told %v", w.held(), w.usage)
			}
			if n := testutil.ToFloat64(w.server.metrics.overrides.WithLabelValues("heeded")); n != 1 {
				t.Errorf("%v overrides count as heeded", n)
			}
		})
	}
}

// TestAGatewayThatDoesNotHeedIsAskedNoMore: its chunks pass, and end the requests,
// as if nothing had been asked.
func TestAGatewayThatDoesNotHeedIsAskedNoMore(t *testing.T) {
	w := reporting(t, testConfig())
	for n := range maxIgnored + 2 {
		g := w.routedChat(streamed)
		if got := g.overridden(); (got != nil) != (n < maxIgnored) {
			t.Errorf("request %d: asked for %v", n, got)
		}
		g.send(responseBody("x", false), responseBody("y", true))
		g.unchanged(kindResponseBody)
		g.unchanged(kindResponseBody)
		g.finish()
		if w.held() != 0 {
			t.Errorf("request %d: %d reservations are left", n, w.held())
		}
	}
	w.server.unseen.mu.Lock()
	left := len(w.server.unseen.open)
	w.server.unseen.mu.Unlock()
	if n := testutil.ToFloat64(w.server.metrics.overrides.WithLabelValues("ignored")); n != maxIgnored || left != 0 {
		t.Errorf("%v overrides count as ignored, %d reports are awaited", n, left)
	}
}

func TestNothingIsHiddenWhereItsEndWouldBeLost(t *testing.T) {
	off := testConfig()
	off.ModeOverride = false
	silent := newWorld(t, testConfig(), mixed(workerID, "m"))
	for name, g := range map[string]*gateway{
		"no forwarder reports":  silent.routedChat(streamed),
		"it is switched off":    reporting(t, off).routedChat(streamed),
		"Envoy would ignore it": reporting(t, testConfig()).routedChat(fullDuplex),
		"nothing is shown":      reporting(t, testConfig()).routedChat(none),
	} {
		if got := g.overridden(); got != nil {
			t.Errorf("%s: asked for %v", name, got)
		}
		g.cancel()
	}
}
