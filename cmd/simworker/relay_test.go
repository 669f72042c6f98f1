package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"pointsman/fleet"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

func TestRelayFlags(t *testing.T) {
	o, err := parse(strings.Fields("--engine sglang --nats-server nats://b:1 --kv-event-transport nats --kv-relay-bucket whole"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.relay.Server != "nats://b:1" || o.relay.Engine != fleet.SGLang || o.relay.Bucket != simengine.BucketWhole || o.engine.NATS.Server != "" {
		t.Errorf("relay %+v, broker of requests %q", o.relay, o.engine.NATS.Server)
	}
	if o, err = parse(nil, io.Discard); err != nil || o.relay.Server != "" {
		t.Errorf("without flags the relay is %+v, error %v", o.relay, err)
	}
	_, err = parse(strings.Fields("--kv-event-transport nats --kv-events-port -1 --kv-relay-bucket half"), io.Discard)
	for _, part := range []string{"--kv-events-port", "--kv-relay-bucket"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not name %s", err, part)
		}
	}
	if _, err = parse(strings.Fields("--kv-event-transport pigeon"), io.Discard); err == nil {
		t.Error("events go by pigeon")
	}
}

func TestRunRelaysUntilTheDrainIsOver(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--kv-event-transport", "nats", "--nats-server", broker.URL}, io.Discard, io.Discard)
	}()
	js, err := jetstream.New(broker.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the relay", func() bool {
		_, missing := js.KeyValue(t.Context(), "infera_kv_view")
		return missing == nil
	})
	stop()
	if err = <-ended; err != nil {
		t.Error(err)
	}
	kv, err := js.KeyValue(t.Context(), "infera_kv_view")
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := kv.Keys(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("the bucket has the keys %v, error %v: want the one of the last flush", keys, err)
	}
}
