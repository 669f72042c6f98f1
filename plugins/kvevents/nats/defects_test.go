package nats

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/vmihailenco/msgpack/v5"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
)

// truncate makes the stream forget its oldest messages but keep the last n.
func (r *rig) truncate(keep uint64) {
	r.tb.Helper()
	s, err := r.js.Stream(r.tb.Context(), Stream)
	if err != nil {
		r.tb.Fatal(err)
	}
	if err := s.Purge(r.tb.Context(), jetstream.WithPurgeKeep(keep)); err != nil {
		r.tb.Fatal(err)
	}
}

// A view whose beginning is no longer in the stream is filled from the bucket,
// as far as that goes; what is wrong in the bucket costs only itself.
func TestK4BucketEntriesThatMakeNoSenseAreSkippedAlone(t *testing.T) {
	r := newRig(t, nil)
	kv := r.bucket()
	a, b := testfleet.NewPrompt(1, 3), testfleet.NewPrompt(2, 1)
	r.put(kv, Key("bad:1", 0), []byte("not msgpack"))
	r.put(kv, Key("huge:1", 0), []byte{0xdd, 0xff, 0xff, 0xff, 0xff, 0x01})
	r.put(kv, Key("empty:1", 0), []byte{0x90}) // what a relay of SGLang writes when it stops
	r.put(kv, "nobody", encodeView(a.Ours))
	r.send("$KV."+Bucket+".!bad!.0", encodeView(a.Ours))
	r.put(kv, Key("good:1", 0), encodeView(a.Ours))
	var workers []*fleet.Worker
	for _, id := range []string{"bad:1", "huge:1", "empty:1", "good:1"} {
		workers = append(workers, worker(id, "1"))
		r.emit(id, 0, sglang(b.Stored(1, 0, 1)))
		r.emit(id, 0, sglang(b.Stored(1, 0, 1)))
	}
	r.truncate(4)
	v := watch(t, r.config(), workers...)
	v.wantDepth("what the bucket says", "good:1", a, 3)
	testkit.Until(t, "the two bad values", func() bool { return value(v.sub.metrics.bucketErrors) >= 2 })
	for _, w := range workers {
		r.emit(w.ID, 0, sglang(b.Stored(1, 0, 1)))
		v.wantDepth("the live events of "+w.ID, w.ID, b, 1)
	}
	before := value(v.sub.metrics.bucketErrors)
	testkit.Until(t, "a bad key that comes while the bucket is watched", func() bool {
		r.put(kv, "worse", encodeView(a.Ours))
		return value(v.sub.metrics.bucketErrors) > before+2 // both bad values may be asked for again
	})
}

func TestK5RemovalsWorkAfterSeedingAndTheRestExpires(t *testing.T) {
	for name, encode := range map[string]func(*kvindex.Batch) []byte{"vllm": vllm, "sglang": sglang} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
			r.put(r.bucket(), Key("w:1", 0), encodeView(append(a.Ours[:2:2], b.Ours...)))
			r.emit("w:1", 0, encode(testfleet.NewPrompt(3, 1).Stored(1, 0, 1)))
			r.truncate(0)
			v := watch(t, r.config(), worker("w:1", "1"))
			v.wantDepth("the seed", "w:1", a, 2)
			if _, exact := v.lookup("w:1", a); exact != 0 {
				t.Error("a seed counts as told by events")
			}
			// The engine tells of a, whose removal then must count.
			r.emit("w:1", 0, encode(a.Stored(1, 0, 2)))
			testkit.Until(t, "the blocks by events", func() bool { _, exact := v.lookup("w:1", a); return exact == 2 })
			r.emit("w:1", 0, encode(a.Removed(1, 2)))
			v.wantDepth("the removal", "w:1", a, 1)
			r.emit("w:1", 0, encode(a.Removed(0, 1)))
			v.wantDepth("the other removal", "w:1", a, 0)
			// The engine never names b, so only time can correct it.
			if d := v.depth("w:1", b); d != 2 {
				t.Errorf("the other seed has %d blocks, want 2", d)
			}
			v.index.Expire(time.Now().Add(DefaultConfig().SeedFor + time.Second))
			if d := v.depth("w:1", b); d != 0 {
				t.Errorf("%d seeded blocks never expire", d)
			}
		})
	}
}

func TestK5AListFromBeforeARemovalIsNotPlanted(t *testing.T) {
	r := newRig(t, nil)
	kv := r.bucket()
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	r.emit("w:1", 0, vllm(b.Stored(1, 0, 2)))
	r.truncate(0)
	r.put(kv, Key("w:1", 0), encodeView(append(a.Ours[:2:2], b.Ours...)))
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.emit("w:1", 0, vllm(a.Removed(0, 2)))
	v := watch(t, r.config(), worker("w:1", "1"))
	v.live()
	testkit.Until(t, "the new list", func() bool {
		if v.depth("w:1", a) != 0 {
			t.Fatal("the old list brought removed blocks back")
		}
		r.put(kv, Key("w:1", 0), encodeView(b.Ours))
		return v.depth("w:1", b) == 2
	})
}

func TestK5ASeedNeverReplacesAWholeView(t *testing.T) {
	r := newRig(t, nil)
	kv := r.bucket()
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.put(kv, Key("w:1", 0), encodeView(b.Ours)) // something else
	v := watch(t, r.config(), worker("w:1", "1"))
	v.wantDepth("the past", "w:1", a, 2)
	v.live()
	r.put(kv, Key("w:1", 0), encodeView(b.Ours))
	r.emit("w:1", 0, vllm(testfleet.NewPrompt(3, 1).Stored(1, 0, 1)))
	v.wantDepth("a later event", "w:1", testfleet.NewPrompt(3, 1), 1)
	if v.depth("w:1", a) != 2 || v.depth("w:1", b) != 0 || value(v.sub.metrics.seeded) != 0 {
		t.Error("the bucket changed a view that is whole")
	}
}

func TestK5DeletedKeysDropTheirView(t *testing.T) {
	for name, remove := range map[string]func(jetstream.KeyValue, string) error{
		"deleted": func(kv jetstream.KeyValue, key string) error { return kv.Delete(t.Context(), key) },
		"purged":  func(kv jetstream.KeyValue, key string) error { return kv.Purge(t.Context(), key) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			kv := r.bucket()
			r.put(kv, Key("dp:1", 1), encodeView(nil))
			v := watch(t, r.config(), worker("dp:1", "1", func(w *fleet.Worker) { w.DPSize = 2 }))
			a := testfleet.NewPrompt(1, 2)
			r.emit("dp:1", 0, vllm(a.Stored(1, 0, 2)))
			r.emit("dp:1", 1, vllm(a.Stored(1, 0, 2)))
			v.wantDepth("rank 0", "dp:1#dp0", a, 2)
			v.wantDepth("rank 1", "dp:1#dp1", a, 2)
			// The watch may begin after the first deletion: only what is deleted
			// while it runs is news.
			testkit.Until(t, "the drop", func() bool {
				if err := remove(kv, Key("dp:1", 1)); err != nil {
					t.Fatal(err)
				}
				return v.depth("dp:1#dp1", a) == 0
			})
			if v.depth("dp:1#dp0", a) != 2 {
				t.Error("the other rank's view is gone too")
			}
			testkit.Until(t, "an event after it", func() bool {
				r.emit("dp:1", 1, vllm(a.Stored(1, 0, 1)))
				return v.depth("dp:1#dp1", a) == 1
			})
		})
	}
}

func TestK6EventsBeforeRegistrationCount(t *testing.T) {
	for name, encode := range map[string]func(*kvindex.Batch) []byte{"vllm": vllm, "sglang": sglang} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			v := watch(t, r.config())
			v.live()
			a := testfleet.NewPrompt(1, 3)
			r.emit("w:1", 0, encode(a.Stored(1, 0, 2)))
			testkit.Until(t, "the event", func() bool { return value(v.sub.metrics.heldMessages) == 1 })
			v.set(worker("w:1", "1"))
			v.wantDepth("what came before", "w:1", a, 2)
			r.emit("w:1", 0, encode(a.Stored(1, 2, 3)))
			v.wantDepth("a child of it", "w:1", a, 3)
			if v.index.Feed("w:1").Partial() {
				t.Error("the view says that it lacks something")
			}
		})
	}
}

func TestK6WhatIsHeldIsBoundedAndItsLossIsMarked(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.config()
	cfg.HoldMessages, cfg.HoldWorkers = 3, 5
	v := watch(t, cfg)
	v.live()
	a := testfleet.NewPrompt(1, 5)
	for i := range 5 { // two too many
		r.emit("w:1", 0, vllm(testfleet.NewPrompt(uint32(10+i), 1).Stored(1, 0, 1)))
	}
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 5)))
	testkit.Until(t, "the last three", func() bool { return value(v.sub.metrics.heldDropped) == 3 && value(v.sub.metrics.heldMessages) == 3 })
	v.set(worker("w:1", "1"))
	v.wantDepth("what was held", "w:1", a, 5)
	if v.depth("w:1", testfleet.NewPrompt(10, 1)) != 0 {
		t.Error("a dropped event was applied")
	}
	if !v.index.Feed("w:1").Partial() {
		t.Error("the view does not say that it lacks something")
	}
	for i := range 40 { // workers that never come
		r.emit(fmt.Sprintf("ghost:%d", i), 0, vllm(a.Stored(1, 0, 1)))
	}
	testkit.Until(t, "the last ghost", func() bool { return value(v.sub.metrics.Messages) == 46 })
	v.sub.mu.Lock()
	unknown, peers := v.sub.unknown, len(v.sub.peers)
	v.sub.mu.Unlock()
	if unknown != 5 || peers != 6 {
		t.Errorf("%d unknown workers of %d are kept, want 5 of 6", unknown, peers)
	}
}

func TestK6BytesOfAllWorkersAreBoundedTogether(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.config()
	cfg.HoldTotal = 20_000
	v := watch(t, cfg, worker("w:1", "1"))
	v.live()
	a := testfleet.NewPrompt(1, 200) // some 4 kB
	for i := range 20 {
		r.emit(fmt.Sprintf("ghost:%d", i), 0, vllm(a.Stored(1, 0, 200)))
		r.emit("w:1", 0, vllm(testfleet.NewPrompt(uint32(100+i), 200).Stored(1, 0, 200)))
	}
	v.wantDepth("the last", "w:1", testfleet.NewPrompt(119, 200), 200)
	if n := value(v.sub.metrics.heldBytes); n > 20_000 {
		t.Errorf("%v bytes are held, want at most 20000", n)
	}
	if v.depth("w:1", testfleet.NewPrompt(100, 200)) != 200 {
		t.Error("a known worker's event was lost for want of room")
	}
}

func TestK7ANewProcessUnderTheSameIDStartsEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		gone bool // the record is away for a while, and the event comes then
	}{
		"its record is replaced":      {},
		"its record goes for a while": {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			cfg := r.config()
			cfg.Lead = 300 * time.Millisecond
			v := watch(t, cfg, worker("w:1", "1"))
			a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 3)
			r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
			v.wantDepth("the first process", "w:1", a, 2)
			if c.gone {
				v.set()
				testkit.Until(t, "the departure", func() bool { return value(v.sub.metrics.Subscriptions) == 0 })
			} else {
				testkit.Until(t, "the start of an engine", after(cfg.Lead))
			}
			r.emit("w:1", 0, vllm(b.Stored(1, 0, 2))) // the new process, before its record
			testkit.Until(t, "its first event", func() bool { return value(v.sub.metrics.Messages) == 2 })
			v.set(worker("w:1", "2"))
			v.wantDepth("the dead process's blocks to go", "w:1", a, 0)
			v.wantDepth("what the new one said before its record", "w:1", b, 2)
			r.emit("w:1", 0, vllm(b.Stored(1, 2, 3)))
			v.wantDepth("a child of it", "w:1", b, 3)
			if v.index.Feed("w:1").Partial() {
				t.Error("the view says that it lacks something")
			}
		})
	}
}

func TestK7AWorkerThatWasMissedForAWhileIsNotTakenForEmpty(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(), worker("w:1", "1"))
	a := testfleet.NewPrompt(1, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the view", "w:1", a, 2)
	v.set()
	testkit.Until(t, "the departure", func() bool { return value(v.sub.metrics.Subscriptions) == 0 })
	r.emit("w:1", 0, vllm(testfleet.NewPrompt(2, 1).Stored(1, 0, 1)))
	v.set(worker("w:1", "1")) // the same process
	v.wantDepth("what came meanwhile", "w:1", testfleet.NewPrompt(2, 1), 1)
	if !v.index.Feed("w:1").Partial() {
		t.Error("the view does not say that it lacks what was known before")
	}
}

// after returns a condition that becomes true when d has passed.
func after(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

func TestK7ARouterThatStartsDoesNotBringDeadProcessesBack(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.config()
	cfg.Lead = 100 * time.Millisecond
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	first := watch(t, cfg, worker("w:1", "1"), worker("same:1", "1"))
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.emit("same:1", 0, vllm(a.Stored(1, 0, 2)))
	first.wantDepth("the first process", "w:1", a, 2)
	first.noted()
	testkit.Until(t, "a start of an engine", after(cfg.Lead))
	first.set(worker("w:1", "2"), worker("same:1", "1"))
	first.wantDepth("the dead process's blocks to go", "w:1", a, 0)
	r.emit("w:1", 0, vllm(b.Stored(1, 0, 2)))
	first.wantDepth("the second process", "w:1", b, 2)
	first.noted()
	first.stop()

	second := watch(t, cfg, worker("w:1", "2"), worker("same:1", "1"))
	second.wantDepth("the past of the second process", "w:1", b, 2)
	second.wantDepth("the past of the other worker", "same:1", a, 2)
	if d := second.depth("w:1", a); d != 0 {
		t.Errorf("a router that starts has %d blocks of a dead process", d)
	}
	if n := value(second.sub.metrics.stale); n != 1 {
		t.Errorf("%v messages left out, want the dead process's one", n)
	}
	if second.index.Feed("w:1").Partial() || second.index.Feed("same:1").Partial() {
		t.Error("views of whole processes say that they lack something")
	}
	second.stop()

	// A worker that changed while no router looked: nobody knows when, so its
	// past is left out, and the view says so.
	third := watch(t, cfg, worker("w:1", "3"), worker("same:1", "1"))
	third.wantDepth("the past of the other worker", "same:1", a, 2)
	third.live()
	if third.depth("w:1", a) != 0 || third.depth("w:1", b) != 0 {
		t.Error("a router that starts has blocks of dead processes")
	}
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 1)))
	third.wantDepth("live events", "w:1", a, 1)
	if !third.index.Feed("w:1").Partial() {
		t.Error("the view does not say that it may lack something")
	}
}

func TestK7WithoutNotesThePastCountsAsInInfera(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.config()
	cfg.NoMarks = true
	a := testfleet.NewPrompt(1, 2)
	first := watch(t, cfg, worker("w:1", "1"))
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	first.wantDepth("the first process", "w:1", a, 2)
	first.stop()
	second := watch(t, cfg, worker("w:1", "2"))
	second.wantDepth("the past", "w:1", a, 2)
	if _, err := r.js.KeyValue(t.Context(), MarksBucket); err == nil {
		t.Error("notes were written")
	}
}

func TestK8WhatTheStreamLostDropsAllViewsAndIsSeeded(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(t *testing.T, r *rig)
	}{
		{"the stream dropped its oldest messages", func(_ *testing.T, r *rig) { r.truncate(1) }},
		{"the stream was purged", func(_ *testing.T, r *rig) { r.truncate(0) }},
		{"the stream was made anew", func(t *testing.T, r *rig) {
			t.Helper()
			if err := r.js.DeleteStream(t.Context(), Stream); err != nil {
				t.Fatal(err)
			}
			r.createStream(func(*jetstream.StreamConfig) {})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			kv := r.bucket()
			proxy := testfleet.StartProxy(t, r.broker.URL[len("nats://"):])
			cfg := r.config()
			cfg.Broker.Server = proxy.Address
			v := watch(t, cfg, worker("w:1", "1"), worker("x:1", "1"))
			a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
			r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
			r.emit("x:1", 0, vllm(a.Stored(1, 0, 2)))
			v.wantDepth("the view", "w:1", a, 2)
			v.wantDepth("the view", "x:1", a, 2)
			proxy.Freeze()
			r.emit("w:1", 0, vllm(a.Removed(0, 2))) // never seen
			r.emit("w:1", 0, vllm(b.Stored(1, 0, 2)))
			r.put(kv, Key("w:1", 0), encodeView(b.Ours))
			c.lose(t, r)
			proxy.Cut()
			proxy.Thaw()
			v.wantDepth("the dropped view", "w:1", a, 0)
			v.wantDepth("the other dropped view", "x:1", a, 0)
			v.wantDepth("what the bucket says", "w:1", b, 2)
			if value(v.sub.metrics.gaps) == 0 {
				t.Error("no gap was counted")
			}
			r.emit("x:1", 0, vllm(b.Stored(1, 0, 2)))
			v.wantDepth("live events", "x:1", b, 2)
			if !v.index.Feed("x:1").Partial() {
				t.Error("the view does not say that it may lack something")
			}
		})
	}
}

func TestK8ASubjectThatWasPurgedCostsOnlyItself(t *testing.T) {
	r := newRig(t, nil)
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	r.emit("x:1", 0, vllm(a.Stored(1, 0, 2)))
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.emit("x:1", 0, vllm(b.Stored(1, 0, 2)))
	s, err := r.js.Stream(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSubject(Subject("w:1", 0))); err != nil {
		t.Fatal(err)
	}
	v := watch(t, r.config(), worker("w:1", "1"), worker("x:1", "1"))
	v.live()
	r.emit("w:1", 0, vllm(b.Stored(1, 0, 2)))
	v.wantDepth("live events", "w:1", b, 2)
	if v.depth("x:1", a) != 2 || v.depth("x:1", b) != 2 || v.index.Feed("x:1").Partial() {
		t.Error("a purge of another's subject changed a view")
	}
	if v.depth("w:1", a) != 0 || !v.index.Feed("w:1").Partial() {
		t.Error("the view of the purged subject is not marked as lacking something")
	}
}

func TestK9ALateJoinHasThePastAndSaysWhatItLacks(t *testing.T) {
	r := newRig(t, nil)
	a, b := testfleet.NewPrompt(1, 4), testfleet.NewPrompt(2, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.emit("w:1", 0, vllm(a.Stored(1, 2, 4)))
	whole := watch(t, r.config(), worker("w:1", "1"))
	whole.wantDepth("the past", "w:1", a, 4)
	whole.stop()
	r.truncate(1) // the system prompt's blocks are no longer told of
	r.emit("w:1", 0, vllm(b.Stored(1, 0, 2)))
	v := watch(t, r.config(), worker("w:1", "1"))
	v.wantDepth("what can be known", "w:1", b, 2)
	if v.depth("w:1", a) != 0 || !v.index.Feed("w:1").Partial() {
		t.Error("descendants of an unknown block are held, or the view does not say that it lacks them")
	}
	// The relay writes the bucket later: the view takes it up then.
	r.put(r.bucket(), Key("w:1", 0), encodeView(a.Ours))
	v.wantDepth("what the bucket says", "w:1", a, 4)
}

func TestK12ABlockUnderTwoEngineHashesStaysUntilBothAreGone(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(), worker("w:1", "1"))
	a := testfleet.NewPrompt(1, 1)
	twin := *a
	twin.Hashes = []uint64{77}
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 1)))
	r.emit("w:1", 0, vllm(twin.Stored(1, 0, 1)))
	r.emit("w:1", 0, vllm(a.Removed(0, 1)))
	r.emit("w:1", 0, vllm(testfleet.NewPrompt(2, 1).Stored(1, 0, 1)))
	v.wantDepth("the last event", "w:1", testfleet.NewPrompt(2, 1), 1)
	if d := v.depth("w:1", a); d != 1 {
		t.Errorf("%d blocks, want the one that is still cached", d)
	}
	r.emit("w:1", 0, vllm(twin.Removed(0, 1)))
	v.wantDepth("the second removal", "w:1", a, 0)
}

func TestK13HashesOfBytesChainAsNumbersDo(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(), worker("w:1", "1"))
	a := testfleet.NewPrompt(1, 2)
	name := func(i byte) []byte { h := make([]byte, 32); h[0], h[31] = i, i; return h }
	for i := range byte(2) {
		var parent any
		if i > 0 {
			parent = name(i - 1)
		}
		payload, err := msgpack.Marshal([]any{1.5, []any{map[string]any{
			"type": "BlockStored", "block_hashes": [][]byte{name(i)}, "parent_block_hash": parent,
			"token_ids": a.Tokens[int(i)*testfleet.BlockSize:][:testfleet.BlockSize], "block_size": testfleet.BlockSize, "lora_id": nil,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		r.emit("w:1", 0, payload)
	}
	v.wantDepth("both blocks", "w:1", a, 2)
}

func TestK14DepartedWorkersLeaveNothing(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.config()
	cfg.HoldFor = 100 * time.Millisecond
	v := watch(t, cfg, worker("w:1", "1"), worker("x:1", "1"))
	v.live()
	a := testfleet.NewPrompt(1, 50)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 50)))
	v.wantDepth("the view", "w:1", a, 50)
	v.set(worker("x:1", "1"))
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 1))) // a last word
	testkit.Until(t, "all to be freed", func() bool {
		v.sub.mu.Lock()
		defer v.sub.mu.Unlock()
		return len(v.sub.peers) == 1 && v.sub.unknown == 0 && v.sub.held == 0
	})
	// It comes back with other blocks, which is no matter.
	v.set(worker("x:1", "1"), worker("w:1", "2", func(w *fleet.Worker) { w.BlockSize = 8 }))
	b := testfleet.NewPrompt(2, 4)
	testkit.Until(t, "the return", func() bool { return value(v.sub.metrics.Subscriptions) == 2 })
	e := kvindex.Event{Hashes: []uint64{1, 2}, Tokens: b.Tokens, BlockSize: 8}
	r.emit("w:1", 0, vllm(&kvindex.Batch{Rank: -1, Events: []kvindex.Event{e}}))
	big := &testfleet.Prompt{Ours: kvindex.HashTokens(nil, 0, b.Tokens, 8)}
	v.wantDepth("blocks of its new size", "w:1", big, 2)
}

func TestK15DiscoveryNeverWaitsForTheBroker(t *testing.T) {
	r := newRig(t, nil)
	proxy := testfleet.StartProxy(t, r.broker.URL[len("nats://"):])
	cfg := r.config()
	cfg.Broker.Server = proxy.Address
	v := watch(t, cfg, worker("w:1", "1"))
	v.live()
	proxy.Freeze()
	for n := 2; n <= 50; n++ {
		workers := make([]*fleet.Worker, n)
		for i := range workers {
			workers[i] = worker(fmt.Sprintf("w:%d", i), "1")
		}
		v.set(workers...)
	}
	testkit.Until(t, "fifty workers while the broker says nothing", func() bool { return value(v.sub.metrics.Subscriptions) == 50 })
	proxy.Thaw()
}

func TestK16TheEventsBlockSizeCounts(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(),
		worker("wrong:1", "1", func(w *fleet.Worker) { w.BlockSize = 64 }),
		worker("none:1", "1", func(w *fleet.Worker) { w.BlockSize = 0 }))
	a := testfleet.NewPrompt(1, 3)
	for _, id := range []string{"wrong:1", "none:1"} {
		r.emit(id, 0, sglang(a.Stored(1, 0, 3)))
		v.wantDepth("blocks of the size in the event", id, a, 3)
		if n := v.index.BlockSize(v.index.Instance(id)); n != testfleet.BlockSize {
			t.Errorf("%s: block size %d, want the event's %d", id, n, testfleet.BlockSize)
		}
	}
}
