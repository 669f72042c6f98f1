package assemble

import (
	"fmt"
	"log/slog"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/plugins/discovery/etcd"
	"pointsman/plugins/discovery/static"
	"pointsman/plugins/tokenizer/remote"
)

// newSource makes the discovery backend that cfg names.
func newSource(cfg *config.Config, log *slog.Logger) (fleet.Source, error) {
	switch cfg.Discovery {
	case "static":
		settings := static.DefaultConfig()
		settings.Path = cfg.StaticFile
		return static.New(settings, log)
	case "etcd":
		settings := etcd.DefaultConfig()
		settings.Endpoints, settings.Prefix = cfg.Etcd.Endpoint, cfg.Etcd.Prefix
		settings.User, settings.Password = cfg.Etcd.User, cfg.Etcd.Password
		settings.CA, settings.Cert, settings.Key = cfg.Etcd.CA, cfg.Etcd.Cert, cfg.Etcd.Key
		return etcd.New(settings, log)
	}
	return nil, fmt.Errorf("backend %q is not in this build", cfg.Discovery)
}

func newTokenizer(cfg *config.Config, store *fleet.Store, log *slog.Logger) (*remote.Tokenizer, error) {
	settings := remote.DefaultConfig()
	settings.Timeout = cfg.TokenizeTimeout
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	return remote.New(settings, store, log), nil
}

// events are a transport of KV events, with its metrics.
type events interface {
	part
	collector
}

// newEvents makes the subscriber that cfg names; nil when events are off.
func newEvents(_ *config.Config, _ *fleet.Store, _ *kvindex.Index, _ *slog.Logger) events {
	return nil
}
