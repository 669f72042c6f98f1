package extproc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"sync"
	"time"
)

// tlsConfig returns the main port's TLS configuration.
func tlsConfig(cfg Config, log *slog.Logger, now time.Time) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	if cfg.CertFile == "" {
		cert, err := selfSigned(now)
		if err != nil {
			return nil, fmt.Errorf("self-signed certificate: %w", err)
		}
		out.Certificates = []tls.Certificate{cert}
		return out, nil
	}
	files := &certFiles{certFile: cfg.CertFile, keyFile: cfg.KeyFile, log: log}
	if _, err := files.certificate(nil); err != nil {
		return nil, err
	}
	out.GetCertificate = files.certificate
	return out, nil
}

// selfSignedName is the name in the self-signed certificate; gateways do not
// verify it. (Infera infera/gaie uses the same.)
const selfSignedName = "infera-epp"

// selfSigned makes a certificate for ten years. Gateways that dial an endpoint
// picker expect TLS and do not verify it.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: selfSignedName},
		DNSNames:              []string{selfSignedName},
		NotBefore:             now.Add(-time.Hour), // the gateway's clock may be behind
		NotAfter:              now.AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// certFiles serves a certificate from files. It looks at them at each handshake:
// two stat calls are nothing beside one, gateways hold their connections, and no
// change can be missed, not even the swapped symbolic link of a mounted secret.
type certFiles struct {
	certFile, keyFile string
	log               *slog.Logger

	mu    sync.Mutex
	cert  *tls.Certificate
	stamp [2]fileStamp
}

type fileStamp struct {
	modified time.Time
	size     int64
}

func stampOf(name string) (fileStamp, error) {
	info, err := os.Stat(name)
	if err != nil {
		return fileStamp{}, err
	}
	return fileStamp{info.ModTime(), info.Size()}, nil
}

// certificate returns the certificate that the files hold. While they are being
// replaced, or when they are unusable, the last good one serves.
func (c *certFiles) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.reload()
	if err == nil || c.cert == nil {
		return c.cert, err
	}
	c.log.Warn("certificate files unusable; serving the last good one",
		slog.String("cert_file", c.certFile), slog.Any("error", err))
	return c.cert, nil
}

func (c *certFiles) reload() error {
	var stamp [2]fileStamp
	for i, name := range []string{c.certFile, c.keyFile} {
		var err error
		if stamp[i], err = stampOf(name); err != nil {
			return fmt.Errorf("certificate: %w", err)
		}
	}
	if c.cert != nil && stamp == c.stamp {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert, c.stamp = &cert, stamp
	return nil
}
