package nats

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"

	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// BenchmarkUnary is one request at a time, broker and worker in the same
// process: their cost is in the numbers.
func BenchmarkUnary(b *testing.B) {
	broker := testfleet.StartNATS(b, nil)
	nc := broker.Connect(b)
	data, done := nats.Header{wire.HeaderType: {"data"}}, nats.Header{wire.HeaderType: {"done"}, wire.HeaderStatus: {"200"}}
	answer := []byte(`{"choices":[]}`)
	if _, err := nc.Subscribe(wire.RequestSubject(scriptedID), func(m *nats.Msg) {
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: data, Data: answer})
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: done})
	}); err != nil {
		b.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		b.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.Broker.Server = broker.URL
	tr, err := New(cfg, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for !tr.Connected() {
		runtime.Gosched()
	}
	w, req := script0(), chat(1, false)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.Do(ctx, w, req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Status != 200 {
			b.Fatalf("status %d, %v", resp.Status, err)
		}
		_ = resp.Body.Close()
	}
}
