package nats

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"pointsman/fleet"
	"pointsman/internal/broker"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/wire"
)

// The simulated engine's ZMQ library and the embedded broker leave goroutines of
// their own behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*socket).connReaper"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*qreader).listen"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubQReader).listen"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	)
}

// rig is a broker with the stream as a relay makes it.
type rig struct {
	tb     testing.TB
	broker *testfleet.NATS
	js     jetstream.JetStream
}

func newRig(tb testing.TB, edit func(*server.Options)) *rig {
	tb.Helper()
	r := &rig{tb: tb, broker: testfleet.StartNATS(tb, edit)}
	r.connect()
	r.createStream(func(*jetstream.StreamConfig) {})
	return r
}

// newBroker is a rig with nothing but the broker.
func newBroker(tb testing.TB, edit func(*server.Options)) *rig {
	tb.Helper()
	return &rig{tb: tb, broker: testfleet.StartNATS(tb, edit)}
}

func (r *rig) connect() {
	r.tb.Helper()
	js, err := jetstream.New(r.broker.Connect(r.tb, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(5*time.Millisecond)))
	if err != nil {
		r.tb.Fatal(err)
	}
	r.js = js
}

func (r *rig) createStream(edit func(*jetstream.StreamConfig)) {
	r.tb.Helper()
	cfg := jetstream.StreamConfig{
		Name: Stream, Subjects: []string{Subjects}, MaxBytes: 256 << 20, MaxMsgs: 1_000_000, Storage: jetstream.FileStorage,
	}
	edit(&cfg)
	if _, err := r.js.CreateOrUpdateStream(r.tb.Context(), cfg); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) emit(worker string, rank int, payload []byte) {
	r.tb.Helper()
	r.send(Subject(worker, rank), payload)
}

func (r *rig) send(subject string, payload []byte) {
	r.tb.Helper()
	if _, err := r.js.Publish(r.tb.Context(), subject, payload); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) bucket() jetstream.KeyValue {
	r.tb.Helper()
	kv, err := r.js.CreateOrUpdateKeyValue(r.tb.Context(), jetstream.KeyValueConfig{Bucket: Bucket})
	if err != nil {
		r.tb.Fatal(err)
	}
	return kv
}

func (r *rig) put(kv jetstream.KeyValue, key string, value []byte) {
	r.tb.Helper()
	if _, err := kv.Put(r.tb.Context(), key, value); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) config() Config {
	return Config{
		Broker: broker.Config{Server: r.broker.URL}, ConnectWait: 5 * time.Second, Backoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	}
}

func vllm(b *kvindex.Batch) []byte   { return wire.AppendVLLM(nil, b) }
func sglang(b *kvindex.Batch) []byte { return wire.AppendSGLang(nil, b) }

// encodeView is a bucket's value.
func encodeView(hashes []uint64) []byte {
	out := []byte{0xdd, byte(len(hashes) >> 24), byte(len(hashes) >> 16), byte(len(hashes) >> 8), byte(len(hashes))}
	for _, h := range hashes {
		out = append(out, 0xcf)
		for shift := 56; shift >= 0; shift -= 8 {
			out = append(out, byte(h>>shift))
		}
	}
	return out
}

// view is a subscriber over a fleet that the test writes.
type view struct {
	tb    testing.TB
	store *fleet.Store
	feed  *fleet.Feed
	index *kvindex.Index
	sub   *Subscriber
	log   *testkit.Log
	stop  func()
}

func newView(tb testing.TB, cfg Config) *view {
	tb.Helper()
	v := &view{tb: tb, store: new(fleet.Store), index: kvindex.New(kvindex.DefaultConfig()), log: new(testkit.Log)}
	v.feed = fleet.NewFeed(v.store)
	var err error
	v.sub, err = New(cfg, v.store, v.index, v.log.Logger())
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func (v *view) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.sub.Run(ctx) }()
	v.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				v.tb.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			v.tb.Error("Run does not return")
		}
	})
	v.tb.Cleanup(v.stop)
}

func watch(tb testing.TB, cfg Config, workers ...*fleet.Worker) *view {
	tb.Helper()
	v := newView(tb, cfg)
	v.set(workers...)
	v.run()
	return v
}

// set makes workers the fleet. The index is told of each target, and forgets
// those that are gone, as the picker does.
func (v *view) set(workers ...*fleet.Worker) {
	before := v.store.Snapshot().Targets
	v.feed.Replace(workers)
	after := map[string]bool{}
	for _, t := range v.store.Snapshot().Targets {
		v.index.Instance(t.Key)
		after[t.Key] = true
	}
	for _, t := range before {
		if !after[t.Key] {
			v.index.Forget(t.Key)
		}
	}
}

func worker(id, incarnation string, edit ...func(*fleet.Worker)) *fleet.Worker {
	w := &fleet.Worker{
		ID: id, URL: "http://" + id, Host: "h", Port: 1, Engine: fleet.VLLM, BlockSize: testfleet.BlockSize, DPRank: -1, Incarnation: incarnation,
	}
	for _, e := range edit {
		e(w)
	}
	return w
}

func (v *view) lookup(key string, p *testfleet.Prompt) (depth, exact int) {
	var s kvindex.Scratch
	v.index.Lookup(p.Ours, &s)
	in := v.index.Instance(key)
	return s.Depth(in), s.ExactDepth(in)
}

func (v *view) depth(key string, p *testfleet.Prompt) int {
	d, _ := v.lookup(key, p)
	return d
}

func (v *view) wantDepth(what, key string, p *testfleet.Prompt, n int) {
	v.tb.Helper()
	testkit.Until(v.tb, what, func() bool { return v.depth(key, p) == n })
}

// live waits until the past is applied.
func (v *view) live() {
	v.tb.Helper()
	testkit.Until(v.tb, "the live end of the stream", func() bool {
		v.sub.mu.Lock()
		defer v.sub.mu.Unlock()
		return v.sub.up
	})
}

// noted waits until every note is written.
func (v *view) noted() {
	v.tb.Helper()
	testkit.Until(v.tb, "the notes", func() bool {
		v.sub.mu.Lock()
		defer v.sub.mu.Unlock()
		for _, p := range v.sub.peers {
			if p.record != nil && (p.first || p.dirty) {
				return false
			}
		}
		return true
	})
}

func value(c prometheus.Collector) float64 { return testutil.ToFloat64(c) }

// gathered returns the value of a metric of one series.
func gathered(tb testing.TB, x *kvindex.Index, name string) int {
	tb.Helper()
	reg := prometheus.NewRegistry()
	if err := x.Register(reg); err != nil {
		tb.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	tb.Fatalf("no metric %s", name)
	return 0
}
