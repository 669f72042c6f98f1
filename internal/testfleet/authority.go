package testfleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority for tests, in a directory of its own.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
	Dir  string    // where its files are
	At   time.Time // of the files last written; each writing is a second later
}

// NewAuthority returns an authority whose certificate is good for an hour.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, Dir: tb.TempDir(), At: time.Now().Add(-time.Hour)}
	a.key = newKey(tb)
	tmpl := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// Issue writes a certificate for name and its key, and returns the files. CA is
// that of a itself.
func (a *Authority) Issue(name string, until time.Time) (cert, key, ca string) {
	a.tb.Helper()
	private := newKey(a.tb)
	uri, err := url.Parse("spiffe://cluster.local/ns/infer/sa/" + name)
	if err != nil {
		a.tb.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(a.tb), Subject: pkix.Name{CommonName: "cn-of-" + name},
		DNSNames: []string{name}, URIs: []*url.URL{uri}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.tb.Fatal(err)
	}
	cert, key, ca = filepath.Join(a.Dir, name+".crt"), filepath.Join(a.Dir, name+".key"), filepath.Join(a.Dir, "ca.crt")
	a.At = a.At.Add(time.Second)
	writeAt(a.tb, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), a.At)
	writeAt(a.tb, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})), a.At)
	writeAt(a.tb, ca, a.pem, a.At)
	return cert, key, ca
}

func writeAt(tb testing.TB, path, text string, at time.Time) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		tb.Fatal(err)
	}
}
