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
	connectWait  = 5 * time.Second
	pingInterval = 10 * time.Second
	pingsOut     = 2
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

// dial connects to the broker. The files that the configuration names are read each
// time.
func (l *Link) dial(ctx context.Context) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name("pointsman-load"), nats.NoReconnect(), nats.Timeout(connectWait),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOut), nats.SetCustomDialer(&dialer{ctx: ctx}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			l.log.LogAttrs(ctx, slog.LevelWarn, "nats reports a fault", slog.Any("error", err))
		}),
	}
	if l.cfg.Credentials != "" {
		opts = append(opts, nats.UserCredentials(l.cfg.Credentials))
	}
	if l.cfg.NkeySeed != "" {
		nkey, err := nats.NkeyOptionFromSeed(l.cfg.NkeySeed)
		if err != nil {
			return nil, fmt.Errorf("nkey seed %s: %w", l.cfg.NkeySeed, err)
		}
		opts = append(opts, nkey)
	}
	if l.cfg.Token != "" {
		opts = append(opts, nats.Token(l.cfg.Token))
	}
	if l.cfg.CA != "" {
		opts = append(opts, nats.RootCAs(l.cfg.CA))
	}
	if l.cfg.Cert != "" {
		opts = append(opts, nats.ClientCert(l.cfg.Cert, l.cfg.Key), nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	nc, err := nats.Connect(servers(l.cfg.Server), opts...)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return nc, nil
}

// servers gives each URL of the list a scheme.
func servers(list string) string {
	var out []string
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		out = append(out, s)
	}
	return strings.Join(out, ",")
}
