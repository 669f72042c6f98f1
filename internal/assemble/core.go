// Package assemble puts together what the EPP and the forwarder have in common:
// discovery, the fleet, the prefix index, the breaker and the picker, with their
// metrics. Each program adds its door in its own wire.go.
package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/config"
	"pointsman/fleet"
	"pointsman/health"
	"pointsman/internal/run"
	"pointsman/kvindex"
	"pointsman/objectives"
	"pointsman/picker"
	"pointsman/plugins"
	"pointsman/plugins/transport/nats"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/prompt/local"
)

// Core is the common part of a program, made but not started.
type Core struct {
	Config   *config.Config // as the program started; Live has the one in force
	Live     *config.Live
	Log      *slog.Logger
	Registry *Registry
	Store    *fleet.Store
	Picker   *picker.Picker
	Gate     *admission.Gate

	breakers *breaker.Set
	health   *health.Prober
	index    *kvindex.Index
	source   fleet.Source
	events   plugins.Events   // nil when there are none
	local    *local.Tokenizer // nil when there is none
	broker   *nats.Transport  // nil when requests do not go over one
	preparer *prompt.Preparer
	audit    *audit.Auditor
	loads    loads

	scoring func()        // closes wanted, once
	wanted  chan struct{} // closed when the first prompt is to be scored
}

// collector is a room with metrics.
type collector interface {
	Register(reg prometheus.Registerer) error
}

// New makes the parts that cfg asks for. It opens no connection.
func New(cfg *config.Config, log *slog.Logger) (*Core, error) {
	wanted := make(chan struct{})
	c := &Core{
		scoring: sync.OnceFunc(func() { close(wanted) }), wanted: wanted,
		Config: cfg, Live: config.NewLive(cfg, log), Log: log, Registry: NewRegistry(), Store: &fleet.Store{}, index: kvindex.New(cfg.Index),
	}
	for _, text := range cfg.Warnings() {
		log.LogAttrs(context.Background(), slog.LevelWarn, "setting without effect", slog.String("detail", text))
	}
	settings := cfg.Breaker
	settings.Seed = rand.Uint64() //nolint:gosec // routers of one fleet must not probe in step; no secret
	breakers := breaker.NewSet(settings)
	breakers.SetLogger(log)
	var err error
	if c.Picker, err = picker.New(picking(cfg), c.Store, c.index, breakers); err != nil {
		return nil, fmt.Errorf("picker: %w", err)
	}
	c.breakers = breakers
	if err = c.newHealth(cfg.Health); err != nil {
		return nil, fmt.Errorf("health probes: %w", err)
	}
	c.retune()
	source, err := newSource(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	c.source = source
	c.Gate = admission.NewGate(cfg.Admission)
	c.Gate.SetRoles(c.roleLoads)
	c.Picker.OnRelease(c.Gate.Wake)
	c.Store.SetNames(cfg.Names)
	c.guard()
	c.audit = newAudit(cfg, c.Store, log)
	rooms := []collector{c.Store, c.index, breakers, c.Picker, c.audit, c.health, c.Gate, c.Live}
	if room, ok := source.(collector); ok {
		rooms = append(rooms, room)
	}
	tokenizer, more, err := c.newTokenizer(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	rooms = append(rooms, more...)
	c.preparer = prompt.NewPreparer(cfg.Prompt, tokenizer)
	c.preparer.SetNames(func(name string) (model, adapter string) {
		n := c.Store.Snapshot().Name(name)
		return n.Model, n.Adapter
	})
	events, err := newEvents(cfg, c.Store, c.index, log)
	if err != nil {
		return nil, fmt.Errorf("kv events: %w", err)
	}
	if events != nil {
		c.events, rooms = events, append(rooms, events)
	}
	board, err := c.newLoads(cfg)
	if err != nil {
		return nil, err
	}
	if board != nil {
		rooms = append(rooms, board)
	}
	if cfg.Program == config.EPP && cfg.Reports.Peers != "" {
		c.loads.peers = newPeers(c)
		rooms = append(rooms, c.loads.peers)
	}
	return c, c.register(rooms)
}

func (c *Core) register(rooms []collector) error {
	errs := []error{
		c.Registry.Register(collectors.NewGoCollector()),
		c.Registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	}
	for _, room := range rooms {
		errs = append(errs, room.Register(c.Registry))
	}
	return errors.Join(errs...)
}

// Start runs discovery, the picker's upkeep and, once prompts are scored, the KV
// event feed.
func (c *Core) Start(parts *run.Group) {
	parts.Go("discovery", func(ctx context.Context) error { return c.Store.Run(ctx, c.source) })
	parts.Go("picker", c.Picker.Run)
	parts.Go("admission", c.Gate.Run)
	parts.Go("health probes", c.probe)
	parts.Go("profiler", c.profile)
	parts.Go("configuration", c.followConfig)
	c.startLoads(parts)
	c.startScrape(parts)
	if c.loads.peers != nil {
		parts.Go("other replicas", c.loads.peers.run)
	}
	if c.local != nil {
		parts.Go("tokenizer", c.local.Run)
		parts.Go("canaries", c.watchCanaries)
	}
	if c.events == nil {
		return
	}
	parts.Go("kv events", func(ctx context.Context) error {
		select {
		case <-c.wanted:
			return c.events.Run(ctx)
		case <-ctx.Done():
			return nil
		}
	})
}

// Preparer returns what turns prompts into blocks. The first call, before Start
// or after, opens the KV event feed: a forwarder that only obeys headers needs
// neither.
func (c *Core) Preparer() *prompt.Preparer {
	c.scoring()
	return c.preparer
}

// Audit takes the numbers that an engine reports of a request.
func (c *Core) Audit(r audit.Report) { c.audit.Observe(r) }

// Objectives returns the book of the pool's objectives and rewrites; nil when
// discovery knows of none.
func (c *Core) Objectives() *objectives.Book {
	if s, ok := c.source.(interface{ Objectives() *objectives.Book }); ok {
		return s.Objectives()
	}
	return nil
}

// Synced says why no request can be served yet, nil when they can: the fleet
// must be known, and where requests go over a broker, it must be reached.
func (c *Core) Synced() error {
	if s, ok := c.source.(interface{ Waiting() error }); ok {
		if err := s.Waiting(); err != nil {
			return err
		}
	}
	if !c.Store.Synced() {
		return errors.New("the fleet is not known yet: discovery has not answered")
	}
	return c.Reachable()
}

// Reachable says why no worker can be reached, nil when they can be: where
// requests go over a broker, that must be reached.
func (c *Core) Reachable() error {
	if c.broker != nil && !c.broker.Connected() {
		return errors.New("the NATS broker is out of reach, and requests go over it")
	}
	return nil
}

// Ready returns what probes ask: its error is nil while the fleet is known and
// ctx, with whose end the program drains, is not done.
func (c *Core) Ready(ctx context.Context) func() error {
	return func() error {
		if ctx.Err() != nil {
			return errors.New("draining")
		}
		if err := c.Synced(); err != nil {
			return err
		}
		return c.Warm(time.Now()) //nolint:contextcheck // it asks nobody
	}
}
