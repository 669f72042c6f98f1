package http

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"pointsman/internal/sock"
)

// dialing makes connections, each within one limit: TCP and TLS together, and the
// same for HTTP/1.1 and HTTP/2 (failover 2B: really applied on every path).
type dialing struct {
	dialer  net.Dialer
	limit   time.Duration
	tls     func() *tls.Config // nil verifies with the system's roots
	protos  []string           // offered in the TLS handshake
	metrics *metrics
}

// limitKey is the context key of a request's own limit: net/http dials with the
// values of the request's context, though not with its end.
type limitKey struct{}

// withLimit makes limit the longest dial for ctx; 0 leaves it as it is.
func withLimit(ctx context.Context, limit time.Duration) context.Context {
	if limit <= 0 {
		return ctx
	}
	return context.WithValue(ctx, limitKey{}, limit)
}

// open returns a connection to addr, and the TCP connection under it.
func (d *dialing) open(ctx context.Context, addr string, secure bool) (nc, raw net.Conn, err error) {
	limit := d.limit
	if own, ok := ctx.Value(limitKey{}).(time.Duration); ok {
		limit = own
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	nc, raw, err = d.connect(limited, addr, secure)
	if err != nil && ctx.Err() != nil { // it may be called by what ended it, which is no fault of the dial
		err = fmt.Errorf("dial %s: %w", addr, context.Canceled)
	}
	d.metrics.dialed(time.Since(start), err)
	return nc, raw, err
}

func (d *dialing) connect(ctx context.Context, addr string, secure bool) (nc, raw net.Conn, err error) {
	raw, err = d.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	raw = sock.New(raw)
	if !secure {
		return raw, raw, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if d.tls != nil {
		cfg = d.tls().Clone()
	}
	if cfg.ServerName == "" {
		host, _, _ := net.SplitHostPort(addr)
		cfg.ServerName = host
	}
	cfg.NextProtos = d.protos
	tc := tls.Client(raw, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, nil, errors.Join(err, raw.Close())
	}
	return tc, raw, nil
}

// plain and secure dial for net/http.
func (d *dialing) plain(ctx context.Context, _, addr string) (net.Conn, error) {
	nc, _, err := d.open(ctx, addr, false)
	return nc, err
}

func (d *dialing) secure(ctx context.Context, _, addr string) (net.Conn, error) {
	nc, _, err := d.open(ctx, addr, true)
	return nc, err
}
