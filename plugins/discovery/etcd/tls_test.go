package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"pointsman/internal/testfleet"
)

// authority signs certificates and leaves them as PEM files in dir.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	rawKey, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write := func(file, kind string, raw []byte) {
		if err = os.WriteFile(a.file(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	write(name+".pem", "CERTIFICATE", der)
	write(name+".key", "EC PRIVATE KEY", rawKey)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func TestTLSWithAClientCertificate(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	a.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	e := testfleet.StartEtcd(t, func(cfg *embed.Config) {
		secure := []url.URL{{Scheme: "https", Host: cfg.ListenClientUrls[0].Host}}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = secure, secure
		cfg.ClientTLSInfo = transport.TLSInfo{
			CertFile: a.file("server.pem"), KeyFile: a.file("server.key"),
			TrustedCAFile: a.file("ca.pem"), ClientCertAuth: true,
		}
	})
	cfg := impatient(e.Endpoint)
	cfg.Timeout = time.Second
	for name, edit := range map[string]func(*Config){
		"the system's authorities":     func(*Config) {},
		"no certificate of the client": func(c *Config) { c.CA = a.file("ca.pem") },
	} {
		refused := cfg
		edit(&refused)
		f := follow(t, refused)
		f.until(name+" to be refused", func() bool { return f.log.count("out of step") > 0 })
		if f.store.Synced() {
			t.Errorf("%s: synced", name)
		}
	}

	cfg.CA, cfg.Cert, cfg.Key = a.file("ca.pem"), a.file("client.pem"), a.file("client.key")
	src, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client, err := (&follower{Source: src}).connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e.Put(t, client, "/infera/workers/a:1", record("a:1"))
	f := follow(t, cfg)
	f.want("the fleet", "a:1")
}
