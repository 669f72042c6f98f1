// Package plugins is the table of the adapters in this build: code that knows
// an outside system's client library. Each is a package below this one that
// implements an interface of the room it serves; the names are what the flags
// take.
//
// A new adapter is a new folder and a new line here.
package plugins

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/kvindex"
	"pointsman/plugins/connector/atom"
	"pointsman/plugins/connector/nixl"
	"pointsman/plugins/connector/sglang"
	"pointsman/plugins/connector/vllmmooncake"
	"pointsman/plugins/connector/vllmmoriio"
	"pointsman/plugins/discovery/etcd"
	"pointsman/plugins/discovery/inferencepool"
	"pointsman/plugins/discovery/kubernetes"
	"pointsman/plugins/discovery/static"
	natsevents "pointsman/plugins/kvevents/nats"
	"pointsman/plugins/kvevents/zmq"
)

// Settings are the adapters' configurations. Only those of the adapters that
// are used count.
type Settings struct {
	Static     static.Config
	Etcd       etcd.Config
	Kubernetes kubernetes.Config
	Pool       inferencepool.Config
	ZMQ        zmq.Config
	NATSEvents natsevents.Config // of KV events, not of requests
}

// DefaultSettings returns every adapter's defaults.
func DefaultSettings() Settings {
	return Settings{
		Static: static.DefaultConfig(), Etcd: etcd.DefaultConfig(), Kubernetes: kubernetes.DefaultConfig(),
		Pool: inferencepool.DefaultConfig(),
		ZMQ:  zmq.DefaultConfig(), NATSEvents: natsevents.DefaultConfig(),
	}
}

// Events follows the KV cache events of a fleet and feeds an index.
type Events interface {
	// Run follows them until ctx is done.
	Run(ctx context.Context) error
	// Register exports the adapter's own numbers.
	Register(reg prometheus.Registerer) error
}

// Discovery backends, by the name that --discovery-backend takes.
var Discovery = map[string]func(Settings, *slog.Logger) (fleet.Source, error){
	"etcd": func(s Settings, log *slog.Logger) (fleet.Source, error) { return etcd.New(s.Etcd, log) },
	"inferencepool": func(s Settings, log *slog.Logger) (fleet.Source, error) {
		return inferencepool.New(s.Pool, log)
	},
	"kubernetes": func(s Settings, log *slog.Logger) (fleet.Source, error) {
		return kubernetes.New(s.Kubernetes, log)
	},
	"static": func(s Settings, log *slog.Logger) (fleet.Source, error) { return static.New(s.Static, log) },
}

// KVEvents are the transports of KV events, by the name that
// --kv-event-transport takes.
var KVEvents = map[string]func(Settings, *fleet.Store, *kvindex.Index, *slog.Logger) (Events, error){
	"nats": func(s Settings, store *fleet.Store, index *kvindex.Index, log *slog.Logger) (Events, error) {
		return natsevents.New(s.NATSEvents, store, index, log)
	},
	"zmq": func(s Settings, store *fleet.Store, index *kvindex.Index, log *slog.Logger) (Events, error) {
		return zmq.New(s.ZMQ, store, index, log)
	},
}

// Connectors are the prefill/decode protocols, by the name that workers register
// as disagg_meta.protocol. They keep no state.
var Connectors = map[string]forward.Connector{
	atom.Protocol:            atom.Connector{},
	nixl.Protocol:            nixl.Connector{},
	sglang.Protocol:          sglang.Connector{},
	vllmmooncake.Protocol:    vllmmooncake.Connector{},
	vllmmoriio.ReadProtocol:  vllmmoriio.Read{},
	vllmmoriio.WriteProtocol: vllmmoriio.Write{},
}

// Names returns what a table offers, for help and error texts.
func Names[T any](table map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(table)), ", ")
}

// Lookup returns the constructor of the given name; kind says in the error what
// the table holds.
func Lookup[T any](table map[string]T, kind, name string) (T, error) {
	found, ok := table[name]
	if !ok {
		return found, fmt.Errorf("%s %q is not in this build: use one of %s", kind, name, Names(table))
	}
	return found, nil
}
