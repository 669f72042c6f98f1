package plugins

import (
	"log/slog"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/kvindex"
)

func TestEveryAdapterIsMadeFromItsSettings(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := DefaultSettings()
	s.Static.Path, s.Etcd.Endpoints = "fleet.yaml", "127.0.0.1"
	s.Kubernetes.Selector, s.Kubernetes.Kubeconfig = "app=engine", testfleet.StartKube(t).Kubeconfig(t, "")
	s.Pool.Pool, s.Pool.Kubeconfig = "llm", s.Kubernetes.Kubeconfig
	for name, mk := range Discovery {
		if src, err := mk(s, log); err != nil || src == nil {
			t.Errorf("%s: %v, %v", name, src, err)
		}
	}
	for name, mk := range KVEvents {
		if events, err := mk(s, new(fleet.Store), kvindex.New(kvindex.DefaultConfig()), log); err != nil || events == nil {
			t.Errorf("%s: %v, %v", name, events, err)
		}
	}
}

func TestABackendThatLacksItsSettingsSaysSo(t *testing.T) {
	for name, mk := range Discovery {
		if _, err := mk(DefaultSettings(), nil); err == nil {
			t.Errorf("%s: made of nothing", name)
		}
	}
	s := DefaultSettings()
	s.ZMQ.Backoff = -1
	if _, err := KVEvents["zmq"](s, nil, nil, nil); err == nil {
		t.Error("zmq: made with a backoff below 0")
	}
}

func TestLookup(t *testing.T) {
	if mk, err := Lookup(Discovery, "discovery backend", "static"); err != nil || mk == nil {
		t.Errorf("static: %v", err)
	}
	_, err := Lookup(Discovery, "discovery backend", "zookeeper")
	if err == nil || !strings.Contains(err.Error(), `discovery backend "zookeeper"`) || !strings.Contains(err.Error(), "etcd, inferencepool, kubernetes, static") {
		t.Errorf("error %v, want the name and what there is", err)
	}
}
