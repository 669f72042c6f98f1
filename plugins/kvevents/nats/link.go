package nats

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Timing of the connection. A broker that does not answer two pings is gone.
const (
	pingInterval = 10 * time.Second
	pingsOut     = 2
	writeTimeout = 10 * time.Second
)

// dialer makes the client library's dials end with a context.
type dialer struct {
	ctx context.Context //nolint:containedctx // the library's interface has no room for it
	d   net.Dialer
}

// Dial connects to one of the broker's addresses.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	return d.d.DialContext(d.ctx, network, address)
}

// dial connects to the broker. The connection does not mend itself: a session
// that begins anew knows where to go on, one that is mended does not know what
// was on its way. closed is closed when the connection has ended.
func (s *Subscriber) dial(ctx context.Context) (nc *nats.Conn, closed <-chan struct{}, err error) {
	opts, err := s.options(ctx)
	if err != nil {
		return nil, nil, err
	}
	over := make(chan struct{})
	opts = append(opts,
		nats.ClosedHandler(func(*nats.Conn) { close(over) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			s.log.LogAttrs(ctx, slog.LevelWarn, "nats reports a fault", slog.Any("error", err))
		}),
	)
	nc, err = nats.Connect(strings.Join(s.cfg.servers(), ","), opts...)
	return nc, over, err
}

// options reads the files that the configuration names, so that each connection
// uses what they hold at the time.
func (s *Subscriber) options(ctx context.Context) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name("pointsman-router-kv"), nats.NoReconnect(), nats.Timeout(s.cfg.ConnectWait),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOut), nats.FlusherTimeout(writeTimeout),
		nats.CustomInboxPrefix(s.cfg.InboxPrefix), nats.SetCustomDialer(&dialer{ctx: ctx}),
	}
	if s.cfg.Credentials != "" {
		opts = append(opts, nats.UserCredentials(s.cfg.Credentials))
	}
	if s.cfg.NkeySeed != "" {
		nkey, err := nats.NkeyOptionFromSeed(s.cfg.NkeySeed)
		if err != nil {
			return nil, fmt.Errorf("nkey seed %s: %w", s.cfg.NkeySeed, err)
		}
		opts = append(opts, nkey)
	}
	if s.cfg.Token != "" {
		opts = append(opts, nats.Token(s.cfg.Token))
	}
	if s.cfg.CA != "" {
		opts = append(opts, nats.RootCAs(s.cfg.CA))
	}
	if s.cfg.Cert != "" {
		opts = append(opts, nats.ClientCert(s.cfg.Cert, s.cfg.Key), nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	return opts, nil
}
