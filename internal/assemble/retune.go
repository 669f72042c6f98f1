package assemble

import (
	"context"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"pointsman/config"
	"pointsman/picker"
	"pointsman/plugins"
)

// picking is what the picker is told.
func picking(cfg *config.Config) picker.Config {
	out := cfg.Picker
	out.Protocols = slices.Sorted(maps.Keys(plugins.Connectors)) // a pair that no forwarder can serve is no pair
	if cfg.PDMode == "off" {
		out.Protocols = []string{}
	}
	return out
}

// retune gives the common rooms each new configuration. A row of the table that
// is tuned while running must reach its room here or in a program's wire.go.
func (c *Core) retune() {
	c.Live.OnReload("breaker", func(cfg *config.Config) error { return c.breakers.SetConfig(cfg.Breaker) })
	c.Live.OnReload("picker", func(cfg *config.Config) error { return c.Picker.SetConfig(picking(cfg)) })
	c.Live.OnReload("admission", func(cfg *config.Config) error { return c.Gate.SetConfig(cfg.Admission) })
	c.Live.OnReload("health", func(cfg *config.Config) error { return c.health.SetConfig(cfg.Health) })
	c.Live.Report("health", func() any { return c.health.Snapshot() })
	c.Live.Report("admission", func() any {
		s := c.Gate.Snapshot()
		s.Warming = c.Picker.Warming(time.Now())
		return s
	})
}

// followConfig follows the configuration file, and SIGHUP, until ctx is done.
func (c *Core) followConfig(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	return c.Live.Run(ctx, hup)
}
