package assemble

import (
	"log/slog"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/plugins"
	"pointsman/plugins/discovery/kubernetes"
)

// adapterSettings hands each adapter what cfg says of it.
func adapterSettings(cfg *config.Config) plugins.Settings {
	s := plugins.DefaultSettings()
	s.Static.Path = cfg.StaticFile
	s.Etcd.Endpoints, s.Etcd.Prefix = cfg.Etcd.Endpoint, cfg.Etcd.Prefix
	s.Etcd.User, s.Etcd.Password = cfg.Etcd.User, cfg.Etcd.Password
	s.Etcd.CA, s.Etcd.Cert, s.Etcd.Key = cfg.Etcd.CA, cfg.Etcd.Cert, cfg.Etcd.Key
	s.Kubernetes.Selector, s.Kubernetes.Namespace = cfg.Kubernetes.Selector, cfg.Kubernetes.Namespace
	s.Kubernetes.Kubeconfig, s.Kubernetes.Ready = cfg.Kubernetes.Kubeconfig, kubernetes.Readiness(cfg.Kubernetes.Ready)
	p := &s.Pool
	p.Pool, p.Namespace, p.Kubeconfig = cfg.Pool, cfg.InferencePool.Namespace, cfg.Kubernetes.Kubeconfig
	p.Selector, p.Ports, p.Model = cfg.InferencePool.Selector, cfg.InferencePool.Ports, cfg.InferencePool.Model
	p.BlockSize, p.KVEventsPort = cfg.InferencePool.BlockSize, cfg.InferencePool.KVEventsPort
	if cfg.Program == config.EPP {
		p.PickerPort = cfg.GRPCPort
	}
	s.ZMQ.Topic, s.ZMQ.ReplayPortOffset = cfg.KVEventTopic, cfg.KVReplayOffset
	s.NATSEvents.Broker = cfg.NATS.Config
	return s
}

// newSource makes the discovery backend that cfg names.
func newSource(cfg *config.Config, log *slog.Logger) (fleet.Source, error) {
	mk, err := plugins.Lookup(plugins.Discovery, "discovery backend", cfg.Discovery)
	if err != nil {
		return nil, err
	}
	return mk(adapterSettings(cfg), log)
}
