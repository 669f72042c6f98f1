package stack

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// Etcd is an etcd server inside this process. It can be stopped and started
// again with its data and its address kept.
type Etcd struct {
	Endpoint string // http://host:port of its clients

	peer string
	dir  string

	mu     sync.Mutex
	server *embed.Etcd
}

// newEtcd prepares a server at host with its data below dir; Start runs it.
func newEtcd(host, dir string) *Etcd {
	return &Etcd{Endpoint: "http://" + host + ":2379", peer: "http://" + host + ":2380", dir: dir}
}

// Start runs the server and returns when it answers. It does nothing while the
// server runs.
func (e *Etcd) Start(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != nil {
		return nil
	}
	cfg, err := e.config()
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd at %s: %w", e.Endpoint, err)
	}
	select {
	case <-server.Server.ReadyNotify():
		e.server = server
		return nil
	case err = <-server.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	server.Close()
	return fmt.Errorf("start etcd at %s: %w", e.Endpoint, err)
}

func (e *Etcd) config() (*embed.Config, error) {
	client, err := url.Parse(e.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("etcd address: %w", err)
	}
	peer, err := url.Parse(e.peer)
	if err != nil {
		return nil, fmt.Errorf("etcd address: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(e.dir, "etcd")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.LogLevel, cfg.LogOutputs = "warn", []string{filepath.Join(e.dir, "etcd.log")}
	// One member elects itself; its data need not survive the machine.
	cfg.TickMs, cfg.ElectionMs, cfg.UnsafeNoFsync = 20, 200, true
	return cfg, nil
}

// Stop ends the server and frees its port; its data stays for Start.
func (e *Etcd) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return
	}
	// Close waits for open client streams; a watch never ends by itself.
	e.server.Server.HardStop()
	closed := make(chan struct{})
	go func(s *embed.Etcd) { defer close(closed); s.Close() }(e.server)
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
	e.server = nil
}
