package simengine

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/wire"
)

// relayed is an engine's publisher, its relay and a broker.
type relayed struct {
	t      *testing.T
	broker *testfleet.NATS
	pub    *publisher
	relay  *Relay
	js     jetstream.JetStream
}

func startRelay(t *testing.T, engine fleet.Engine, edit func(*RelayConfig)) *relayed {
	t.Helper()
	b := testfleet.StartNATS(t, nil)
	p, s := zmqPair(t)
	if engine == fleet.SGLang {
		p.encode = func(dst []byte, b *kvindex.Batch, _ []wire.Keys) []byte { return wire.AppendSGLang(dst, b) }
	}
	cfg := RelayConfig{
		Server: b.URL, WorkerID: "w:1", Events: "tcp://127.0.0.1:" + itoa(s.pubPort), Engine: engine, Every: 20 * time.Millisecond,
	}
	edit(&cfg)
	r, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	js, err := jetstream.New(b.Connect(t, nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond)))
	if err != nil {
		t.Fatal(err)
	}
	<-r.Ready()
	return &relayed{t: t, broker: b, pub: p, relay: r, js: js}
}

// first publishes until something arrives: subscriptions of ZMQ travel on their
// own. It returns the first message of the stream.
func (r *relayed) first() *jetstream.RawStreamMsg {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), relayStream)
	if err != nil {
		r.t.Fatal(err)
	}
	for h := uint64(1); ; h++ {
		r.pub.out(one(h))
		m, err := s.GetMsg(r.t.Context(), 1)
		if err == nil {
			return m
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			r.t.Fatal(err)
		}
	}
}

// bucketValue waits for a value of rank 0 that ok takes.
func (r *relayed) bucketValue(what string, ok func([]byte) bool) {
	r.t.Helper()
	kv, err := r.js.KeyValue(r.t.Context(), relayBucket)
	if err != nil {
		r.t.Fatal(err)
	}
	var last []byte
	testkit.Until(r.t, what, func() bool {
		e, err := kv.Get(r.t.Context(), wire.Token("w:1")+".0")
		if err == nil {
			last = e.Value()
		}
		return err == nil && ok(last)
	}, func() string { return fmt.Sprintf("the bucket has %x", last) })
}

func TestRelayMakesTheStreamWithInferasLimits(t *testing.T) {
	r := startRelay(t, fleet.VLLM, func(*RelayConfig) {})
	s, err := r.js.Stream(t.Context(), relayStream)
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	if len(c.Subjects) != 1 || c.Subjects[0] != "infera.kv.events.>" || c.MaxBytes != 268435456 || c.MaxMsgs != 1_000_000 ||
		c.Storage != jetstream.FileStorage || c.Retention != jetstream.LimitsPolicy || c.Discard != jetstream.DiscardOld {
		t.Errorf("the stream is %+v", c)
	}
	kv, err := r.js.KeyValue(t.Context(), relayBucket)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := kv.Status(t.Context()); err != nil || st.History() != 1 {
		t.Errorf("the bucket keeps %d values, error %v", st.History(), err)
	}
}

func TestRelayPassesPayloadsOnVerbatim(t *testing.T) {
	for _, engine := range []fleet.Engine{fleet.VLLM, fleet.SGLang} {
		r := startRelay(t, engine, func(*RelayConfig) {})
		m := r.first()
		if m.Subject != "infera.kv.events.dzox.0" || len(m.Header) != 0 {
			t.Errorf("%s: subject %s, headers %v", engine, m.Subject, m.Header)
		}
		found := false
		for _, b := range r.pub.since(0) {
			found = found || bytes.Equal(b.payload, m.Data)
		}
		if !found {
			t.Errorf("%s: relayed %x, which nobody published", engine, m.Data)
		}
	}
}

func TestRelayWritesTheBucketForVLLMOnly(t *testing.T) {
	empty := func(v []byte) bool { return bytes.Equal(v, []byte{0x90}) }
	want, _ := hex.DecodeString("91cf341839abbe30be0b") // contract: tokens 1 to 4, size 4
	stored := func(v []byte) bool { return bytes.Equal(v, want) }

	r := startRelay(t, fleet.VLLM, func(*RelayConfig) {})
	r.first() // blocks of the same tokens under different engine hashes: one router hash
	r.bucketValue("the block", stored)

	s := startRelay(t, fleet.SGLang, func(*RelayConfig) {})
	s.first()
	s.relay.Close()
	s.bucketValue("nothing, written at the end", empty)

	w := startRelay(t, fleet.SGLang, func(c *RelayConfig) { c.Bucket = BucketWhole })
	w.first()
	w.bucketValue("the block", stored)

	off := startRelay(t, fleet.VLLM, func(c *RelayConfig) { c.Bucket = BucketOff })
	off.first()
	off.relay.Close()
	if _, err := off.js.KeyValue(t.Context(), relayBucket); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("a bucket that is off: error %v", err)
	}
}

func TestRelayKilledWritesNothingMore(t *testing.T) {
	r := startRelay(t, fleet.VLLM, func(c *RelayConfig) { c.Every = time.Hour })
	r.first()
	r.relay.Kill()
	kv, err := r.js.KeyValue(t.Context(), relayBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Get(t.Context(), wire.Token("w:1")+".0"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the bucket has an entry, error %v", err)
	}
}

func TestRelayWaitsForABrokerAndComesBackToIt(t *testing.T) {
	b := testfleet.StartNATS(t, nil)
	b.Stop(t)
	_, s := zmqPair(t)
	r, err := StartRelay(t.Context(), RelayConfig{Server: b.URL, WorkerID: "w:1", Events: "tcp://127.0.0.1:" + itoa(s.pubPort)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	b.Start(t)
	select {
	case <-r.Ready():
	case <-time.After(20 * time.Second):
		t.Fatal("the relay never finds its broker")
	}
}

func TestRelayEndsWithItsContext(t *testing.T) {
	b := testfleet.StartNATS(t, nil)
	_, s := zmqPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := StartRelay(ctx, RelayConfig{Server: b.URL, WorkerID: "w:1", Events: "tcp://127.0.0.1:" + itoa(s.pubPort)})
	if err != nil {
		t.Fatal(err)
	}
	<-r.Ready()
	cancel()
	r.wg.Wait()
	if _, err := StartRelay(t.Context(), RelayConfig{Server: b.URL, WorkerID: "w:1", Events: "nowhere"}); err == nil {
		t.Error("an address that is none is taken")
	}
}

func TestRelayViewFollowsItsEngine(t *testing.T) {
	v := newRelayView()
	toks := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	apply := func(e kvindex.Event) {
		v.apply(wire.AppendVLLM(nil, &kvindex.Batch{Rank: -1, Events: []kvindex.Event{e}}))
	}
	check := func(what, want string) {
		t.Helper()
		got, changed := v.value()
		if hex.EncodeToString(got) != want || !changed {
			t.Errorf("%s: %x (changed %t), want %s", what, got, changed, want)
		}
	}
	apply(kvindex.Event{Hashes: []uint64{101, 102}, Tokens: toks, BlockSize: 4})
	check("two blocks", "92cf341839abbe30be0bcf37b6de0623bdb5ca")
	apply(kvindex.Event{Hashes: []uint64{9}, Tokens: toks[:4], BlockSize: 4, HasParent: true, Parent: 77})
	check("a block of an unknown parent", "92cf341839abbe30be0bcf37b6de0623bdb5ca")
	apply(kvindex.Event{Kind: kvindex.Removed, Hashes: []uint64{102, 55}})
	check("one is removed", "91cf341839abbe30be0b")
	v.apply([]byte("nonsense"))
	if _, changed := v.value(); changed {
		t.Error("nonsense changes it")
	}
	apply(kvindex.Event{Kind: kvindex.Cleared})
	check("all are gone", "90")
	for want, h := range map[string]uint64{"7f": 127, "cc80": 128, "cd0100": 256, "ce00010000": 1 << 16, "cf0000000100000000": 1 << 32} {
		if got := hex.EncodeToString(appendMsgpackUint(nil, h)); got != want {
			t.Errorf("%d is encoded as %s, want %s", h, got, want)
		}
	}
}
