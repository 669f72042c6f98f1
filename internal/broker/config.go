// Package broker connects to the NATS broker of a fleet, for the adapters that speak
// over one: KV events, requests and load reports. It knows where the broker is, how
// to prove who we are, and which of the client library's habits we do without.
//
// # Concurrency
//
// A [Config] is a value. [Config.Dial] may be called from any goroutine.
package broker

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Where the broker is, and where it sends replies, when nothing says otherwise
// (Infera infera/kv/nats_bus.py; the client libraries' own prefix).
const (
	DefaultServer      = "nats://127.0.0.1:4222"
	DefaultInboxPrefix = "_INBOX"
)

// Config is where the broker is and as whom to connect. The zero value is the
// default: [DefaultServer], without credentials.
type Config struct {
	// Server holds one or more URLs, comma separated: nats://, tls://, ws:// or
	// wss://, with user and password or a token in them if need be; without a
	// scheme it is nats://. "" is [DefaultServer].
	Server string

	Credentials string // file of a decentralized user (.creds); "" for none
	NkeySeed    string // file with an nkey seed; "" for none
	Token       string // authentication token; "" for none
	CA          string // file of the certificates to trust; "" for the system's
	Cert, Key   string // files of the client certificate; "" for none

	// InboxPrefix is the first part of reply subjects, for brokers that restrict
	// them. "" is [DefaultInboxPrefix].
	InboxPrefix string
}

// DefaultConfig returns what a zero Config stands for.
func DefaultConfig() Config {
	return Config{Server: DefaultServer, InboxPrefix: DefaultInboxPrefix}
}

// WithDefaults returns c with what it leaves out.
func (c Config) WithDefaults() Config {
	d := DefaultConfig()
	c.Server = cmp.Or(c.Server, d.Server)
	c.InboxPrefix = cmp.Or(c.InboxPrefix, d.InboxPrefix)
	return c
}

// Validate reports all faults of c, without the secrets in it. It opens no file.
func (c Config) Validate() error {
	var errs []error
	servers := c.servers()
	if len(servers) == 0 {
		errs = append(errs, errors.New("nats server: the list names none, give the URL of a broker"))
	}
	for _, s := range servers {
		errs = append(errs, checkServer(s))
	}
	if (c.Cert == "") != (c.Key == "") {
		errs = append(errs, errors.New("nats client certificate: give both the certificate and its key"))
	}
	if c.Credentials != "" && c.NkeySeed != "" {
		errs = append(errs, errors.New("nats credentials: give a credentials file or an nkey seed, not both"))
	}
	if strings.ContainsAny(c.InboxPrefix, " \t\r\n*>") || strings.HasSuffix(c.InboxPrefix, ".") {
		errs = append(errs, fmt.Errorf("nats inbox prefix %q: want a subject without wildcards", c.InboxPrefix))
	}
	return errors.Join(errs...)
}

func checkServer(s string) error {
	u, err := url.Parse(s)
	if err != nil { // the parser's text holds the URL, and with it a password
		return errors.New("nats server: not a URL")
	}
	shown := u.Scheme + "://" + u.Host
	if u.Host == "" {
		return fmt.Errorf("nats server %q: give host and port", shown)
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return nil
	}
	return fmt.Errorf("nats server %q: want nats, tls, ws or wss", shown)
}

// servers returns the URLs of c, each with a scheme.
func (c Config) servers() []string {
	var out []string
	for s := range strings.SplitSeq(c.WithDefaults().Server, ",") {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		out = append(out, s)
	}
	return out
}

// Redacted returns the servers as logs may show them: a URL's user part can be a
// password or a token.
func (c Config) Redacted() string {
	var out []string
	for _, s := range c.servers() {
		if u, err := url.Parse(s); err == nil {
			out = append(out, u.Scheme+"://"+u.Host)
		}
	}
	return strings.Join(out, ",")
}
