package nats

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pointsman/fleet"
	"pointsman/internal/broker"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

// Two hundred workers publish at once, before and while the router joins.
func TestABurstOfTwoHundredWorkersArrivesWhole(t *testing.T) {
	const workers, batches, blocks = 200, 20, 2
	r := newRig(t, nil)
	var list []*fleet.Worker
	for i := range workers {
		list = append(list, worker(fmt.Sprintf("w:%d", i), "1"))
	}
	burst := func(from, to int) {
		var wg sync.WaitGroup
		for c := range 4 {
			js, err := jetstream.New(r.broker.Connect(t), jetstream.WithPublishAsyncMaxPending(500))
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for n := from; n < to; n++ {
					for i := c; i < workers; i += 4 {
						encode := vllm
						if i%2 == 1 {
							encode = sglang
						}
						p := testfleet.NewPrompt(uint32(i), batches*blocks)
						if _, err := js.PublishAsync(Subject(list[i].ID, 0), encode(p.Stored(1, n*blocks, (n+1)*blocks))); err != nil {
							t.Error(err)
						}
					}
				}
				<-js.PublishAsyncComplete()
			})
		}
		wg.Wait()
	}
	burst(0, batches/2)
	v := watch(t, r.config(), list...)
	burst(batches/2, batches)
	for i, w := range list {
		v.wantDepth("every batch of "+w.ID, w.ID, testfleet.NewPrompt(uint32(i), batches*blocks), batches*blocks)
		if v.index.Feed(w.ID).Partial() {
			t.Errorf("%s: the view says that it lacks something", w.ID)
		}
	}
	if n := value(v.sub.metrics.Messages); n != workers*batches {
		t.Errorf("%v messages taken, want each of %d once", n, workers*batches)
	}
	if n := r.consumers(); n != 1 {
		t.Errorf("%d consumers for the fleet, want one", n)
	}
}

func (r *rig) consumers() int {
	r.tb.Helper()
	s, err := r.js.Stream(r.tb.Context(), Stream)
	if err != nil {
		r.tb.Fatal(err)
	}
	return s.CachedInfo().State.Consumers
}

func TestAnOldBrokerIsServed(t *testing.T) {
	r := &rig{tb: t, broker: testfleet.StartOldNATS(t)}
	r.connect()
	r.createStream(func(*jetstream.StreamConfig) {})
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 3)
	r.put(r.bucket(), Key("w:1", 0), encodeView(b.Ours))
	r.emit("w:1", 0, vllm(testfleet.NewPrompt(3, 1).Stored(1, 0, 1)))
	r.truncate(0)
	v := watch(t, r.config(), worker("w:1", "1"))
	v.wantDepth("the bucket", "w:1", b, 3)
	r.emit("w:1", 0, sglang(a.Stored(1, 0, 2)))
	v.wantDepth("live events", "w:1", a, 2)
	v.noted()
	r.broker.Restart(t)
	testkit.Until(t, "the relay's own connection", func() bool {
		_, err := r.js.Publish(t.Context(), Subject("w:1", 0), vllm(a.Removed(1, 2)))
		return err == nil
	})
	v.wantDepth("the removal after a restart", "w:1", a, 1)
}

// A broker that a stranger writes to costs the strange messages and no more.
func TestNonsenseOnTheSubjectsIsPassedOver(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(), worker("w:1", "1"), worker("x:1", "1"))
	a := testfleet.NewPrompt(1, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.emit("x:1", 0, vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the view", "w:1", a, 2)
	for _, subject := range []string{
		subjectPrefix + "x", subjectPrefix + "x.y", subjectPrefix + "x.0.0", subjectPrefix + "====.0",
		Subject("w:1", 0) + ".0", Subject("w:1", 9),
	} {
		r.send(subject, vllm(a.Removed(0, 2)))
	}
	testkit.Until(t, "six strange messages", func() bool { return value(v.sub.metrics.Ignored) == 6 })
	if v.depth("w:1", a) != 2 {
		t.Error("a strange subject changed a view")
	}
	// A payload that cannot be read may have said anything: this view starts over.
	r.emit("x:1", 0, []byte("{}"))
	r.emit("x:1", 0, nil)
	v.wantDepth("the view to be dropped", "x:1", a, 0)
	testkit.Until(t, "both to be counted", func() bool { return value(v.sub.metrics.DecodeErrors) == 2 })
	if n := v.log.Count("cannot be read"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
	r.emit("x:1", 0, vllm(a.Stored(1, 0, 1)))
	v.wantDepth("events go on", "x:1", a, 1)
	if v.depth("w:1", a) != 2 {
		t.Error("another worker's view was dropped")
	}
}

func TestAStreamOfOthersTooIsNotTakenForOneWithHoles(t *testing.T) {
	r := newRig(t, nil)
	r.createStream(func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other.>") })
	v := watch(t, r.config(), worker("w:1", "1"))
	v.live()
	a := testfleet.NewPrompt(1, 3)
	for i := range 3 {
		r.send("other.thing", []byte("x"))
		r.emit("w:1", 0, vllm(a.Stored(1, i, i+1)))
	}
	v.wantDepth("every event", "w:1", a, 3)
	if value(v.sub.metrics.gaps) != 0 {
		t.Error("messages of others count as lost")
	}
}

func TestACredentialThatIsRefusedIsTriedAgain(t *testing.T) {
	b := testfleet.StartNATS(t, nil)
	cfg := Config{Broker: broker.Config{Server: b.URL, NkeySeed: t.TempDir() + "/none"}, Backoff: natsgo.DefaultTimeout / 1000}
	v := watch(t, cfg, worker("w:1", "1"))
	testkit.Until(t, "attempts", func() bool { return value(v.sub.metrics.Reconnects) > 1 })
	if v.log.Count("nkey seed") == 0 {
		t.Error("the log does not say what is wrong")
	}
}

func TestRunEndsAtOnce(t *testing.T) {
	b := testfleet.StartNATS(t, nil)
	cfg := Config{Broker: broker.Config{Server: b.URL}}
	v := newView(t, cfg)
	v.run() // discovery never says anything
	v.stop()
	before := runtime.NumGoroutine()
	v = watch(t, cfg, worker("w:1", "1")) // there is no stream
	testkit.Until(t, "the search", func() bool { return v.log.Count("no such stream yet") > 0 })
	v.stop()
	testkit.Until(t, "its goroutines to end", func() bool { return runtime.NumGoroutine() <= before+1 })
}

func BenchmarkMessage(b *testing.B) {
	v := newView(b, Config{})
	v.set(worker("w:1", "1"))
	v.sub.reconcile(v.store.Snapshot(), true)
	p := testfleet.NewPrompt(1, 16)
	payload := vllm(p.Stored(1, 0, 16))
	gone := vllm(p.Removed(0, 16))
	subject := Subject("w:1", 0)
	b.ReportAllocs()
	for b.Loop() {
		v.sub.take(b.Context(), arrival{subject: subject, data: payload})
		v.sub.take(b.Context(), arrival{subject: subject, data: gone})
	}
	if n := v.index.BlockSize(v.index.Instance("w:1")); n != testfleet.BlockSize {
		b.Fatalf("block size %d: nothing was applied", n)
	}
}
