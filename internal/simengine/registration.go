package simengine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pointsman/wire"
)

// callTimeout bounds each call to etcd.
const callTimeout = 5 * time.Second

// registration keeps the engine's record where routers look for it.
type registration interface {
	// run writes the record, however long that takes, and keeps it until ctx is
	// done. life ends with the engine.
	run(ctx, life context.Context)
	// registered is closed once the record was written.
	registered() <-chan struct{}
	// withdraw takes the record out. run must have returned.
	withdraw(ctx context.Context) error
	close()
}

// registrar keeps one record in etcd as Infera's launcher does: a lease, a
// heartbeat that does not write the value again, and a whole new registration
// when the lease is gone (infera/common/registration.py, discovery.py).
type registrar struct {
	client *clientv3.Client
	key    string
	value  string
	ttl    time.Duration
	log    *slog.Logger
	done   chan struct{} // closed once the first registration is written

	mu    sync.Mutex
	lease clientv3.LeaseID // 0 while there is none
}

func newRegistrar(cfg EtcdConfig, id string, value []byte, log *slog.Logger) (*registrar, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdEndpoint(cfg.Endpoint)}, DialTimeout: callTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return &registrar{
		client: client, key: wire.WorkerKey(cfg.Prefix, id), value: string(value), ttl: cfg.TTL, log: log, done: make(chan struct{}),
	}, nil
}

// etcdEndpoint accepts host, host:port and URLs; a bare host gets the default
// port (infera.md §1.1).
func etcdEndpoint(s string) string {
	s = strings.TrimRight(s, "/")
	host := s
	if _, rest, ok := strings.Cut(s, "://"); ok {
		host = rest
	}
	if strings.LastIndexByte(host, ':') <= strings.LastIndexByte(host, ']') {
		s += ":2379"
	}
	return s
}

// run registers and keeps the lease alive until ctx is done.
func (r *registrar) run(ctx, _ context.Context) {
	beat := max(r.ttl/3, time.Second)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	r.registerUntilDone(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch err := r.keepAlive(ctx); {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			r.log.LogAttrs(ctx, slog.LevelWarn, "lease gone, registering again", slog.String("key", r.key))
			r.registerUntilDone(ctx)
		default:
			r.log.LogAttrs(ctx, slog.LevelWarn, "heartbeat failed", slog.String("key", r.key), slog.Any("error", err))
		}
	}
}

// registerUntilDone retries each second.
func (r *registrar) registerUntilDone(ctx context.Context) {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		err := r.register(ctx)
		if err == nil {
			r.log.LogAttrs(ctx, slog.LevelInfo, "registered", slog.String("key", r.key))
			return
		}
		if ctx.Err() == nil {
			r.log.LogAttrs(ctx, slog.LevelWarn, "registration failed", slog.String("key", r.key), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

// register grants a lease and writes the record under it.
func (r *registrar) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := r.client.Grant(ctx, int64(r.ttl/time.Second))
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	r.mu.Lock()
	r.lease = lease.ID
	r.mu.Unlock()
	if _, err := r.client.Put(ctx, r.key, r.value, clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	select {
	case <-r.done:
	default:
		close(r.done)
	}
	return nil
}

func (r *registrar) keepAlive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.client.KeepAliveOnce(ctx, r.current())
	return err
}

func (r *registrar) current() clientv3.LeaseID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease
}

func (r *registrar) registered() <-chan struct{} { return r.done }

func (r *registrar) close() { _ = r.client.Close() }

// withdraw revokes the lease. run must have returned.
func (r *registrar) withdraw(ctx context.Context) error {
	lease := r.current()
	if lease == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := r.client.Revoke(ctx, lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease of %s: %w", r.key, err)
	}
	return nil
}
