package extproc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// wireMessage puts m into a pooled buffer, as the transport does.
func (w *world) wireMessage(m *extprocv3.ProcessingRequest) []byte { return mustMarshal(w.t, m) }

func (w *world) deliver(c *conversation, wire []byte) {
	handle := w.server.pool.Get(len(wire))
	copy(*handle, wire)
	c.msg.read(mem.NewBuffer(handle, w.server.pool))
	if !c.x.on(context.Background(), &c.msg) {
		w.t.Fatalf("refused: %s", w.log)
	}
	c.msg.free()
	for i := range c.x.out {
		c.x.out[i].data.Free()
		c.x.out[i].data = nil
	}
	c.x.out = c.x.out[:0]
}

// TestAllocations guards what the whole design is for: what a request and a
// response chunk allocate in this room and those behind it, the transport left
// out.
func TestAllocations(t *testing.T) {
	w := buildWorld(t, testConfig(), mixed(workerID, "m"), mixed("10.0.0.2:30000", "m"))
	w.server.pool.dirty = nil
	head := w.wireMessage(post(chatPath))
	small := w.wireMessage(requestBody(chat("m", strings.Repeat("hello ", 170)), true))
	large := w.wireMessage(requestBody(chat("m", strings.Repeat("hello ", 17000)), true))
	respond := w.wireMessage(responseHeaders(false, ":status", "200"))
	chunk := w.wireMessage(responseBody("data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n", false))
	request := func(body []byte, chunks int) func() {
		return func() {
			c := w.server.acquire()
			w.deliver(c, head)
			w.deliver(c, body)
			if chunks > 0 {
				w.deliver(c, respond)
			}
			for range chunks {
				w.deliver(c, chunk)
			}
			w.server.release(context.Background(), c)
		}
	}
	// Under the race detector sync.Pool drops a part of what it is given.
	slack := 1.0
	if raceEnabled {
		slack = 3
	}
	check := func(what string, got, want float64) {
		t.Helper()
		t.Logf("%s: %.1f allocations", what, got)
		if got > want*slack {
			t.Errorf("%s: %.1f allocations, want at most %g", what, got, want)
		}
	}
	const runs = 200
	one := testing.AllocsPerRun(runs, request(small, 0))
	check("a request of 1 KB", one, 24)
	check("a request of 100 KB", testing.AllocsPerRun(runs, request(large, 0)), 20)
	check("a response chunk", (testing.AllocsPerRun(runs, request(small, 101))-testing.AllocsPerRun(runs, request(small, 1)))/100, 2)
}

func TestThirtyMegabytesPassAndMoreAreRefusedWhileTheyArrive(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	body := chat("m", strings.Repeat("x", 30<<20))
	if err := roundTrip(w, body, 1<<20); err != nil {
		t.Error(err)
	}
	g := w.open()
	g.send(post(chatPath))
	piece := strings.Repeat(" ", 1<<20)
	for range 40 { // the sender is cut off long before the end
		if g.stream.Send(requestBody(piece, false)) != nil {
			break
		}
	}
	checkOpenAIError(t, g.immediate(), 413, "request_too_large", false)
}

func TestAMessageOverTheTransportsLimitEndsItsStreamAlone(t *testing.T) {
	cfg := testConfig()
	cfg.MaxBody, cfg.MaxMessage = 1<<20, 1<<20+messageOverhead
	w := newWorld(t, cfg, mixed(workerID, "m"))
	other := w.routedChat(fullDuplex)
	g := w.open()
	g.send(withModes(post(chatPath), buffered, none), requestBody(strings.Repeat(" ", 2<<20), true))
	for {
		if _, err := g.stream.Recv(); err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the stream ended with %v", err)
			}
			break
		}
	}
	other.send(responseHeaders(true, ":status", "200"))
	other.unchanged(kindResponseHeaders)
	other.finish()
}

// A client that reads nothing must not hold up the others on its connection:
// Envoy has one connection for all its requests.
func TestAStreamThatIsNotReadHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	stuck := w.open()
	body := chat("m", strings.Repeat("y", 4<<20))
	stuck.send(post(chatPath))
	for rest := body; rest != ""; {
		n := min(1<<18, len(rest))
		stuck.send(requestBody(rest[:n], n == len(rest)))
		rest = rest[n:]
	}
	for i := range 20 {
		if err := roundTrip(w, chat("m", strings.Repeat("z", 1000*i)), 700); err != nil {
			t.Fatalf("request %d beside a stuck stream: %v", i, err)
		}
	}
	stuck.routedHeaders()
	if got := stuck.streamedBody(0, true); got != body {
		t.Error("the stuck stream's body is not what was sent")
	}
	stuck.finish()
}

func TestLaterModesAreTakenForFullDuplex(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	for _, mode := range []modev3.ProcessingMode_BodySendMode{modev3.ProcessingMode_GRPC, 99, -1} {
		g := w.open()
		g.send(withModes(post(chatPath), mode, mode), requestBody(chat("m", "x"), true))
		g.routedHeaders()
		g.streamedBody(0, true)
		g.send(responseHeaders(false, ":status", "200"), responseBody("y", true))
		g.unchanged(kindResponseHeaders)
		if got := g.streamedBody(0, true); got != "y" {
			t.Errorf("mode %d: response body %q", mode, got)
		}
		g.finish()
	}
}

// TestClientsThatLeaveAtAnyMoment: whatever is cut off where, the load of every
// pick is given back (newWorld's cleanup looks).
func TestClientsThatLeaveAtAnyMoment(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"), mixed("10.0.0.2:30000", "m"))
	var wg sync.WaitGroup
	for c := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 7))
			for i := range 40 {
				leave(w, rng, fmt.Sprintf("%d/%d", c, i))
			}
		})
	}
	wg.Wait()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if n := w.server.metrics.open.Load(); n != 0 {
		t.Errorf("%d streams are counted as open", n)
	}
}

// leave plays a random beginning of a conversation and cancels it.
func leave(w *world, rng *rand.Rand, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := w.client.Process(ctx)
	if err != nil {
		w.t.Errorf("%s: %v", name, err)
		return
	}
	body := chat("m", strings.Repeat("word ", rng.IntN(30000)))
	msgs := []*extprocv3.ProcessingRequest{post(chatPath)}
	msgs = append(msgs, cut(body, rng.IntN(len(body)))...)
	msgs = append(msgs, responseHeaders(false, ":status", "200"), responseBody("x", false), responseBody("y", true))
	routed := len(msgs) - 3 // messages after which an answer is due
	n := rng.IntN(len(msgs) + 1)
	for _, m := range msgs[:n] {
		if stream.Send(m) != nil {
			break
		}
	}
	if n >= routed && rng.IntN(2) == 0 {
		_, _ = stream.Recv()
	}
}
