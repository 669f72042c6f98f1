package nats

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/wire"
)

func TestBothEncodingsAreFollowedByTheirContent(t *testing.T) {
	r := newRig(t, nil)
	for name, encode := range map[string]func(*kvindex.Batch) []byte{"vllm": vllm, "sglang": sglang} {
		t.Run(name, func(t *testing.T) {
			id := name + ":1"
			a, b := testfleet.NewPrompt(1, 3), testfleet.NewPrompt(2, 3)
			r.emit(id, 0, encode(a.Stored(1, 0, 2))) // before the router joins
			// The registered engine says nothing: all are registered as vLLM.
			v := watch(t, r.config(), worker(id, "1"))
			v.wantDepth("the past", id, a, 2)
			r.emit(id, 0, encode(a.Stored(1, 2, 3)))
			v.wantDepth("a child of it", id, a, 3)
			r.emit(id, 0, encode(b.Stored(1, 0, 3)))
			r.emit(id, 0, encode(a.Removed(1, 3)))
			v.wantDepth("another prompt", id, b, 3)
			v.wantDepth("the removal", id, a, 1)
			if m := v.index.Mode(v.index.Instance(id), time.Now()); m != kvindex.Exact {
				t.Errorf("the mode is %v, want exact", m)
			}
			if v.index.Feed(id).Partial() {
				t.Error("a view of the whole stream says that it is partial")
			}
		})
	}
}

// sample is a line of testdata/fleet.jsonl.
type sample struct {
	Subject, Key, Hex string
	N                 int
}

func samples(t *testing.T) (out []sample) {
	t.Helper()
	data, err := os.ReadFile("testdata/fleet.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var s sample
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if s.Hex != "" {
			out = append(out, s)
		}
	}
	return out
}

func TestMessagesOfARealFleet(t *testing.T) {
	r := newRig(t, nil)
	const vllmID, sglangID = "127.0.0.1:25311", "127.0.0.1:25312"
	v := watch(t, r.config(), worker(vllmID, "1"), worker(sglangID, "1"))
	v.live()
	ours := map[kvindex.Hash]bool{}
	chains := map[string][][]kvindex.Hash{}
	for _, s := range samples(t) {
		data, err := hex.DecodeString(s.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if s.Key != "" {
			hashes, badView := decodeView(data, 1000)
			if badView != nil || len(hashes) != s.N {
				t.Fatalf("the bucket's value: %d hashes and error %v, want %d", len(hashes), badView, s.N)
			}
			for _, h := range hashes {
				if !ours[h] {
					t.Errorf("the relay computed %#x, which we do not", h)
				}
			}
			continue
		}
		id, rank, err := parseSubject(s.Subject)
		if err != nil || rank != 0 || Subject(id, rank) != s.Subject {
			t.Fatalf("%s is read as %q rank %d: %v", s.Subject, id, rank, err)
		}
		var b kvindex.Batch
		if err := wire.DecodeBatch(data, &b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			if e.Kind == kvindex.Stored && !e.HasParent {
				hs := kvindex.HashTokens(nil, 0, e.Tokens, e.BlockSize)
				chains[id] = append(chains[id], hs)
				for _, h := range hs {
					ours[h] = true
				}
			}
		}
		r.send(s.Subject, data)
	}
	for _, id := range []string{vllmID, sglangID} {
		if len(chains[id]) == 0 {
			t.Fatalf("no prompt of %s in the samples", id)
		}
		for i, hs := range chains[id] {
			v.wantDepth(fmt.Sprintf("prompt %d of %s", i, id), id, &testfleet.Prompt{Ours: hs}, len(hs))
		}
	}
	if n := value(v.sub.metrics.DecodeErrors); n != 0 {
		t.Errorf("%v of the messages could not be read", n)
	}
}

func TestEachRankHasItsOwnView(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(),
		worker("dp:1", "1", func(w *fleet.Worker) { w.DPSize = 2 }),
		worker("ext:1", "1", func(w *fleet.Worker) { w.DPSize, w.DPRank = 4, 3 }))
	v.live()
	a, b, c, d := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2), testfleet.NewPrompt(3, 2), testfleet.NewPrompt(4, 2)
	r.emit("dp:1", 0, sglang(a.Stored(1, 0, 2)))
	r.emit("dp:1", 1, sglang(b.Stored(1, 0, 2)))
	r.emit("dp:1", 2, sglang(c.Stored(1, 0, 2))) // no such rank
	r.emit("ext:1", 3, vllm(c.Stored(1, 0, 2)))  // one rank of several workers
	r.emit("ext:1", 0, vllm(d.Stored(1, 0, 2)))
	v.wantDepth("rank 0", "dp:1#dp0", a, 2)
	v.wantDepth("rank 1", "dp:1#dp1", b, 2)
	v.wantDepth("its own number", "ext:1", c, 2)
	v.wantDepth("number 0", "ext:1", d, 2)
	if v.depth("dp:1#dp0", b) != 0 || v.depth("dp:1#dp1", a) != 0 {
		t.Error("ranks are mixed up")
	}
	if n := value(v.sub.metrics.Ignored); n != 1 {
		t.Errorf("%v messages ignored, want the one of a rank that is not there", n)
	}
	// The worker shrinks to one rank: its target has another name.
	v.set(worker("dp:1", "1"))
	testkit.Until(t, "one subscription", func() bool { return value(v.sub.metrics.Subscriptions) == 1 })
	r.emit("dp:1", 0, sglang(a.Stored(1, 0, 1)))
	v.wantDepth("the view under the new name", "dp:1", a, 1)
}

func TestBrokerThatIsDownAtStartIsTriedAgain(t *testing.T) {
	r := newRig(t, nil)
	a := testfleet.NewPrompt(1, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	r.broker.Stop(t)
	v := watch(t, r.config(), worker("w:1", "1"))
	testkit.Until(t, "an attempt", func() bool { return value(v.sub.metrics.Reconnects) > 1 })
	if n := v.log.Count("out of reach"); n != 1 {
		t.Errorf("said %d times that the broker is out of reach, want once", n)
	}
	r.broker.Start(t)
	v.wantDepth("the events", "w:1", a, 2)
}

func TestStreamThatIsNotThereYetIsAwaited(t *testing.T) {
	r := newRig(t, nil)
	if err := r.js.DeleteStream(t.Context(), Stream); err != nil {
		t.Fatal(err)
	}
	v := watch(t, r.config(), worker("w:1", "1"))
	testkit.Until(t, "the search for it", func() bool { return v.log.Count("no such stream yet") > 0 })
	r.createStream(func(*jetstream.StreamConfig) {})
	a := testfleet.NewPrompt(1, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the events", "w:1", a, 2)
}

func TestBrokerRestartKeepsViewsAndLosesNothing(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(), worker("w:1", "1"))
	a, b := testfleet.NewPrompt(1, 3), testfleet.NewPrompt(2, 3)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the events", "w:1", a, 2)
	r.broker.Stop(t)
	testkit.Until(t, "the loss", func() bool { return value(v.sub.metrics.Reconnects) > 0 })
	if d := v.depth("w:1", a); d != 2 {
		t.Errorf("with the broker gone the view has %d blocks, want the 2 it had", d)
	}
	if m := v.index.Mode(v.index.Instance("w:1"), time.Now()); m == kvindex.Exact {
		t.Error("with the broker gone the view counts as exact")
	}
	r.broker.Start(t)
	v.live()
	if m := v.index.Mode(v.index.Instance("w:1"), time.Now()); m != kvindex.Exact {
		t.Errorf("the mode is %v after the broker's return though nothing was missed, want exact", m)
	}
	testkit.Until(t, "the relay's own connection", func() bool {
		_, err := r.js.Publish(t.Context(), Subject("w:1", 0), vllm(a.Stored(1, 2, 3)))
		return err == nil
	})
	r.emit("w:1", 0, vllm(b.Stored(1, 0, 3)))
	v.wantDepth("the child", "w:1", a, 3)
	v.wantDepth("a new prompt", "w:1", b, 3)
	if v.index.Feed("w:1").Partial() || value(v.sub.metrics.gaps) != 0 {
		t.Error("a restart without loss counts as one")
	}
}

func TestEventsBetweenConnectionsAreFetched(t *testing.T) {
	r := newRig(t, nil)
	proxy := testfleet.StartProxy(t, strings.TrimPrefix(r.broker.URL, "nats://"))
	cfg := r.config()
	cfg.Broker.Server = proxy.Address
	v := watch(t, cfg, worker("w:1", "1"))
	v.live()
	a := testfleet.NewPrompt(1, 60)
	for i := range 60 {
		r.emit("w:1", 0, vllm(a.Stored(1, i, i+1)))
		if i%20 == 10 {
			proxy.Cut()
		}
	}
	v.wantDepth("all blocks, each the next one's parent", "w:1", a, 60)
	if value(v.sub.metrics.gaps) != 0 || v.index.Feed("w:1").Partial() {
		t.Error("what was fetched counts as lost")
	}
	if value(v.sub.metrics.Reconnects) == 0 {
		t.Error("no connection broke")
	}
}

func TestMetricsAreExportedUnderZMQsNames(t *testing.T) {
	v := newView(t, Config{})
	reg := prometheus.NewRegistry()
	if err := v.sub.Register(reg); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) != 1 || m.GetLabel()[0].GetValue() != "nats" {
				t.Errorf("%s has labels %v", f.GetName(), m.GetLabel())
			}
		}
	}
	for _, name := range []string{"subscriptions", "connected", "messages_total", "bytes_total", "decode_errors_total", "reconnects_total", "replayed_messages_total"} {
		if !got["pointsman_kvevents_"+name] {
			t.Errorf("no pointsman_kvevents_%s", name)
		}
	}
}
