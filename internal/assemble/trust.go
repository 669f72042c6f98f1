package assemble

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/ops"
	"pointsman/internal/run"
	"pointsman/trust"
)

// TicketKeys opens the keys of route tickets; nil when there are to be none.
func (c *Core) TicketKeys() (*trust.Keys, error) {
	if c.Config.Forward.Trust != forward.TrustHMAC {
		return nil, nil //nolint:nilnil // no tickets are a valid setting
	}
	return trust.OpenKeys(c.Config.Trust.KeyFile, c.Log)
}

// Tickets makes what checks route tickets; nil when there are to be none.
func (c *Core) Tickets() (*trust.Tickets, error) {
	keys, err := c.TicketKeys()
	if keys == nil || err != nil {
		return nil, err
	}
	tickets := trust.NewTickets(keys)
	return tickets, tickets.Register(c.Registry)
}

// Salts opens what derives cache salts.
func (c *Core) Salts() (*trust.Salts, error) {
	salts := &trust.Salts{Mode: c.Config.Trust.SaltMode}
	if salts.Mode != trust.SaltTenant {
		return salts, nil
	}
	keys, err := trust.OpenKeys(c.Config.Trust.SaltKeyFile, c.Log)
	salts.Keys = keys
	return salts, err
}

// ListenTLS returns how the door's connections are secured; nil when no
// certificate is given.
func (c *Core) ListenTLS(name string, protocols ...string) (*tls.Config, error) {
	if c.Config.CertPath == "" {
		return nil, nil //nolint:nilnil // no certificate is a valid setting
	}
	certs, err := trust.OpenCerts(name, c.Config.ListenCerts(), c.Log)
	if err != nil {
		return nil, err
	}
	return certs.Server(trust.ServerPolicy{
		MinVersion: c.Config.TLSVersion(), Protocols: protocols,
		RequireClient: c.Config.Program&config.EPP != 0, // kubelets have none, and probe the forwarder's port
	}), certs.Register(c.Registry)
}

// workerTLS returns the source of the configuration for https workers; nil for the
// default.
func (c *Core) workerTLS() (func() *tls.Config, error) {
	files := c.Config.WorkerCerts()
	if files == (trust.Files{}) {
		return nil, nil //nolint:nilnil // the default is a valid setting
	}
	certs, err := trust.OpenCerts("workers", files, c.Log)
	if err != nil {
		return nil, err
	}
	return certs.Client, certs.Register(c.Registry)
}

// forwarderTLS returns the source of the configuration for forwarders whose port
// speaks TLS; nil when it does not.
func (c *Core) forwarderTLS() (func() *tls.Config, error) {
	t := &c.Config.Trust
	if t.ForwarderCA == "" {
		return nil, nil //nolint:nilnil // plain HTTP is a valid setting
	}
	certs, err := trust.OpenCerts("forwarders", trust.Files{CA: t.ForwarderCA}, c.Log)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config {
		cfg := certs.Client()
		if t.ForwarderName != "" {
			cfg = cfg.Clone()
			cfg.ServerName = t.ForwarderName
		}
		return cfg
	}, nil
}

// guard keeps workers out of the fleet that are where no worker can be.
func (c *Core) guard() {
	addresses := c.Config.Addresses()
	var mu sync.Mutex
	told := map[string]string{} // by worker: what was last said of it
	c.Store.SetAdmit(func(w *fleet.Worker) error {
		err := addresses.Worker(w)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			delete(told, w.ID)
			return nil
		}
		if told[w.ID] != err.Error() && len(told) < maxTold {
			told[w.ID] = err.Error()
			c.Log.LogAttrs(context.Background(), slog.LevelWarn, "a worker is where no worker can be; it gets no requests",
				slog.String("worker_id", w.ID), slog.Any("error", err))
		}
		return fmt.Errorf("worker %q: %w", w.ID, err)
	})
}

// maxTold bounds the memory of what has been logged.
const maxTold = 4096

// profile serves the profiler, if it is asked for.
func (c *Core) profile(ctx context.Context) error {
	at := c.Config.Trust.Pprof
	if at == "" {
		return nil
	}
	var listen net.ListenConfig
	lis, err := listen.Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("open the port: %w", err)
	}
	return run.HTTP(lis, ops.Profiler(c.Config.AdminToken))(ctx)
}
