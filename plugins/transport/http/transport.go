package http

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"pointsman/fleet"
	"pointsman/forward"
)

// Transport sends requests to workers. Create it with [New].
type Transport struct {
	cfg   Config
	dials dialing
	pool  pool
	heads sync.Pool // of *[]byte: request heads
	bufs  sync.Pool // of *[]byte: connections' read buffers
	std   *std      // HTTP/2; nil for HTTP/1.1
}

var _ forward.Transport = (*Transport)(nil)

// New returns a transport. It does no I/O.
func New(cfg Config) (*Transport, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("http transport: %w", err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = defaultConnect
	}
	t := &Transport{cfg: cfg, pool: pool{cfg: cfg}}
	t.dials = dialing{limit: cfg.ConnectTimeout, tls: cfg.TLS, protos: []string{"http/1.1"}, dialer: dialer(cfg), metrics: newMetrics()}
	if cfg.Protocol == H2C {
		t.dials.protos = []string{"h2"}
		t.std = newStd(cfg, &t.dials)
	}
	return t, nil
}

func dialer(cfg Config) net.Dialer {
	return net.Dialer{
		Control:   cfg.Control,
		KeepAlive: -1, // else the default would count while KeepAliveConfig is off
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   cfg.KeepAlive > 0,
			Idle:     cfg.KeepAlive,
			Interval: 15 * time.Second,
			Count:    4,
		},
	}
}

// Run closes connections that have been unused for too long, until ctx is done;
// then it closes all unused ones.
func (t *Transport) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			t.Close()
			return nil
		case now := <-tick.C:
			t.pool.sweep(now)
		}
	}
}

// Close closes the connections that are not in use.
func (t *Transport) Close() {
	t.pool.close()
	if t.std != nil {
		t.std.tr.CloseIdleConnections()
	}
}

// Do sends req to w, as forward.Transport says.
func (t *Transport) Do(ctx context.Context, w *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	if t.std != nil {
		return t.std.do(ctx, w, req)
	}
	return t.exchange(ctx, w, req)
}

// dial opens a connection to a worker, within limit when it is not 0. It does so on a
// goroutine's stack of its own: the caller's would keep what it has grown by for as long
// as its stream is open.
func (t *Transport) dial(ctx context.Context, key poolKey, limit time.Duration) (*conn, error) {
	var nc, raw net.Conn
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, raw, err = t.dials.open(withLimit(ctx, limit), key.addr, key.tls)
	}()
	<-done // open obeys ctx
	if err != nil {
		return nil, err
	}
	return newConn(nc, raw, key, &t.bufs), nil
}

// poolKey is what connections can be shared for.
type poolKey struct {
	addr string
	tls  bool
}

// keyOf returns where w is reached.
func keyOf(w *fleet.Worker) poolKey {
	return poolKey{addr: addrOf(w), tls: strings.HasPrefix(w.URL, "https://")}
}

// addrOf returns host:port of w, which is a part of most URLs: then nothing has
// to be put together for each request.
func addrOf(w *fleet.Worker) string {
	_, rest, _ := strings.Cut(w.URL, "://")
	addr, _, _ := strings.Cut(rest, "/")
	if port, ok := strings.CutPrefix(addr, w.Host); ok && w.Host != "" && len(port) > 1 && port[0] == ':' && port[1] != '+' && port[1] != '0' {
		if n, err := strconv.Atoi(port[1:]); err == nil && n == w.Port {
			return addr
		}
	}
	return net.JoinHostPort(w.Host, strconv.Itoa(w.Port))
}
