package testfleet

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is a real etcd server in the test's process.
type Etcd struct {
	Endpoint string // URL of the client port; it stays over a restart

	dir    string
	edit   func(*embed.Config)
	server *embed.Etcd
}

// StartEtcd starts a server that ends with the test. edit, which may be nil,
// changes its configuration before each start.
func StartEtcd(tb testing.TB, edit func(*embed.Config)) *Etcd {
	tb.Helper()
	e := &Etcd{Endpoint: "http://" + freeAddress(tb), dir: tb.TempDir(), edit: edit}
	e.Start(tb)
	tb.Cleanup(func() { e.Stop(tb) })
	return e
}

// freeAddress returns an address that nothing listens on at the moment.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Start starts the server and waits until it answers.
func (e *Etcd) Start(tb testing.TB) {
	tb.Helper()
	client, err := url.Parse(e.Endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg := embed.NewConfig()
	cfg.Dir = e.dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.TickMs, cfg.ElectionMs, cfg.UnsafeNoFsync = 10, 100, true
	cfg.BcryptCost = 4 // the least: a test's password needs no protection
	if e.edit != nil {
		e.edit(cfg)
		e.Endpoint = cfg.AdvertiseClientUrls[0].String()
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	e.server = server
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		tb.Fatal(err)
	case <-tb.Context().Done():
		tb.Fatal("the test ended before etcd was ready")
	}
}

// Stop ends the server at once, without waiting for its clients.
func (e *Etcd) Stop(tb testing.TB) {
	tb.Helper()
	if e.server == nil {
		return
	}
	e.server.Server.HardStop()
	e.server.Close()
	e.server = nil
}

// Restart stops the server and starts it with the same data and address.
func (e *Etcd) Restart(tb testing.TB) {
	tb.Helper()
	e.Stop(tb)
	e.Start(tb)
}

// Client returns a client for the test's own use; it ends with the test.
func (e *Etcd) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Put writes a key.
func (e *Etcd) Put(tb testing.TB, c *clientv3.Client, key, value string, opts ...clientv3.OpOption) int64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	resp, err := c.Put(ctx, key, value, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.Header.Revision
}
