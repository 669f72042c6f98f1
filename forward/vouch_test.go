package forward_test

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pointsman/forward"
	"pointsman/internal/testfleet"
	"pointsman/trust"
)

var ticketKeys = trust.StaticKeys(bytes.Repeat([]byte("k"), 32))

func signedMode(untrusted forward.Untrusted) option {
	return func(c *forward.Config, d *forward.Deps) {
		c.Mode, c.Trust, c.Untrusted = forward.Direct, forward.TrustHMAC, untrusted
		d.Tickets = trust.NewTickets(ticketKeys)
	}
}

// ticketed returns the headers of a request to worker that is signed as at the
// given time.
func (w *world) ticketed(id, worker string, at time.Time) map[string]string {
	here, err := url.Parse(w.url)
	fatal(w.t, err)
	r := trust.Route{RequestID: id, Worker: worker, Host: here.Host}
	return map[string]string{
		"X-Request-Id": id, "X-Worker-Instance-Id": worker,
		"X-Infera-Route-Sig": string(ticketKeys.Sign(nil, at, &r)),
	}
}

func TestRoutingHeadersAreBelievedOnlyWithATicket(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name    string
		headers func(w *world) map[string]string
		trusted bool
	}{
		{"signed", func(w *world) map[string]string { return w.ticketed("r", "w1", now) }, true},
		{"signed by a clock that is 29 s behind", func(w *world) map[string]string { return w.ticketed("r", "w1", now.Add(-29*time.Second)) }, true},
		{"signed by a clock that is 25 s ahead", func(w *world) map[string]string { return w.ticketed("r", "w1", now.Add(25*time.Second)) }, true},
		{"signed 31 s ago", func(w *world) map[string]string { return w.ticketed("r", "w1", now.Add(-31*time.Second)) }, false},
		{"signed by a clock that is far ahead", func(w *world) map[string]string { return w.ticketed("r", "w1", now.Add(time.Minute)) }, false},
		{"not signed", func(*world) map[string]string { return map[string]string{"X-Worker-Instance-Id": "w1"} }, false},
		{"signed for another worker", func(w *world) map[string]string {
			h := w.ticketed("r", "w2", now)
			h["X-Worker-Instance-Id"] = "w1"
			return h
		}, false},
		{"signed for another request", func(w *world) map[string]string {
			h := w.ticketed("r", "w1", now)
			h["X-Request-Id"] = "s"
			return h
		}, false},
		{"with a prefill worker put in", func(w *world) map[string]string {
			h := w.ticketed("r", "w1", now)
			h["X-Prefill-Instance-Id"] = "w2"
			return h
		}, false},
		{"with a fallback put in", func(w *world) map[string]string {
			h := w.ticketed("r", "w1", now)
			h["X-Worker-Fallback-Ids"] = "w2"
			return h
		}, false},
		{"of Dynamo's names", func(*world) map[string]string { return map[string]string{"X-Dynamo-Worker-Instance-Id": "w1"} }, false},
	} {
		for _, untrusted := range []forward.Untrusted{forward.UntrustedPick, forward.UntrustedReject} {
			w := newWorld(t, []script{good, good, good}, signedMode(untrusted))
			// The policy would never pick w1: it serves another model.
			workers := w.fleet()
			workers[0].Model = "n"
			w.feed.Replace(workers)
			body := chatBody
			if tc.trusted {
				body = strings.Replace(chatBody, `"m"`, `"n"`, 1)
			}
			got := w.do(call{body: body, header: tc.headers(w)})
			n := w.receipts()
			switch {
			case tc.trusted && (got.status != 200 || n[0] != 1):
				t.Errorf("%s: status %d, deliveries %v", tc.name, got.status, n)
			case !tc.trusted && untrusted == forward.UntrustedReject:
				if got.status != 403 || errorOf(t, got).Code != "untrusted_route" || !slices.Equal(n, []int{0, 0, 0}) {
					t.Errorf("%s, to be refused: status %d, deliveries %v", tc.name, got.status, n)
				}
			case !tc.trusted && (got.status != 200 || n[0] != 0):
				t.Errorf("%s, to be ignored: status %d, deliveries %v", tc.name, got.status, n)
			}
			if c := w.count("infera_router_direct_total", "result=untrusted"); (c == 1) == tc.trusted {
				t.Errorf("%s: counted as untrusted %d times", tc.name, c)
			}
			w.settled(1)
		}
	}
}

func TestATicketThatHasServedIsNoTicket(t *testing.T) {
	w := newWorld(t, []script{good}, signedMode(forward.UntrustedReject))
	h := w.ticketed("r", "w1", time.Now())
	for n, want := range []int{200, 403, 403} {
		if got := w.do(call{body: chatBody, header: h}); got.status != want {
			t.Errorf("request %d: status %d, want %d", n+1, got.status, want)
		}
	}
	if n := w.receipts(); n[0] != 1 {
		t.Errorf("%d deliveries", n[0])
	}
	w.settled(3)
}

func TestAGatewayMayRepeatAFailedRequestWithItsTicket(t *testing.T) {
	failing := raw(jsonReply(503, `{}`))
	w := newWorld(t, []script{failing}, signedMode(forward.UntrustedReject), change(func(c *forward.Config) { c.MaxRetries = 0 }))
	h := w.ticketed("r", "w1", time.Now())
	for n := range 3 {
		if got := w.do(call{body: chatBody, header: h}); got.status != 503 {
			t.Errorf("request %d: status %d", n+1, got.status)
		}
	}
	if n := w.receipts(); n[0] != 3 {
		t.Errorf("%d deliveries", n[0])
	}
	w.settled(3)
}

// secured gives a world TLS: its server's certificate and clients' are of a.
func secured(t *testing.T, a *testfleet.Authority, more option) (*world, *trust.Certs) {
	t.Helper()
	w := newWorld(t, []script{good, good}, more, overTLS(t, a))
	w.url = strings.Replace(w.url, "http://", "https://", 1)
	return w, certs(t, a, "gateway")
}

// overTLS makes a world's server one with a certificate of a.
func overTLS(t *testing.T, a *testfleet.Authority) option {
	t.Helper()
	server := certs(t, a, "forwarder")
	return func(_ *forward.Config, d *forward.Deps) {
		d.TLS = server.Server(trust.ServerPolicy{MinVersion: tls.VersionTLS13, Protocols: []string{"h2", "http/1.1"}})
	}
}

func certs(t *testing.T, a *testfleet.Authority, name string) *trust.Certs {
	t.Helper()
	var f trust.Files
	f.Cert, f.Key, f.CA = a.Issue(name, time.Now().Add(time.Hour))
	c, err := trust.OpenCerts(name, f, slog.New(slog.DiscardHandler))
	fatal(t, err)
	return c
}

func mutual(untrusted forward.Untrusted) option {
	return change(func(c *forward.Config) {
		c.Mode, c.Trust, c.Untrusted = forward.Direct, forward.TrustMTLS, untrusted
		c.TrustedPeers = []string{"spiffe://cluster.local/ns/infer/sa/gateway"}
	})
}

func TestRoutingHeadersAreBelievedOfATrustedPeer(t *testing.T) {
	a := testfleet.NewAuthority(t)
	w, gateway := secured(t, a, mutual(forward.UntrustedReject))
	nobody := gateway.Client().Clone()
	nobody.Certificates = nil
	stranger := gateway.Client().Clone()
	b := testfleet.NewAuthority(t)
	cert, key, _ := b.Issue("gateway", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(cert, key)
	fatal(t, err)
	stranger.Certificates = []tls.Certificate{pair}
	header := map[string]string{"X-Worker-Instance-Id": "w2"}
	sent := 0
	for _, tc := range []struct {
		name   string
		conf   *tls.Config
		h2     bool
		status int // 0 for a failed handshake
	}{
		{"the gateway", gateway.Client(), false, 200},
		{"the gateway over HTTP/2", gateway.Client(), true, 200},
		{"another of the same CA", certs(t, a, "other").Client(), false, 403},
		{"one without a certificate", nobody, false, 403},
		{"one of another CA", stranger, false, 0},
	} {
		before := w.receipts()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: tc.conf.Clone(), ForceAttemptHTTP2: tc.h2}}
		req := w.request(t.Context(), call{body: chatBody, header: header})
		resp, err := client.Do(req)
		if tc.status == 0 {
			if err == nil {
				t.Errorf("%s: status %d", tc.name, resp.StatusCode)
				resp.Body.Close()
			}
			if n := w.receipts(); !slices.Equal(n, before) {
				t.Errorf("%s: deliveries %v", tc.name, n)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		sent++
		resp.Body.Close()
		if resp.StatusCode != tc.status || (resp.ProtoMajor == 2) != tc.h2 {
			t.Errorf("%s: status %d over %s, want %d", tc.name, resp.StatusCode, resp.Proto, tc.status)
		}
		client.CloseIdleConnections()
	}
	if n := w.receipts(); !slices.Equal(n, []int{0, 2}) {
		t.Errorf("deliveries %v", n)
	}
	w.settled(sent)
}

func TestCertificatesRotateUnderLoadWithoutAFailedRequest(t *testing.T) {
	a := testfleet.NewAuthority(t)
	w, gateway := secured(t, a, mutual(forward.UntrustedReject))
	const requests = 200
	for n := range requests {
		if n%20 == 10 { // both ends get new certificates
			a.Issue("forwarder", time.Now().Add(time.Hour))
			a.Issue("gateway", time.Now().Add(time.Hour))
		}
		// One connection is kept, the other is new each time.
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: gateway.Client().Clone(), DisableKeepAlives: n%2 == 0}}
		resp, err := client.Do(w.request(t.Context(), call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1"}}))
		if err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
		resp.Body.Close()
		client.CloseIdleConnections()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("request %d: status %d", n, resp.StatusCode)
		}
	}
	w.settled(requests)
}
