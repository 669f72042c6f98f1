package nats

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"pointsman/forward"
)

// DefaultServer is where the broker is when nothing says otherwise
// (Infera infera/kv/nats_bus.py).
const DefaultServer = "nats://127.0.0.1:4222"

// Config is the transport's tuning. Start from [DefaultConfig].
type Config struct {
	// Server holds one or more URLs, comma separated: nats://, tls://, ws:// or
	// wss://, with user and password or a token in them if need be. Default
	// [DefaultServer].
	Server string

	IdleTimeout time.Duration // longest wait for a worker's next frame; 0 for ever; default 900 s (--nats-req-idle-timeout)
	MaxDuration time.Duration // longest duration of a whole request; 0 (default) no limit (--nats-req-max-duration)
	MaxPending  int           // requests that a worker may have unanswered; 0 (default) no limit (--nats-req-max-pending)

	Credentials  string // file of a decentralized user (.creds); "" for none
	NkeySeed     string // file with an nkey seed; "" for none
	Token        string // authentication token; "" for none
	CA           string // file of the certificates to trust; "" for the system's
	Cert, Key    string // files of the client certificate; "" for none
	InboxPrefix  string // first part of reply subjects, for brokers that restrict them; default _INBOX
	ConnectWait  time.Duration
	ReplyBuffer  int64 // bytes of one answer kept for a client that does not take them; default 8 MiB
	TotalBuffer  int64 // the same, of all answers together; default 256 MiB
	MaxReply     int64 // largest answer that is held until its status is known; default 64 MiB
	WholeReplies bool  // ask for unary answers in one frame, as Infera's routers do; default false

	// ProbeInterval is how often a silent exchange asks the broker whether its
	// worker is still connected, the first time after half a second. 0 never
	// asks. Default 2 s.
	ProbeInterval time.Duration

	// Fallback takes requests that the broker cannot carry: larger than its
	// max_payload, or no JSON posts. nil (default) refuses them.
	Fallback forward.Transport
}

// DefaultConfig returns the defaults named in [Config].
func DefaultConfig() Config {
	return Config{
		Server:        DefaultServer,
		IdleTimeout:   900 * time.Second,
		InboxPrefix:   "_INBOX",
		ConnectWait:   2 * time.Second,
		ReplyBuffer:   8 << 20,
		TotalBuffer:   256 << 20,
		MaxReply:      64 << 20,
		ProbeInterval: 2 * time.Second,
	}
}

// Validate reports all faults of c. It opens no file.
func (c Config) Validate() error {
	var errs []error
	if len(c.servers()) == 0 {
		errs = append(errs, errors.New("nats server: give the URL of a broker"))
	}
	for _, s := range c.servers() {
		u, err := url.Parse(s)
		switch {
		case err != nil: // the parser's text holds the URL, and with it a password
			errs = append(errs, errors.New("nats server: not a URL"))
		case u.Host == "":
			errs = append(errs, fmt.Errorf("nats server %q: give host and port", u.Scheme+"://"+u.Host))
		case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "ws" && u.Scheme != "wss":
			errs = append(errs, fmt.Errorf("nats server %q: want nats, tls, ws or wss", u.Scheme+"://"+u.Host))
		}
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"idle timeout", c.IdleTimeout},
		{"max duration", c.MaxDuration},
		{"probe interval", c.ProbeInterval},
		{"connect wait", c.ConnectWait},
	} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("nats %s %s: must not be negative", d.name, d.d))
		}
	}
	if c.MaxPending < 0 {
		errs = append(errs, fmt.Errorf("nats max pending %d: must not be negative", c.MaxPending))
	}
	if (c.Cert == "") != (c.Key == "") {
		errs = append(errs, errors.New("nats client certificate: give both the certificate and its key"))
	}
	if c.Credentials != "" && c.NkeySeed != "" {
		errs = append(errs, errors.New("nats credentials: give a credentials file or an nkey seed, not both"))
	}
	if strings.ContainsAny(c.InboxPrefix, " \t\r\n*>") || c.InboxPrefix == "" || strings.HasSuffix(c.InboxPrefix, ".") {
		errs = append(errs, fmt.Errorf("nats inbox prefix %q: want a subject without wildcards", c.InboxPrefix))
	}
	if c.ReplyBuffer < 1 || c.TotalBuffer < c.ReplyBuffer || c.MaxReply < 1 {
		errs = append(errs, fmt.Errorf("nats buffers of %d, %d and %d bytes: want at least 1, and no less in total than for one", c.ReplyBuffer, c.TotalBuffer, c.MaxReply))
	}
	return errors.Join(errs...)
}

// servers returns the URLs of c, each with a scheme.
func (c Config) servers() []string {
	var out []string
	for s := range strings.SplitSeq(c.Server, ",") {
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

// redacted returns the servers as logs may show them: a URL's user part can be a
// password or a token.
func (c Config) redacted() string {
	var out []string
	for _, s := range c.servers() {
		if u, err := url.Parse(s); err == nil {
			out = append(out, u.Scheme+"://"+u.Host)
		}
	}
	return strings.Join(out, ",")
}
