package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Config says where etcd is and how much patience to have with it. Endpoints is
// required; of the rest zero means the default.
type Config struct {
	// Endpoints is a comma list of host, host:port, http://… or https://…; a
	// missing port is 2379 (Infera infera/common/discovery.py).
	Endpoints string
	// Prefix of the worker records' keys; default /infera/workers/. A missing
	// trailing slash is added.
	Prefix string
	// User and Password to authenticate with; "" for none.
	User, Password string
	// CA, Cert and Key are PEM files: the authority to trust instead of the
	// system's, and the client's own certificate. Endpoints without a scheme are
	// reached over TLS when any is given. Cert and Key are read at every
	// handshake, CA at every connection attempt.
	CA, Cert, Key string

	Timeout    time.Duration // of a connection attempt and of the listing; default 5 s
	Probe      time.Duration // how often etcd is asked for a sign of life; default 5 s
	Silence    time.Duration // without any sign of life the connection counts as dead; default 15 s
	Backoff    time.Duration // wait after a failure, doubling; default 1 s, as in Infera
	MaxBackoff time.Duration // default 30 s, as in Infera
}

// DefaultConfig returns a Config that lacks only its Endpoints.
func DefaultConfig() Config {
	return Config{
		Prefix:  "/infera/workers/",
		Timeout: 5 * time.Second, Probe: 5 * time.Second, Silence: 15 * time.Second,
		Backoff: time.Second, MaxBackoff: 30 * time.Second,
	}
}

// Validate reports all faults of c at once. It does not read the PEM files.
func (c Config) Validate() error {
	var errs []error
	if _, err := c.endpoints(); err != nil {
		errs = append(errs, err)
	}
	if (c.Cert == "") != (c.Key == "") {
		errs = append(errs, errors.New("etcd: a client certificate needs both its file and its key's file"))
	}
	if c.User == "" && c.Password != "" {
		errs = append(errs, errors.New("etcd: a password needs a user"))
	}
	for name, d := range map[string]time.Duration{
		"timeout": c.Timeout, "probe": c.Probe, "silence": c.Silence, "backoff": c.Backoff, "maximum backoff": c.MaxBackoff,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("etcd: %s %v is below 0: give 0 for the default", name, d))
		}
	}
	if d := c.withDefaults(); d.Silence <= d.Probe {
		errs = append(errs, fmt.Errorf("etcd: silence %v must be longer than the probes' interval %v", d.Silence, d.Probe))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	c.Timeout = cmp.Or(c.Timeout, d.Timeout)
	c.Probe = cmp.Or(c.Probe, d.Probe)
	c.Silence = cmp.Or(c.Silence, d.Silence)
	c.Backoff = cmp.Or(c.Backoff, d.Backoff)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, d.MaxBackoff)
	return c
}

func (c Config) secure() bool { return c.CA != "" || c.Cert != "" }

// endpoints returns the addresses as URLs, all of one scheme.
func (c Config) endpoints() ([]string, error) {
	var out []string
	for raw := range strings.SplitSeq(c.Endpoints, ",") {
		raw = strings.TrimRight(strings.TrimSpace(raw), "/")
		if raw == "" {
			continue
		}
		ep, err := c.endpoint(raw)
		if err != nil {
			return nil, fmt.Errorf("etcd endpoint %q: %w", raw[strings.LastIndexByte(raw, '@')+1:], err) // before an @ may be a password
		}
		if len(out) > 0 && strings.HasPrefix(ep, "https") != strings.HasPrefix(out[0], "https") {
			return nil, errors.New("etcd endpoints: http and https do not mix")
		}
		out = append(out, ep)
	}
	if len(out) == 0 {
		return nil, errors.New("etcd: no endpoint: give host:port")
	}
	return out, nil
}

func (c Config) endpoint(raw string) (string, error) {
	scheme, addr, given := strings.Cut(raw, "://")
	switch {
	case !given:
		scheme, addr = "http", raw
		if c.secure() {
			scheme = "https"
		}
	case scheme != "http" && scheme != "https":
		return "", errors.New("want http:// or https://")
	}
	if c.secure() && scheme == "http" {
		return "", errors.New("certificates are given: want https://")
	}
	if strings.ContainsAny(addr, "/?#@ ") {
		return "", errors.New("want host:port, nothing behind it, and no user: give that with --etcd-user and --etcd-password")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = strings.Trim(addr, "[]"), "2379"
		if strings.Contains(host, ":") {
			if _, err := netip.ParseAddr(host); err != nil {
				return "", errors.New("want host:port")
			}
		}
	}
	if host == "" || port == "" {
		return "", errors.New("want host:port")
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// tls returns the TLS settings, nil for plain endpoints.
func (c Config) tls(endpoints []string) (*tls.Config, error) {
	if !strings.HasPrefix(endpoints[0], "https") {
		return nil, nil //nolint:nilnil // no TLS is a valid answer
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd CA: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd CA %s: no PEM certificate in it", c.CA)
		}
	}
	if c.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			if err != nil {
				return nil, fmt.Errorf("etcd client certificate: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return t, nil
}
