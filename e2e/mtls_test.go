package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/testfleet"
)

// identities are the certificates of a gateway, an EPP and the forwarders, which
// are replaced while all of them run.
type identities struct {
	t   *testing.T
	ca  *testfleet.Authority
	dir string
}

// The names that certificates are issued for. The gateway's alone is trusted with
// routing headers.
const (
	gatewayName   = "gateway"
	eppName       = "epp"
	forwarderName = "forwarder"
)

func newIdentities(t *testing.T) *identities {
	t.Helper()
	i := &identities{t: t, ca: testfleet.NewAuthority(t), dir: t.TempDir()}
	for _, name := range []string{gatewayName, eppName, forwarderName} {
		if err := os.Mkdir(filepath.Join(i.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		i.renew(name, time.Now().Add(time.Hour))
	}
	return i
}

// path is the directory of a program's files, or one of these.
func (i *identities) path(name string, file ...string) string {
	return filepath.Join(append([]string{i.dir, name}, file...)...)
}

// renew gives a program another certificate, good until then, in place of its own.
func (i *identities) renew(name string, until time.Time) {
	i.t.Helper()
	cert, key, ca := i.ca.Issue(name, until)
	i.replace(cert, i.path(name, "tls.crt"))
	i.replace(key, i.path(name, "tls.key"))
	i.replace(ca, i.path(name, "ca.crt"))
	if name != gatewayName {
		return
	}
	chain, err := os.ReadFile(cert)
	if err != nil {
		i.t.Fatal(err)
	}
	private, err := os.ReadFile(key)
	if err != nil {
		i.t.Fatal(err)
	}
	secret, err := json.Marshal(map[string]any{"resources": []any{map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": gatewayName,
		"tls_certificate": map[string]any{
			"certificate_chain": map[string]any{"inline_string": string(chain)}, "private_key": map[string]any{"inline_string": string(private)},
		},
	}}})
	next := i.path(name, "next")
	if err == nil {
		err = os.WriteFile(next, secret, 0o600)
	}
	if err == nil {
		err = os.Rename(next, i.path(name, "secret.json"))
	}
	if err != nil {
		i.t.Fatal(err)
	}
}

// replace makes a file what another is, at once.
func (i *identities) replace(from, to string) {
	i.t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".next", data, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".next", to)
	}
	if err != nil {
		i.t.Fatal(err)
	}
}

// fewPerConnection makes Envoy open a connection, and so shake hands, for every
// few requests.
const fewPerConnection = 3

// secure has Envoy show its certificate to a cluster and verify those it is shown.
func (i *identities) secure(bootstrap map[string]any, cluster, name, protocol string) {
	c := stack.Cluster(bootstrap, cluster)
	c["transport_socket"] = map[string]any{"name": "envoy.transport_sockets.tls", "typed_config": map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
		"common_tls_context": map[string]any{
			"tls_params": map[string]any{"tls_maximum_protocol_version": "TLSv1_3"}, "alpn_protocols": []any{protocol},
			"tls_certificate_sds_secret_configs": []any{map[string]any{
				"name": gatewayName, "sds_config": map[string]any{"path_config_source": map[string]any{"path": i.path(gatewayName, "secret.json")}},
			}},
			"validation_context": map[string]any{
				"trusted_ca":                    map[string]any{"filename": i.path(gatewayName, "ca.crt")},
				"match_typed_subject_alt_names": []any{map[string]any{"san_type": "DNS", "matcher": map[string]any{"exact": name}}},
			},
		},
	}}
	options, _ := c["typed_extension_protocol_options"].(map[string]any)
	http, _ := options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].(map[string]any)
	http["common_http_protocol_options"] = map[string]any{"max_requests_per_connection": fewPerConnection}
}

// fleet starts two workers whose forwarders believe the gateway's certificate, and
// an EPP that takes no other.
func (i *identities) fleet() *stack.Stack {
	i.t.Helper()
	return startFleet(i.t, stack.Config{
		Workers: stack.MixedWorkers(2, fast()...), Policy: "round-robin",
		EPPArgs: []string{
			"--secure-serving=true", "--cert-path", i.path(eppName), "--client-ca-file", i.path(eppName, "ca.crt"),
			"--forwarder-ca-file", i.path(forwarderName, "ca.crt"), "--forwarder-tls-name", forwarderName, "--breaker-failure-threshold", "0",
		},
		ForwarderArgs: []string{
			"--cert-path", i.path(forwarderName), "--client-ca-file", i.path(forwarderName, "ca.crt"),
			"--direct-trust", "mtls", "--trusted-peers", gatewayName, "--direct-untrusted", "reject",
		},
		Edit: func(bootstrap map[string]any) error {
			bootstrap["node"] = map[string]any{"id": "gateway", "cluster": "gateway"} // which secrets out of files demand
			i.secure(bootstrap, "epp", eppName, "h2")
			i.secure(bootstrap, "workers", forwarderName, "http/1.1")
			return nil
		},
	})
}

// client makes connections that show the named certificate, "" for none.
func (i *identities) client(ca *testfleet.Authority, name string) *http.Client {
	i.t.Helper()
	raw, err := os.ReadFile(i.path(forwarderName, "ca.crt"))
	if err != nil {
		i.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(raw)
	cfg := &tls.Config{RootCAs: roots, ServerName: forwarderName, MinVersion: tls.VersionTLS13}
	if name != "" {
		cert, key, _ := ca.Issue(name, time.Now().Add(time.Hour))
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			i.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	i.t.Cleanup(c.CloseIdleConnections)
	return c
}

// stat returns a counter of Envoy's.
func stat(t *testing.T, s *stack.Stack, name string) int {
	t.Helper()
	raw, err := stack.Get(t.Context(), http.DefaultClient, s.AdminURL+"/stats?filter=^"+name+"$")
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscanf(strings.TrimSpace(string(raw)), name+": %d", &n); err != nil {
		t.Fatalf("%s: %q", name, raw)
	}
	return n
}

// TestCertificatesRotateUnderLoadBehindEnvoy replaces the certificates of gateway,
// EPP and forwarders again and again under load: no request fails, each is served
// once, and what is shown in the end is the last.
func TestCertificatesRotateUnderLoadBehindEnvoy(t *testing.T) {
	t.Parallel()
	i := newIdentities(t)
	s := i.fleet()
	const rotations, clients = 12, 4
	var stop atomic.Bool
	var sent atomic.Int64
	var load sync.WaitGroup
	for c := range clients {
		load.Go(func() {
			for n := 0; !stop.Load(); n++ {
				requestID := id(t, fmt.Sprintf("%d-%d", c, n))
				if got := chat(t, s, requestID, words(n, 30), nil); got.status != http.StatusOK {
					t.Errorf("%s: status %d: %.200s", requestID, got.status, got.body)
				}
				if list := receipts(t, s, requestID); len(list) != 1 {
					t.Errorf("%s: %d receipts", requestID, len(list))
				}
				sent.Add(1)
			}
		})
	}
	for n := range rotations {
		before := sent.Load()
		for _, name := range []string{gatewayName, eppName, forwarderName} {
			i.renew(name, time.Now().Add(time.Hour))
		}
		eventually(t, fmt.Sprintf("requests after rotation %d", n), func(context.Context) error {
			if sent.Load() < before+2*fewPerConnection*clients {
				return errNotYet
			}
			return nil
		})
	}
	stop.Store(true)
	load.Wait()
	workers, epp, updates := stat(t, s, "cluster.workers.ssl.handshake"), stat(t, s, "cluster.epp.ssl.handshake"), stat(t, s, "cluster.workers.client_ssl_socket_factory.ssl_context_update_by_sds")
	t.Logf("%d requests over %d rotations: %d handshakes with forwarders, %d with the EPP, %d new client certificates", sent.Load(), rotations, workers, epp, updates)
	if workers < rotations || epp < rotations || updates < rotations/2 {
		t.Error("too few connections were new for the test to say anything")
	}
	if m, err := s.Metrics(t.Context(), s.EPPs[0].Admin); err != nil || m.Sum("pointsman_load_report_sources", nil) != 2 {
		t.Errorf("the EPP hears %v of two forwarders, %v", m.Sum("pointsman_load_report_sources", nil), err)
	}
	want, err := tls.LoadX509KeyPair(i.path(forwarderName, "tls.crt"), i.path(forwarderName, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Workers {
		conn, err := tls.Dial("tcp", w.Destination, i.client(i.ca, "").Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().PeerCertificates[0]; !bytes.Equal(got.Raw, want.Certificate[0]) {
			t.Errorf("%s shows another certificate than its last, one of %s", w.Destination, got.NotBefore)
		}
		_ = conn.Close()
	}
}

// TestOnlyTheGatewaysCertificateSetsRoutingHeaders goes past the gateway, to a
// forwarder's own port.
func TestOnlyTheGatewaysCertificateSetsRoutingHeaders(t *testing.T) {
	t.Parallel()
	i := newIdentities(t)
	s := i.fleet()
	asked, named := s.Workers[0], s.Workers[1]
	stranger := testfleet.NewAuthority(t)
	for _, tc := range []struct {
		name   string
		client *http.Client
		header bool
		status int // 0 is no connection
	}{
		{"nobody, with a routing header", i.client(nil, ""), true, http.StatusForbidden},
		{"another certificate of the CA, with a routing header", i.client(i.ca, "somebody"), true, http.StatusForbidden},
		{"a certificate of the gateway's name of another CA", i.client(stranger, gatewayName), true, 0},
		{"the gateway", i.client(i.ca, gatewayName), true, http.StatusOK},
		{"nobody, without a routing header", i.client(nil, ""), false, http.StatusOK},
	} {
		requestID := id(t, dashed(tc.name))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+asked.Destination+"/v1/chat/completions", bytes.NewReader(chatBody(t, "hello", nil)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", requestID)
		if tc.header {
			req.Header.Set("X-Worker-Instance-Id", named.ID)
		}
		status := 0
		if resp, err := tc.client.Do(req); err == nil {
			status = resp.StatusCode
			_ = resp.Body.Close()
		}
		if status != tc.status {
			t.Errorf("%s: status %d, want %d", tc.name, status, tc.status)
		}
		list := receipts(t, s, requestID)
		if served := len(list) == 1; served != (tc.status == http.StatusOK) || tc.header && served && list[0].WorkerID != named.ID {
			t.Errorf("%s: receipts %+v", tc.name, list)
		}
	}
}

// TestAnExpiredCertificateServesWhatIsOpenAndIsReplacedWithoutARestart lets the
// certificates of EPP and forwarders end: streams that are open go on, new requests
// reach nobody, the metric says why, and a new certificate is enough.
func TestAnExpiredCertificateServesWhatIsOpenAndIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{eppName, forwarderName} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newIdentities(t)
			s := i.fleet()
			admin := s.EPPs[0].Admin
			if name == forwarderName {
				admin = s.Workers[0].ForwarderAdmin
			}
			f := &kubeFleet{Stack: s}
			streamID := id(t, "open")
			stream := f.openStream(t, streamID)
			i.renew(name, time.Now().Add(-time.Minute))
			n := 0
			ask := func() (string, int) {
				n++
				requestID := id(t, fmt.Sprint("new-", n))
				return requestID, chat(t, s, requestID, "hello", nil).status
			}
			eventually(t, "new connections to fail", func(context.Context) error { //nolint:contextcheck // bounded by the test
				requestID, status := ask()
				if status == http.StatusOK {
					return errNotYet // on a connection that is there
				}
				if list := receipts(t, s, requestID); status < 500 || len(list) != 0 {
					t.Errorf("status %d, receipts %+v", status, list)
				}
				return nil
			})
			m, err := s.Metrics(t.Context(), admin)
			if err != nil {
				t.Fatal(err)
			}
			if left := m.Sum("pointsman_cert_expiry_seconds", nil); left >= 0 || left < -3600 {
				t.Errorf("the certificate is good for %v s", left)
			}
			i.renew(name, time.Now().Add(time.Hour))
			eventually(t, "new requests to succeed", func(context.Context) error { //nolint:contextcheck // bounded by the test
				if _, status := ask(); status != http.StatusOK {
					return fmt.Errorf("status %d", status)
				}
				return nil
			})
			f.finish(t, stream, streamID)
		})
	}
}
