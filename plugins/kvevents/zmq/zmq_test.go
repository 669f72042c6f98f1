package zmq

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/wire"
)

func TestBothEncodingsAndFramings(t *testing.T) {
	a, b := testfleet.NewPrompt(1, 3), testfleet.NewPrompt(2, 3)
	for _, c := range []struct {
		name string
		send func(*publisher, *kvindex.Batch)
	}{
		{"vLLM, three frames", func(p *publisher, b *kvindex.Batch) { p.emit(wire.AppendVLLM(nil, b)) }},
		{"SGLang, three frames", func(p *publisher, b *kvindex.Batch) { p.emit(wire.AppendSGLang(nil, b)) }},
		{"ATOM, two frames", func(p *publisher, b *kvindex.Batch) { p.frames([]byte("kv-events"), wire.AppendVLLM(nil, b)) }},
		{"vLLM's own empty topic", func(p *publisher, b *kvindex.Batch) {
			payload := wire.AppendVLLM(nil, b)
			p.send("", p.keep(payload), payload)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := publish(t, "127.0.0.1", 0)
			v := watch(t, impatient(), worker("w", p.endpoint()))
			p.heard()
			c.send(p, a.Stored(1, 0, 2))
			v.wantDepth("the first blocks", "w", a, 2)
			c.send(p, a.Stored(2, 2, 3))
			v.wantDepth("their child", "w", a, 3)
			c.send(p, b.Stored(3, 0, 3))
			c.send(p, &kvindex.Batch{Rank: -1, At: 4, Events: []kvindex.Event{{Kind: kvindex.Removed, Hashes: a.Hashes}}})
			v.wantDepth("another prompt", "w", b, 3)
			v.wantDepth("the removal", "w", a, 0)
		})
	}
}

func TestOtherTopicsAreLeftOut(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	v := watch(t, impatient(), worker("w", p.endpoint()))
	p.heard()
	a, b := testfleet.NewPrompt(1, 1), testfleet.NewPrompt(2, 1)
	p.send("metrics", 40, vllm(a.Stored(1, 0, 1)))
	p.frames([]byte("kv-events"))
	p.emit(vllm(b.Stored(2, 0, 1)))
	v.wantDepth("what is meant", "w", b, 1)
	if v.depth("w", a) != 0 || testutil.ToFloat64(v.sub.metrics.Ignored) != 2 || testutil.ToFloat64(v.sub.metrics.Messages) != 1 {
		t.Errorf("depth %d, ignored %v, taken %v", v.depth("w", a),
			testutil.ToFloat64(v.sub.metrics.Ignored), testutil.ToFloat64(v.sub.metrics.Messages))
	}
}

func TestRanksAreOnPortsOfTheirOwn(t *testing.T) {
	var base, second *publisher
	for range 50 { // until two neighbouring ports are free
		p := publish(t, "127.0.0.1", 0)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.port+1))
		if err != nil {
			continue
		}
		l.Close()
		base, second = p, publish(t, "127.0.0.1", p.port+1)
		break
	}
	v := watch(t, impatient(), worker("w", base.endpoint(), func(w *fleet.Worker) { w.DPSize = 2 }))
	base.heard()
	second.heard()
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	base.emit(vllm(a.Stored(1, 0, 2)))
	second.emit(vllm(b.Stored(1, 0, 2)))
	v.wantDepth("rank 0's blocks", "w#dp0", a, 2)
	v.wantDepth("rank 1's blocks", "w#dp1", b, 2)
	if v.depth("w#dp0", b) != 0 || v.depth("w#dp1", a) != 0 {
		t.Error("the ranks' views are mixed")
	}
}

func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 on this machine")
	} else {
		l.Close()
	}
	p := publish(t, "::1", 0)
	a := testfleet.NewPrompt(1, 1)
	p.keep(vllm(a.Stored(1, 0, 1)))
	replay := p.replay()
	v := watch(t, impatient(), worker("[::1]:1", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	v.wantDepth("the past", "[::1]:1", a, 1)
}

func TestAGapIsFilledFromThePast(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	p.heard()
	a := testfleet.NewPrompt(1, 5)
	p.emit(vllm(a.Stored(1, 0, 1)))
	v.wantDepth("the start", "w", a, 1)
	p.keep(vllm(a.Stored(2, 1, 2)))
	p.keep(vllm(a.Stored(3, 2, 3)))
	p.emit(vllm(a.Stored(4, 3, 4)))
	v.wantDepth("what was lost and what came", "w", a, 4)
	p.emit(vllm(a.Stored(5, 4, 5)))
	v.wantDepth("what came next", "w", a, 5)
	if asked := p.askedFor(); !slices.Contains(asked, 1) {
		t.Errorf("asked for %v, want from 1", asked)
	}
	if mode := v.index.Mode(v.index.Instance("w"), time.Now()); mode != kvindex.Exact {
		t.Errorf("mode %v", mode)
	}
}

// TestAGapIsFilledWhileAResyncMustWait: the pause between replays of the whole
// history is not one for the few batches of a gap.
func TestAGapIsFilledWhileAResyncMustWait(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	cfg := impatient()
	cfg.ResyncEvery = time.Hour
	v := watch(t, cfg, worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	p.heard()
	a, orphan, late := testfleet.NewPrompt(1, 4), testfleet.NewPrompt(2, 2), testfleet.NewPrompt(3, 1)
	p.emit(vllm(a.Stored(1, 0, 1)))
	v.wantDepth("the start", "w", a, 1)
	p.emit(vllm(orphan.Stored(2, 1, 2))) // its parent is not known: a resync is wanted, and must wait
	p.emit(vllm(late.Stored(3, 0, 1)))
	v.wantDepth("what came behind the orphan", "w", late, 1)
	p.keep(vllm(a.Stored(4, 1, 2)))
	p.keep(vllm(a.Stored(5, 2, 3)))
	p.emit(vllm(a.Stored(6, 3, 4)))
	v.wantDepth("what was lost and what came", "w", a, 4)
	if got := v.depth("w", late); got != 1 {
		t.Errorf("the view was dropped: %d blocks of before the gap, want 1", got)
	}
}

// TestAViewIsGivenUpAfterALongOutage: a publisher that never comes back must not
// count as holding what it once did.
func TestAViewIsGivenUpAfterALongOutage(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	cfg := impatient()
	cfg.GiveUp = 50 * time.Millisecond
	v := watch(t, cfg, worker("w", p.endpoint()))
	p.heard()
	a := testfleet.NewPrompt(1, 3)
	p.emit(vllm(a.Stored(1, 0, 3)))
	v.wantDepth("the start", "w", a, 3)
	p.stop()
	v.wantDepth("after the outage", "w", a, 0)
	testkit.Until(t, "the loss is said", func() bool { return v.log.Count("its view is dropped") == 1 })
}

func TestAGapWithoutAPastDropsTheView(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	v := watch(t, impatient(), worker("w", p.endpoint()))
	p.heard()
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	p.emit(vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the start", "w", a, 2)
	p.keep(nil)
	p.emit(vllm(b.Stored(2, 0, 2)))
	v.wantDepth("what came behind the gap", "w", b, 2)
	if got := v.depth("w", a); got != 0 {
		t.Errorf("%d blocks of before the gap are left", got)
	}
}

func TestAGapThatThePastNoLongerCovers(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	p.heard()
	a, b := testfleet.NewPrompt(1, 1), testfleet.NewPrompt(2, 3)
	p.emit(vllm(a.Stored(1, 0, 1)))
	v.wantDepth("the start", "w", a, 1)
	p.mu.Lock()
	p.next, p.first = 50, 50
	p.mu.Unlock()
	p.keep(vllm(b.Stored(2, 0, 1)))
	p.keep(vllm(b.Stored(3, 1, 2)))
	p.emit(vllm(b.Stored(4, 2, 3)))
	v.wantDepth("what the past still has", "w", b, 3)
	if got := v.depth("w", a); got != 0 {
		t.Errorf("%d blocks of before the gap are left", got)
	}
}

// A ROUTER socket drops what it cannot queue, in the middle of an answer.
func TestAnAnswerWithHolesIsAskedForAgain(t *testing.T) {
	const n = 20
	for _, c := range []struct {
		name  string
		drops func(seq uint64, place int) bool
		want  int // blocks known of a chain of n
	}{
		{"by place", func(_ uint64, place int) bool { return place >= 4 && place < 9 }, n},
		{"the tail", func(_ uint64, place int) bool { return place == 3 }, n},
		{"for good", func(seq uint64, _ int) bool { return seq == 7 }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := publish(t, "127.0.0.1", 0)
			p.drops = c.drops
			replay := p.replay()
			a, b := testfleet.NewPrompt(1, n), testfleet.NewPrompt(2, 1)
			for i := range n {
				p.keep(vllm(a.Stored(float64(i), i, i+1)))
			}
			p.keep(vllm(b.Stored(n, 0, 1)))
			v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
			v.wantDepth("the last batch", "w", b, 1)
			if got := v.depth("w", a); got != c.want {
				t.Errorf("%d blocks of the chain, want %d; asked from %v", got, c.want, p.askedFor())
			}
		})
	}
}

func TestALateJoinerIsWarm(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	a := testfleet.NewPrompt(1, 3)
	for i := range 3 {
		p.keep(vllm(a.Stored(float64(i), i, i+1)))
	}
	v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	v.wantDepth("all of the past, without a live message", "w", a, 3)
	if got := testutil.ToFloat64(v.sub.metrics.Messages); got != 0 {
		t.Errorf("%v live messages", got)
	}
}

func TestTheReplayPortMayBeKnownByItsOffset(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	a := testfleet.NewPrompt(1, 1)
	p.keep(vllm(a.Stored(1, 0, 1)))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(replay, "tcp://"))
	cfg := impatient()
	if _, err := fmt.Sscan(port, &cfg.ReplayPortOffset); err != nil {
		t.Fatal(err)
	}
	cfg.ReplayPortOffset -= p.port
	v := watch(t, cfg, worker("w", p.endpoint()))
	v.wantDepth("the past", "w", a, 1)
}

func TestAPublisherThatRestartsHasAnEmptyCache(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("with replay: %v", replay), func(t *testing.T) {
			p := publish(t, "127.0.0.1", 0)
			edit := func(*fleet.Worker) {}
			var answers string
			if replay {
				answers = p.replay()
				edit = func(w *fleet.Worker) { w.KVReplay = answers }
			}
			v := watch(t, impatient(), worker("w", p.endpoint(), edit))
			p.heard()
			a, b := testfleet.NewPrompt(1, 3), testfleet.NewPrompt(2, 1)
			for i := range 3 {
				p.emit(vllm(a.Stored(float64(1+i), i, i+1)))
			}
			v.wantDepth("the first life", "w", a, 3)
			v.connected(1)
			p.stop()
			v.connected(0)
			// The new process numbers from 0 and keeps only its own past.
			p.mu.Lock()
			p.next, p.history = 0, map[uint64][]byte{}
			p.mu.Unlock()
			again := publish(t, "127.0.0.1", p.port)
			again.heard()
			payload := vllm(b.Stored(9, 0, 1))
			if replay {
				p.keep(payload)
			}
			again.send("kv-events", 0, payload)
			v.wantDepth("the second life", "w", b, 1)
			v.wantDepth("the end of the first", "w", a, 0)
		})
	}
}

// Without a live message: the past that is asked for on reconnecting tells.
func TestAQuietRestartIsNoticedByThePast(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	p.heard()
	a := testfleet.NewPrompt(1, 2)
	p.emit(vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the first life", "w", a, 2)
	p.stop()
	v.connected(0)
	p.mu.Lock()
	p.next, p.history = 0, map[uint64][]byte{}
	p.mu.Unlock()
	publish(t, "127.0.0.1", p.port).heard()
	v.wantDepth("the end of the first life", "w", a, 0)
}

func TestABrokenConnectionLosesNothing(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	p.heard()
	a := testfleet.NewPrompt(1, 4)
	p.emit(vllm(a.Stored(1, 0, 1)))
	p.emit(vllm(a.Stored(2, 1, 2)))
	v.wantDepth("the start", "w", a, 2)
	p.stop()
	v.connected(0)
	p.keep(vllm(a.Stored(3, 2, 3))) // while nobody listens
	again := publish(t, "127.0.0.1", p.port)
	v.wantDepth("what was missed", "w", a, 3)
	again.heard()
	again.send("kv-events", 3, vllm(a.Stored(4, 3, 4)))
	v.wantDepth("what came next", "w", a, 4)
	if asked := p.askedFor(); !slices.Contains(asked, 1) {
		t.Errorf("asked for %v, want from the last one known, 1", asked)
	}
	if v.log.Count("out of reach") != 1 || v.log.Count("is back") != 1 {
		t.Errorf("the outage should be said once, and its end:\n%s", v.log)
	}
}

// D7 and K7: a record that changed means another publisher or another process.
func TestAChangedRecordIsSubscribedAnew(t *testing.T) {
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	for _, c := range []struct {
		name  string
		moves bool
		edit  func(*fleet.Worker)
	}{
		{"another port", true, func(*fleet.Worker) {}},
		{"another incarnation", false, func(w *fleet.Worker) { w.Incarnation = "2" }},
		{"another block size", false, func(w *fleet.Worker) { w.BlockSize = 2 * testfleet.BlockSize }},
		{"another engine", false, func(w *fleet.Worker) { w.Engine = fleet.SGLang }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := publish(t, "127.0.0.1", 0)
			v := watch(t, impatient(), worker("w", p.endpoint()))
			p.heard()
			p.emit(vllm(a.Stored(1, 0, 2)))
			v.wantDepth("the start", "w", a, 2)
			next := p
			if c.moves {
				next = publish(t, "127.0.0.1", 0)
			}
			v.set(worker("w", next.endpoint(), c.edit))
			v.wantDepth("an empty view", "w", a, 0)
			v.connected(1)
			testkit.Until(t, "the new subscription", func() bool {
				next.send("kv-events", 7, vllm(b.Stored(2, 0, 2)))
				return v.depth("w", b) == 2
			})
		})
	}
}

func TestAnUnchangedRecordKeepsItsSubscription(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	v := watch(t, impatient(), worker("w", p.endpoint()))
	p.heard()
	a := testfleet.NewPrompt(1, 2)
	p.emit(vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the start", "w", a, 2)
	for i := range 20 {
		v.set(worker("w", p.endpoint(), func(w *fleet.Worker) { w.Endpoint = fmt.Sprintf("f:%d", i+1) }), worker(fmt.Sprintf("x%d", i), ""))
	}
	p.emit(vllm(testfleet.NewPrompt(2, 1).Stored(2, 0, 1)))
	v.wantDepth("the new prompt", "w", testfleet.NewPrompt(2, 1), 1)
	if v.depth("w", a) != 2 || testutil.ToFloat64(v.sub.metrics.Reconnects) != 0 {
		t.Errorf("depth %d, %v reconnects", v.depth("w", a), testutil.ToFloat64(v.sub.metrics.Reconnects))
	}
}

func TestAWorkerThatIsGoneIsLetGo(t *testing.T) {
	p, q := publish(t, "127.0.0.1", 0), publish(t, "127.0.0.1", 0)
	v := watch(t, impatient(), worker("w", p.endpoint()), worker("x", q.endpoint()))
	p.heard()
	q.heard()
	a := testfleet.NewPrompt(1, 1)
	p.emit(vllm(a.Stored(1, 0, 1)))
	v.wantDepth("its blocks", "w", a, 1)
	v.connected(2)
	v.set(worker("x", q.endpoint()))
	v.connected(1)
	v.wantDepth("an empty view", "w", a, 0)
	testkit.Until(t, "one subscription", func() bool { return testutil.ToFloat64(v.sub.metrics.Subscriptions) == 1 })
	v.set(worker("w", p.endpoint(), func(w *fleet.Worker) { w.Status = fleet.Draining }), worker("x", q.endpoint(), func(w *fleet.Worker) { w.Status = fleet.Dead }))
	testkit.Until(t, "the draining one only", func() bool { return testutil.ToFloat64(v.sub.metrics.Subscriptions) == 1 })
	v.connected(1)
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	v := watch(t, impatient())
	reg := prometheus.NewPedanticRegistry()
	if err := v.sub.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := v.sub.Register(reg); err == nil {
		t.Error("registered twice")
	}
	v.sub.metrics.Replays.WithLabelValues("complete").Inc()
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestConfigFaults(t *testing.T) {
	if _, err := New(Config{
		DialTimeout: -1, ReplayTimeout: -1, Backoff: -1, MaxBackoff: -1, ResyncEvery: -1,
		MaxMessage: -1, ReplayPortOffset: 70000, Topic: strings.Repeat("t", 256),
	}, nil, nil, nil); err == nil || strings.Count(err.Error(), "\n") != 7 {
		t.Errorf("error %v, want all eight faults", err)
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}
