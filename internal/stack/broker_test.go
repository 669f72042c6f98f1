package stack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// brokers returns the broker inside this process and, where the system has one,
// its nats-server.
func brokers(t *testing.T) map[string]*Broker {
	t.Helper()
	all := map[string]*Broker{}
	binaries := map[string]string{"embedded": ""}
	if path := os.Getenv("NATS_SERVER_BINARY"); path != "" {
		binaries["program"] = path
	}
	for name, binary := range binaries {
		n, err := takeSubnet()
		if err != nil {
			t.Fatal(err)
		}
		b := newBroker(BrokerConfig{Binary: binary}, n.addr(natsHost), t.TempDir())
		t.Cleanup(func() {
			b.Stop()
			if err := n.release(); err != nil {
				t.Error(err)
			}
		})
		all[name] = b
	}
	return all
}

func TestABrokerKeepsItsStreamsOverARestart(t *testing.T) {
	for name, b := range brokers(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := b.Start(ctx); err != nil {
				t.Fatal(err)
			}
			publish(t, b)
			b.Stop()
			b.Stop() // again does nothing
			if _, err := nats.Connect(b.URL); err == nil {
				t.Fatal("a stopped broker takes clients")
			}
			for range 2 { // the second time does nothing
				if err := b.Start(ctx); err != nil {
					t.Fatal(err)
				}
			}
			nc, err := nats.Connect(b.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			js, err := nc.JetStream()
			if err != nil {
				t.Fatal(err)
			}
			info, err := js.StreamInfo("KEPT")
			if err != nil || info.State.Msgs != 1 {
				t.Errorf("after a restart: %+v, %v", info, err)
			}
		})
	}
}

// publish puts a message into a stream on disk.
func publish(t *testing.T, b *Broker) {
	t.Helper()
	nc, err := nats.Connect(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish("kept", []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestABrokerThatCannotListenIsAnError(t *testing.T) {
	b := newBroker(BrokerConfig{}, "192.0.2.1", t.TempDir()) // an address for documentation, nobody's
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.Start(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	b = newBroker(BrokerConfig{Binary: "/no/such/nats-server"}, "127.0.0.1", t.TempDir())
	if err := b.Start(t.Context()); err == nil {
		t.Error("a missing program is no error")
	}
}

// flag returns the value behind a flag, the last one when it is given twice.
func flag(argv []string, name string) string {
	value := ""
	for i, arg := range argv {
		if arg == name && i+1 < len(argv) {
			value = argv[i+1]
		}
	}
	return value
}

func TestEveryProgramIsToldOfTheBroker(t *testing.T) {
	for _, tt := range []struct {
		name             string
		broker           *BrokerConfig
		requests, events string
	}{
		{"no broker", nil, "http", "zmq"},
		{"requests only", &BrokerConfig{}, "nats", "zmq"},
		{"requests and events", &BrokerConfig{Events: true}, "nats", "nats"},
	} {
		s, err := prepare(Config{Bin: "bin", Dir: t.TempDir(), Workers: PairedWorkers(1, 1, "--seed", "1"), Broker: tt.broker})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.net.release(); err != nil {
			t.Error(err)
		}
		epp, w := s.EPPs[0].argv, s.Workers[0]
		got := []string{
			flag(epp, "--kv-event-transport"), flag(w.Forwarder.argv, "--kv-event-transport"),
			flag(w.Forwarder.argv, "--request-transport"), flag(w.Engine.argv, "--request-transport"),
		}
		if want := []string{tt.events, tt.events, tt.requests, tt.requests}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
		if relayed := flag(w.Engine.argv, "--kv-event-transport") == "nats"; relayed != (tt.events == "nats") {
			t.Errorf("%s: the engine's events are relayed: %v", tt.name, relayed)
		}
		if tt.broker == nil {
			continue
		}
		for _, argv := range [][]string{w.Forwarder.argv, w.Engine.argv} {
			if url := flag(argv, "--nats-server"); url != s.Broker.URL || !strings.HasSuffix(url, ":4222") {
				t.Errorf("%s: %s is told of a broker at %q", tt.name, filepath.Base(argv[0]), url)
			}
		}
	}
}

func TestPairedWorkersAreHalvesOfOneProtocol(t *testing.T) {
	s, err := prepare(Config{Bin: "bin", Dir: t.TempDir(), Workers: PairedWorkers(2, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.net.release(); err != nil {
		t.Error(err)
	}
	var roles []string
	for _, w := range s.Workers {
		roles = append(roles, flag(w.Engine.argv, "--disaggregation-mode"))
		if p := flag(w.Engine.argv, "--pd-protocol"); p != "sglang-bootstrap" || flag(w.Engine.argv, "--engine") != "sglang" {
			t.Errorf("%s speaks %q", w.ID, p)
		}
	}
	if want := []string{"prefill", "prefill", "decode"}; !slices.Equal(roles, want) {
		t.Errorf("roles %v", roles)
	}
}
