package assemble

import (
	"context"
	"math/rand/v2"

	"pointsman/config"
	"pointsman/forward"
	"pointsman/health"
)

// newHealth makes the prober and tells the picker of it.
func (c *Core) newHealth(cfg health.Config) error {
	cfg.Seed = rand.Uint64() //nolint:gosec // routers of one fleet must not probe in step; no secret
	prober, err := health.New(cfg, health.Deps{Store: c.Store, Log: c.Log, Ping: c.ping})
	if err != nil {
		return err
	}
	c.health = prober
	c.Picker.SetHealth(prober)
	return nil
}

// ping asks a worker over the broker that requests go over. A broker out of
// reach tells nothing of the workers.
func (c *Core) ping(ctx context.Context, subject string) error {
	if c.broker == nil || !c.broker.Connected() {
		return health.ErrNoNews
	}
	return c.broker.Ping(ctx, subject)
}

// probe runs the prober. A forwarder that only obeys headers does not need one,
// and beside every worker it would make each worker answer all forwarders: it
// begins when a request has to be scored.
func (c *Core) probe(ctx context.Context) error {
	if c.Config.Program == config.Forwarder && c.Config.Forward.Mode == forward.Direct {
		select {
		case <-c.wanted:
		case <-ctx.Done():
			return nil
		}
	}
	return c.health.Run(ctx)
}
