package assemble

import (
	"context"
	"fmt"

	"pointsman/config"
	"pointsman/forward"
	httptransport "pointsman/plugins/transport/http"
	natstransport "pointsman/plugins/transport/nats"
)

// Transports makes what carries requests to workers, by the name that workers
// register, and the parts to run. With --request-transport http every worker is
// reached over HTTP, whatever it registered, as by Infera's server.
func (c *Core) Transports() (map[string]forward.Transport, map[string]func(context.Context) error, error) {
	settings := httptransport.DefaultConfig()
	settings.Protocol = httptransport.Protocol(c.Config.Upstream.Protocol)
	settings.ConnectTimeout = c.Config.Upstream.ConnectTimeout
	settings.KeepAlive = c.Config.Upstream.KeepAlive
	settings.Control = c.Config.Addresses().Dial
	var err error
	if settings.TLS, err = c.workerTLS(); err != nil {
		return nil, nil, fmt.Errorf("http transport: %w", err)
	}
	http, err := httptransport.New(settings)
	if err != nil {
		return nil, nil, fmt.Errorf("http transport: %w", err)
	}
	if err := http.Register(c.Registry); err != nil {
		return nil, nil, fmt.Errorf("http transport: %w", err)
	}
	transports := map[string]forward.Transport{"http": http, "nats": http}
	runs := map[string]func(context.Context) error{"http transport": http.Run}
	if c.Config.RequestTransport == "nats" {
		nats, err := natstransport.New(natsSettings(c.Config, http), c.Log)
		if err != nil {
			return nil, nil, fmt.Errorf("nats transport: %w", err)
		}
		if err := nats.Register(c.Registry); err != nil {
			return nil, nil, fmt.Errorf("nats transport: %w", err)
		}
		c.broker = nats
		transports["nats"], runs["nats transport"] = nats, nats.Run
	}
	return transports, runs, nil
}

func natsSettings(cfg *config.Config, fallback forward.Transport) natstransport.Config {
	s := natstransport.DefaultConfig()
	s.Broker = cfg.NATS.Config
	s.IdleTimeout, s.MaxDuration, s.MaxPending = cfg.NATS.IdleTimeout, cfg.NATS.MaxDuration, cfg.NATS.MaxPending
	s.Fallback = fallback
	return s
}
