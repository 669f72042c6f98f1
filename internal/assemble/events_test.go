package assemble

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/kvindex"
	"pointsman/plugins"
)

// TestE4WithoutABrokerTheRecordsPublishersAreFollowed: nothing was said of events,
// no broker is there, and the worker publishes over ZMQ: what it caches is known all
// the same. One broker that answers is enough to stay with it.
func TestE4WithoutABrokerTheRecordsPublishersAreFollowed(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	tests := []struct {
		name   string
		server string
		direct bool
	}{
		{"no broker", "nats://" + nobody.Addr().String(), true},
		{"a broker", testfleet.StartNATS(t, nil).URL, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sim := simengine.DefaultConfig()
			sim.Time.Scale = 100
			engine, err := simengine.Start(t.Context(), sim)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = engine.Close() })
			store, index := &fleet.Store{}, kvindex.New(kvindex.DefaultConfig())
			fleet.NewFeed(store).Replace([]*fleet.Worker{engine.Worker()})
			key := store.Snapshot().Targets[0].Key
			index.Instance(key)
			settings := plugins.DefaultSettings()
			settings.NATSEvents.Broker.Server = tt.server
			var said bytes.Buffer
			e, err := newEither(settings, store, index, slog.New(slog.NewTextHandler(&said, nil)))
			if err != nil {
				t.Fatal(err)
			}
			e.wait = 300 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			if tt.direct {
				for n := 0; index.Held(key) == 0; n++ { // a ZMQ subscription travels on its own: ask until something arrives
					complete(t, engine, fmt.Sprintf("question %d ", n)+strings.Repeat("x ", 40))
				}
			} else if e.silent(ctx) {
				t.Error("the publishers are followed although a broker answers")
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if warned := strings.Contains(said.String(), "give --kv-event-transport"); warned != tt.direct {
				t.Errorf("logged: %s", said.String())
			}
			if e.gaveWay.Load() != tt.direct {
				t.Errorf("gave way: %v, want %v", e.gaveWay.Load(), tt.direct)
			}
		})
	}
}

// TestE4OnlyWhatNobodySaidGivesWay: a transport or a broker that is named is meant.
func TestE4OnlyWhatNobodySaidGivesWay(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want bool
	}{
		{nil, true},
		{[]string{"--kv-event-transport", "nats"}, false},
		{[]string{"--nats-server", "nats://broker:4222"}, false},
		{[]string{"--kv-event-transport", "zmq"}, false},
	} {
		cfg, err := config.Parse(config.EPP, append([]string{"--discovery-backend", "etcd", "--etcd-endpoint", "127.0.0.1:2379"}, tt.args...), func(string) (string, bool) { return "", false }, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		if cfg.KVEventFallback != tt.want {
			t.Errorf("%v: gives way %v, want %v", tt.args, cfg.KVEventFallback, tt.want)
		}
	}
}

func complete(t *testing.T, e *simengine.Engine, prompt string) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"sim-model","prompt":%q,"max_tokens":1}`, prompt)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
