package broker

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

// Timing of a connection. A broker that does not answer two pings is gone.
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

// Dial connects to the broker under a name that the broker's lists show, within wait
// for each server. More options come last and win.
//
// The connection does not mend itself: what was on its way when it broke would be
// missing unnoticed. Who dials anew knows where to go on.
func (c Config) Dial(ctx context.Context, name string, wait time.Duration, more ...nats.Option) (*nats.Conn, error) {
	opts, err := c.identity()
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		nats.Name(name), nats.NoReconnect(), nats.Timeout(wait),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOut), nats.FlusherTimeout(writeTimeout),
		nats.CustomInboxPrefix(c.WithDefaults().InboxPrefix), nats.SetCustomDialer(&dialer{ctx: ctx}),
	)
	return nats.Connect(strings.Join(c.servers(), ","), append(opts, more...)...)
}

// LogFaults is the option that logs what goes wrong beside the calls.
func LogFaults(ctx context.Context, log *slog.Logger) nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { LogFault(ctx, log, err) })
}

// LogFault logs one such fault.
func LogFault(ctx context.Context, log *slog.Logger, err error) {
	log.LogAttrs(ctx, slog.LevelWarn, "nats reports a fault", slog.Any("error", err))
}

// identity reads the files that the configuration names, so that each connection
// uses what they hold at the time.
func (c Config) identity() ([]nats.Option, error) {
	var opts []nats.Option
	if c.Credentials != "" {
		opts = append(opts, nats.UserCredentials(c.Credentials))
	}
	if c.NkeySeed != "" {
		nkey, err := nats.NkeyOptionFromSeed(c.NkeySeed)
		if err != nil {
			return nil, fmt.Errorf("nkey seed %s: %w", c.NkeySeed, err)
		}
		opts = append(opts, nkey)
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(c.Token))
	}
	if c.CA != "" {
		opts = append(opts, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		opts = append(opts, nats.ClientCert(c.Cert, c.Key), nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	return opts, nil
}
