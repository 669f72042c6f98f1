package trust_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/internal/testfleet"
	"pointsman/trust"
)

// issue writes a certificate for name, and returns its files and a's own.
func issue(a *testfleet.Authority, name string, until time.Time) trust.Files {
	var f trust.Files
	f.Cert, f.Key, f.CA = a.Issue(name, until)
	return f
}

func open(t *testing.T, name string, f trust.Files) *trust.Certs {
	t.Helper()
	c, err := trust.OpenCerts(name, f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shake does a handshake and returns what each side says, and the server's state.
func shake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var c net.Conn
		if c, serverErr = lis.Accept(); serverErr != nil {
			return
		}
		defer c.Close()
		tc := tls.Server(c, server)
		if serverErr = tc.Handshake(); serverErr == nil {
			state = tc.ConnectionState()
			_, serverErr = tc.Write([]byte("ok"))
		}
	}()
	conf := client.Clone()
	conf.ServerName = "127.0.0.1"
	c, err := tls.Dial("tcp", lis.Addr().String(), conf)
	clientErr = err
	if c != nil { // in TLS 1.3 a refusal comes behind the client's handshake
		if _, err := io.ReadFull(c, make([]byte, 2)); clientErr == nil {
			clientErr = err
		}
		c.Close()
	}
	<-done
	return state, serverErr, clientErr
}

func TestBothEndsProveWhoTheyAre(t *testing.T) {
	a, stranger := testfleet.NewAuthority(t), testfleet.NewAuthority(t)
	later := time.Now().Add(time.Hour)
	strict := trust.ServerPolicy{MinVersion: tls.VersionTLS13, RequireClient: true}
	lax := trust.ServerPolicy{MinVersion: tls.VersionTLS13}
	gateway := open(t, "gateway", issue(a, "gateway", later)).Client()
	none := gateway.Clone()
	none.Certificates = nil
	wrong := gateway.Clone()
	wrong.Certificates = open(t, "stranger", issue(stranger, "gateway", later)).Client().Certificates
	old := gateway.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	expired := gateway.Clone()
	expired.Certificates = open(t, "expired", issue(a, "expired", time.Now().Add(-time.Minute))).Client().Certificates
	foreign := open(t, "foreign", func() trust.Files { f := issue(stranger, "x", later); f.Cert, f.Key = "", ""; return f }()).Client()
	for _, tc := range []struct {
		name   string
		policy trust.ServerPolicy
		client *tls.Config
		ok     bool
		peer   bool
	}{
		{"a gateway of the CA", strict, gateway, true, true},
		{"without a certificate", strict, none, false, false},
		{"without a certificate, where none is required", lax, none, true, false},
		{"a gateway of the CA, where none is required", lax, gateway, true, true},
		{"of another CA", strict, wrong, false, false},
		{"of another CA, where none is required", lax, wrong, false, false},
		{"expired", strict, expired, false, false},
		{"TLS 1.2", strict, old, false, false},
		{"one that does not know our CA", lax, foreign, false, false},
	} {
		server := open(t, "server", issue(a, "server", later))
		state, serverErr, clientErr := shake(t, server.Server(tc.policy), tc.client)
		if ok := serverErr == nil && clientErr == nil; ok != tc.ok {
			t.Errorf("%s: server says %v, client says %v", tc.name, serverErr, clientErr)
		}
		if peer := trust.Peer(&state, []string{"gateway"}); peer != tc.peer {
			t.Errorf("%s: peer %t", tc.name, peer)
		}
	}
}

func TestPeersAreKnownByTheirAlternativeNames(t *testing.T) {
	a := testfleet.NewAuthority(t)
	server := open(t, "server", issue(a, "server", time.Now().Add(time.Hour)))
	client := open(t, "gateway", issue(a, "gateway", time.Now().Add(time.Hour)))
	state, err, _ := shake(t, server.Server(trust.ServerPolicy{MinVersion: tls.VersionTLS13}), client.Client())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"gateway": true, "gate": false, "gateway2": false, "spiffe://cluster.local/ns/infer/sa/gateway": true,
		"spiffe://cluster.local/ns/infer/*": true, "spiffe://cluster.local/ns/other/*": false, "127.0.0.1": true,
		"cn-of-gateway": false, "": false,
	} {
		if got := trust.Peer(&state, []string{"nobody", name}); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
	if trust.Peer(nil, []string{"*"}) || trust.Peer(&tls.ConnectionState{}, []string{"*"}) {
		t.Error("who has shown nothing is a peer")
	}
}

func TestCertificatesAreReadAgainWhenTheyChange(t *testing.T) {
	a := testfleet.NewAuthority(t)
	files := issue(a, "server", time.Now().Add(time.Hour))
	log := new(bytes.Buffer)
	certs, err := trust.OpenCerts("clients", files, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	client := open(t, "gateway", issue(a, "gateway", time.Now().Add(time.Hour)))
	conf := certs.Server(trust.ServerPolicy{MinVersion: tls.VersionTLS13, RequireClient: true})
	var seen []string
	dial := func() {
		t.Helper()
		look := client.Client().Clone()
		look.VerifyConnection = func(s tls.ConnectionState) error {
			seen = append(seen, s.PeerCertificates[0].SerialNumber.String())
			return nil
		}
		if _, serverErr, clientErr := shake(t, conf, look); serverErr != nil || clientErr != nil {
			t.Fatalf("server says %v, client says %v; log %s", serverErr, clientErr, log)
		}
	}
	dial()
	dial()
	issue(a, "server", time.Now().Add(time.Hour))
	dial()
	write(t, files.Key, "half a key", time.Now())
	dial()
	if seen[0] != seen[1] || seen[1] == seen[2] || seen[2] != seen[3] {
		t.Errorf("serials %v: want the second file's from the third on", seen)
	}
	if strings.Count(log.String(), "unusable") != 1 {
		t.Errorf("log %s", log)
	}
	// A client that keeps its sessions sees the next certificate as well.
	caching := client.Client().Clone()
	caching.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 2 {
		if _, serverErr, clientErr := shake(t, conf, caching); serverErr != nil || clientErr != nil {
			t.Fatalf("server says %v, client says %v", serverErr, clientErr)
		}
	}
	issue(a, "server", time.Now().Add(-time.Minute))
	if state, _, clientErr := shake(t, conf, caching); clientErr == nil || state.DidResume {
		t.Errorf("a certificate that has ended serves who was here before, resumed %t", state.DidResume)
	}
	// Another CA for both ends: who has the old one is a stranger.
	b := testfleet.NewAuthority(t)
	b.Dir, b.At = a.Dir, time.Now().Add(time.Minute)
	before := client.Client().Clone()
	issue(b, "server", time.Now().Add(time.Hour))
	issue(b, "gateway", time.Now().Add(time.Hour))
	dial()
	if _, serverErr, clientErr := shake(t, conf, before); serverErr == nil && clientErr == nil {
		t.Error("a client of the CA that is gone is let in")
	}
}

func TestTheTimeLeftIsAMetric(t *testing.T) {
	a := testfleet.NewAuthority(t)
	for _, left := range []time.Duration{10 * time.Minute, -time.Minute} {
		certs := open(t, "clients", issue(a, "server", time.Now().Add(left)))
		reg := prometheus.NewPedanticRegistry()
		if err := errors.Join(certs.Register(reg), open(t, "workers", issue(a, "other", time.Now())).Register(reg)); err != nil {
			t.Fatal(err)
		}
		families, err := reg.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "pointsman_cert_expiry_seconds" || len(families[0].GetMetric()) != 2 {
			t.Fatalf("%v %v", families, err)
		}
		if got := families[0].GetMetric()[0].GetGauge().GetValue(); got > left.Seconds() || got < left.Seconds()-10 {
			t.Errorf("%v seconds left, want %v", got, left)
		}
	}
}

func TestFilesThatCannotServe(t *testing.T) {
	a := testfleet.NewAuthority(t)
	good := issue(a, "server", time.Now().Add(time.Hour))
	for name, f := range map[string]trust.Files{
		"a certificate without its key": {Cert: good.Cert},
		"no such file":                  {Cert: good.Cert + "x", Key: good.Key},
		"a CA without a certificate":    {Cert: good.Cert, Key: good.Key, CA: good.Key},
	} {
		if _, err := trust.OpenCerts("clients", f, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestACertificateThatEndsSoonIsSaidWhenItIsRead(t *testing.T) {
	a := testfleet.NewAuthority(t)
	for left, want := range map[time.Duration]int{-time.Minute: 1, 23 * time.Hour: 1, 25 * time.Hour: 0} {
		log := new(bytes.Buffer)
		if _, err := trust.OpenCerts("clients", issue(a, "server", time.Now().Add(left)), slog.New(slog.NewTextHandler(log, nil))); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "level=WARN msg=\"a certificate has ended or ends soon"); got != want {
			t.Errorf("%v before its end: said %d times, want %d: %s", left, got, want, log)
		}
	}
}
