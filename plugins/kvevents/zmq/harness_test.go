package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	stdlog "log"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/wire"
)

// The publishers' library leaves its own writer and reader behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*socket).connReaper"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*qreader).listen"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubQReader).listen"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*routerQReader).listen"),
	)
}

// publisher is an engine's: a real ZeroMQ PUB socket and, on request, the
// ROUTER that answers for the past as vLLM's does.
type publisher struct {
	tb     testing.TB
	host   string
	port   int
	sock   zmq4.Socket
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	history map[uint64][]byte
	first   uint64 // the history reaches back to here
	next    uint64
	asked   []uint64
	drops   func(seq uint64, place int) bool // whether an answer loses a message
}

func publish(tb testing.TB, host string, port int) *publisher {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &publisher{tb: tb, host: host, cancel: cancel, history: map[uint64][]byte{}}
	p.sock = zmq4.NewPub(ctx, quiet())
	p.port = listen(tb, p.sock, host, port)
	tb.Cleanup(p.stop)
	return p
}

func quiet() zmq4.Option { return zmq4.WithLogger(stdlog.New(io.Discard, "", 0)) }

func listen(tb testing.TB, sock zmq4.Socket, host string, port int) int {
	tb.Helper()
	if err := sock.Listen("tcp://" + net.JoinHostPort(host, strconv.Itoa(port))); err != nil {
		tb.Fatal(err)
	}
	return sock.Addr().(*net.TCPAddr).Port
}

func (p *publisher) endpoint() string {
	return "tcp://" + net.JoinHostPort(p.host, strconv.Itoa(p.port))
}

// replay opens the ROUTER and returns its endpoint.
func (p *publisher) replay() string {
	p.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	router := zmq4.NewRouter(ctx, quiet())
	port := listen(p.tb, router, p.host, 0)
	p.done.Go(func() { p.answer(ctx, router) })
	p.tb.Cleanup(func() {
		cancel()
		router.Close()
		p.done.Wait()
	})
	return "tcp://" + net.JoinHostPort(p.host, strconv.Itoa(port))
}

func (p *publisher) answer(ctx context.Context, router zmq4.Socket) {
	for {
		msg, err := router.Recv()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			continue // the library's way to say that one client hung up
		}
		if len(msg.Frames) != 3 || len(msg.Frames[1]) != 0 || len(msg.Frames[2]) != 8 {
			p.tb.Errorf("a replay was asked for with %q", msg.Frames)
			return
		}
		p.mu.Lock()
		from := binary.BigEndian.Uint64(msg.Frames[2])
		p.asked = append(p.asked, from)
		var out [][2][]byte
		for seq := max(from, p.first); seq < p.next; seq++ {
			if p.drops == nil || !p.drops(seq, int(seq-max(from, p.first))) {
				out = append(out, [2][]byte{binary.BigEndian.AppendUint64(nil, seq), p.history[seq]})
			}
		}
		p.mu.Unlock()
		out = append(out, [2][]byte{bytes.Repeat([]byte{0xff}, 8), {}})
		for _, o := range out {
			if err := router.SendMulti(zmq4.NewMsgFrom(msg.Frames[0], []byte{}, o[0], o[1])); err != nil {
				break
			}
		}
	}
}

func (p *publisher) askedFor() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]uint64(nil), p.asked...)
}

func (p *publisher) stop() {
	p.cancel()
	p.sock.Close()
}

// keep numbers a batch and keeps it without sending it.
func (p *publisher) keep(payload []byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.history[p.next] = payload
	p.next++
	return p.next - 1
}

// emit numbers, keeps and sends a batch.
func (p *publisher) emit(payload []byte) { p.send("kv-events", p.keep(payload), payload) }

func (p *publisher) send(topic string, seq uint64, payload []byte) {
	p.frames([]byte(topic), binary.BigEndian.AppendUint64(nil, seq), payload)
}

func (p *publisher) frames(frames ...[]byte) {
	p.tb.Helper()
	if err := p.sock.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		p.tb.Error(err)
	}
}

// heard waits until somebody has subscribed.
func (p *publisher) heard() {
	p.tb.Helper()
	testkit.Until(p.tb, "a subscriber", func() bool { return len(p.sock.(zmq4.Topics).Topics()) > 0 })
}

func vllm(b *kvindex.Batch) []byte { return wire.AppendVLLM(nil, b) }

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

// impatient gives up in test time.
func impatient() Config {
	return Config{
		ReplayTimeout: 500 * time.Millisecond, DialTimeout: 500 * time.Millisecond,
		Backoff: 5 * time.Millisecond, MaxBackoff: 20 * time.Millisecond, ResyncEvery: 20 * time.Millisecond,
	}
}

func watch(tb testing.TB, cfg Config, workers ...*fleet.Worker) *view {
	tb.Helper()
	v := &view{tb: tb, store: new(fleet.Store), index: kvindex.New(kvindex.DefaultConfig()), log: new(testkit.Log)}
	v.feed = fleet.NewFeed(v.store)
	v.set(workers...)
	var err error
	v.sub, err = New(cfg, v.store, v.index, v.log.Logger())
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.sub.Run(ctx) }()
	v.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				tb.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			tb.Error("Run does not return")
		}
	})
	tb.Cleanup(v.stop)
	return v
}

// set makes workers the fleet. The index is told of each target, as the picker
// does.
func (v *view) set(workers ...*fleet.Worker) {
	v.feed.Replace(workers)
	for _, t := range v.store.Snapshot().Targets {
		v.index.Instance(t.Key)
	}
}

func worker(id, events string, edit ...func(*fleet.Worker)) *fleet.Worker {
	w := &fleet.Worker{ID: id, URL: "http://" + id, Host: "h", Port: 1, Engine: fleet.VLLM, BlockSize: testfleet.BlockSize, DPRank: -1, KVEvents: events}
	for _, e := range edit {
		e(w)
	}
	return w
}

func (v *view) depth(key string, p *testfleet.Prompt) int {
	var s kvindex.Scratch
	v.index.Lookup(p.Ours, &s)
	return s.Depth(v.index.Instance(key))
}

func (v *view) wantDepth(what, key string, p *testfleet.Prompt, n int) {
	v.tb.Helper()
	testkit.Until(v.tb, what, func() bool { return v.depth(key, p) == n })
}

func (v *view) connected(n int) {
	v.tb.Helper()
	testkit.Until(v.tb, strconv.Itoa(n)+" connections", func() bool { return testutil.ToFloat64(v.sub.metrics.Connected) == float64(n) })
}

// rawServer takes connections and hands each to serve, which may do anything.
func rawServer(tb testing.TB, serve func(net.Conn)) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					tb.Error(err)
				}
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { serve(c) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "tcp://" + l.Addr().String()
}
