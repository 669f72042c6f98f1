package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Files are PEM files of one end of a connection; "" for none.
type Files struct {
	Cert, Key string // a chain, leaf first, and its key: give both or none
	CA        string // who signs the other end's certificates
}

// Validate reports every fault of f.
func (f Files) Validate() error {
	if (f.Cert == "") != (f.Key == "") {
		return errors.New("a certificate and its key: give both or none")
	}
	return nil
}

// Certs are certificates out of files. They look at their files at each
// handshake: three stat calls are nothing beside one, connections are kept for
// long, and no change can be missed. While the files are being replaced, or
// cannot be used, what was good last stays; connections that are open are not
// touched.
type Certs struct {
	name  string
	files Files
	log   *slog.Logger
	gauge prometheus.GaugeFunc

	mu    sync.Mutex
	stamp [3]stamp
	good  *loaded
	bad   string // the last complaint
}

// loaded is one reading of the files.
type loaded struct {
	cert    *tls.Certificate // nil for none
	roots   *x509.CertPool   // nil for the system's
	expires time.Time        // the earliest end of the chain; zero for no certificate
	server  *tls.Config
	client  *tls.Config
}

// ServerPolicy is what a server asks of its clients.
type ServerPolicy struct {
	MinVersion uint16   // tls.VersionTLS13 or tls.VersionTLS12
	Protocols  []string // offered in the handshake, best first
	// RequireClient refuses clients without a certificate. Those that show one are
	// verified in any case, if the files name a CA.
	RequireClient bool
}

// OpenCerts reads the files. name says in logs and metrics whose they are.
func OpenCerts(name string, files Files, log *slog.Logger) (*Certs, error) {
	if err := files.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := &Certs{name: name, files: files, log: log}
	if err := c.reload(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "pointsman_cert_expiry_seconds",
		Help:        "Time until a certificate of this program ends; negative when it has.",
		ConstLabels: prometheus.Labels{"cert": name},
	}, func() float64 { return time.Until(c.Expires()).Seconds() })
	return c, nil
}

// Register puts the time left on reg, if there is a certificate.
func (c *Certs) Register(reg prometheus.Registerer) error {
	if c.files.Cert == "" {
		return nil
	}
	return reg.Register(c.gauge)
}

// Expires returns when the first certificate of the chain ends; zero for none.
func (c *Certs) Expires() time.Time { return c.current().expires }

// Server returns a configuration that presents the certificate in force.
func (c *Certs) Server(p ServerPolicy) *tls.Config {
	return &tls.Config{
		MinVersion:             p.MinVersion,
		NextProtos:             p.Protocols,
		SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.serverConfig(p)
		},
	}
}

// serverConfig makes one configuration of each reading. Sessions are not resumed:
// a client that resumes one looks at no certificate, and so would go on with one
// that has ended, or with a CA that is gone.
func (c *Certs) serverConfig(p ServerPolicy) (*tls.Config, error) {
	now := c.current()
	if now.cert == nil {
		return nil, errors.New(c.name + ": no certificate")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.server == nil {
		now.server = &tls.Config{
			MinVersion: p.MinVersion, NextProtos: p.Protocols,
			Certificates: []tls.Certificate{*now.cert}, ClientCAs: now.roots, SessionTicketsDisabled: true,
		}
		switch {
		case now.roots != nil && p.RequireClient:
			now.server.ClientAuth = tls.RequireAndVerifyClientCert
		case now.roots != nil:
			now.server.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return now.server, nil
}

// Client returns the configuration for a dial. It is shared: clone it to change
// it.
func (c *Certs) Client() *tls.Config {
	now := c.current()
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.client == nil {
		now.client = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: now.roots}
		if now.cert != nil {
			now.client.Certificates = []tls.Certificate{*now.cert}
		}
	}
	return now.client
}

// current returns what the files hold, or held last.
func (c *Certs) current() *loaded {
	err := c.reload()
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.bad
	if c.bad = ""; err != nil {
		c.bad = err.Error()
	}
	if c.bad != "" && c.bad != was {
		c.log.Warn("certificate files unusable; what was good last stays", slog.String("cert", c.name), slog.Any("error", err))
	}
	return c.good
}

func (c *Certs) reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := stampsOf(c.files.Cert, c.files.Key, c.files.CA)
	if err != nil {
		return err
	}
	if c.good != nil && now == c.stamp {
		return nil
	}
	fresh, err := c.files.load()
	if err != nil {
		return err
	}
	c.good, c.stamp = fresh, now
	if left := time.Until(fresh.expires); fresh.cert != nil && left < soon {
		c.log.Warn("a certificate has ended or ends soon; who verifies it then refuses the connection",
			slog.String("cert", c.name), slog.String("file", c.files.Cert), slog.Time("ends", fresh.expires), slog.Duration("left", left.Round(time.Second)))
	}
	return nil
}

// soon is the time before the end of a certificate from which reading it is worth a
// warning (failover S5).
const soon = 24 * time.Hour

func (f Files) load() (*loaded, error) {
	out := &loaded{}
	if f.Cert != "" {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
		}
		out.cert = &cert
		for _, der := range cert.Certificate {
			leaf, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, fmt.Errorf("certificate %s: %w", f.Cert, err)
			}
			if out.expires.IsZero() || leaf.NotAfter.Before(out.expires) {
				out.expires = leaf.NotAfter
			}
		}
	}
	if f.CA != "" {
		raw, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("CA: %w", err)
		}
		out.roots = x509.NewCertPool()
		if !out.roots.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("CA %s: no certificate in it", f.CA)
		}
	}
	return out, nil
}

// Peer reports whether the other end of a connection has shown a verified
// certificate with one of the given names among its subject alternative names:
// DNS names, URIs, IP and mail addresses. A '*' at the end of a name stands for
// anything behind it. The common name does not count.
func Peer(state *tls.ConnectionState, names []string) bool {
	if state == nil || len(state.VerifiedChains) == 0 {
		return false
	}
	leaf := state.VerifiedChains[0][0]
	for _, name := range leaf.DNSNames {
		if listed(names, name) {
			return true
		}
	}
	for _, uri := range leaf.URIs {
		if listed(names, uri.String()) {
			return true
		}
	}
	for _, ip := range leaf.IPAddresses {
		if listed(names, ip.String()) {
			return true
		}
	}
	for _, mail := range leaf.EmailAddresses {
		if listed(names, mail) {
			return true
		}
	}
	return false
}

func listed(names []string, name string) bool {
	for _, want := range names {
		if head, open := strings.CutSuffix(want, "*"); open && strings.HasPrefix(name, head) || want == name {
			return true
		}
	}
	return false
}
