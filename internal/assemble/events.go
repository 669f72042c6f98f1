package assemble

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/plugins"
	"pointsman/plugins/kvevents/nats"
)

// eventsBroker is how long a broker that nobody has named has to answer before the
// publishers are followed that workers' records name.
const eventsBroker = 10 * time.Second

// newEvents makes the subscriber that cfg names; nil when events are off.
func newEvents(cfg *config.Config, store *fleet.Store, index *kvindex.Index, log *slog.Logger) (plugins.Events, error) {
	if cfg.KVEventTransport == "none" {
		return nil, nil //nolint:nilnil // events that are off are no fault
	}
	settings := adapterSettings(cfg)
	if cfg.KVEventFallback {
		return newEither(settings, store, index, log)
	}
	mk, err := plugins.Lookup(plugins.KVEvents, "kv event transport", cfg.KVEventTransport)
	if err != nil {
		return nil, err
	}
	return mk(settings, store, index, log)
}

// either follows a broker, or the workers' own publishers when no broker has
// answered in time though records name publishers. It decides once: a broker that
// appears later is not asked again until the program starts anew.
type either struct {
	broker *nats.Subscriber
	direct plugins.Events
	store  *fleet.Store
	log    *slog.Logger
	wait   time.Duration // eventsBroker but in tests

	gaveWay atomic.Bool
}

func newEither(s plugins.Settings, store *fleet.Store, index *kvindex.Index, log *slog.Logger) (*either, error) {
	broker, err := nats.New(s.NATSEvents, store, index, log)
	if err != nil {
		return nil, err
	}
	direct, err := plugins.KVEvents["zmq"](s, store, index, log)
	if err != nil {
		return nil, err
	}
	return &either{broker: broker, direct: direct, store: store, log: log, wait: eventsBroker}, nil
}

// Register exports the numbers of both.
func (e *either) Register(reg prometheus.Registerer) error {
	return errors.Join(e.broker.Register(reg), e.direct.Register(reg))
}

// Run implements [plugins.Events].
func (e *either) Run(ctx context.Context) error {
	trial, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- e.broker.Run(trial) }()
	if !e.silent(ctx) {
		return <-done
	}
	e.log.LogAttrs(ctx, slog.LevelWarn, "no broker answers: KV events are taken from the publishers that workers' records name; give --kv-event-transport to choose",
		slog.Duration("after", e.wait))
	e.gaveWay.Store(true)
	stop()
	if err := <-done; err != nil {
		return err
	}
	return e.direct.Run(ctx)
}

// silent waits until it is clear which of the two it is to be: true when there is
// a publisher and no broker has answered. It is false when ctx is done.
func (e *either) silent(ctx context.Context) bool {
	late := time.NewTimer(e.wait)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-late.C:
	}
	for !e.broker.Answered() {
		changed := e.store.Changed()
		for _, w := range e.store.Snapshot().Workers {
			if w.KVEvents != "" {
				return true
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
	return false
}

// Behind says what of the events so far has not been applied, "" when nothing is
// known to be missing.
func (e *either) Behind() string {
	if !e.gaveWay.Load() {
		return e.broker.Behind()
	}
	if d, ok := e.direct.(interface{ Behind() string }); ok {
		return d.Behind()
	}
	return ""
}
