package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
)

// hello is the greeting of a peer with the NULL mechanism.
func hello() []byte {
	b := make([]byte, greetingSize)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return b
}

func command(body []byte) []byte { return append([]byte{flagCommand, byte(len(body))}, body...) }

func ready(kind string) []byte { return command(property([]byte("\x05READY"), "Socket-Type", kind)) }

// speak writes all parts and then waits for the other side to hang up.
func speak(parts ...[]byte) func(net.Conn) {
	return func(c net.Conn) {
		for _, p := range parts {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, c)
	}
}

func hostPort(endpoint string) string { return strings.TrimPrefix(endpoint, "tcp://") }

func TestPeersThatAreNone(t *testing.T) {
	hostile := hello()
	copy(hostile[12:], "CURVE")
	old := hello()
	old[10] = 2
	for name, serve := range map[string]func(net.Conn){
		"hangs up":                 func(c net.Conn) { c.Close() },
		"never speaks":             speak(),
		"greets and stops":         speak(hello()),
		"speaks HTTP":              speak([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + strings.Repeat("x", 64))),
		"wants security":           speak(hostile),
		"speaks an older version":  speak(old),
		"sends a message first":    speak(hello(), []byte{0, 1, 'x'}),
		"is a PULL socket":         speak(hello(), ready("PULL")),
		"says it is not allowed":   speak(hello(), command([]byte("\x05ERROR\x06denied"))),
		"says nothing of its type": speak(hello(), command([]byte("\x05READY"))),
		"is ready without end":     speak(hello(), []byte{flagCommand | flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
		"has a property cut off":   speak(hello(), command([]byte("\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB"))),
		"has a property of nobody": speak(hello(), command([]byte("\x05READY\x00"))),
		"says another command":     speak(hello(), command([]byte("\x05HELLO"))),
	} {
		t.Run(name, func(t *testing.T) {
			addr := hostPort(rawServer(t, serve))
			start := time.Now()
			c, err := dial(t.Context(), addr, sub, 200*time.Millisecond, 1<<20)
			if err == nil {
				c.close()
				t.Fatal("taken for a publisher")
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	addr := hostPort(rawServer(t, speak()))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	start := time.Now()
	if _, err := dial(ctx, addr, sub, time.Hour, 1<<20); err == nil {
		t.Error("connected")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// A frame of which the header claims more than is there must cost nothing.
func TestClaimsAreNotBelieved(t *testing.T) {
	long := func(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{flagLong}, n) }
	var many []byte
	for range maxFrames + 1 {
		many = append(many, flagMore, 0)
	}
	for name, c := range map[string]struct {
		sends []byte
		want  error
	}{
		"2^63 bytes":            {long(1 << 63), errTooLarge},
		"2^64-1 bytes":          {long(1<<64 - 1), errTooLarge},
		"one byte too many":     {long(1<<30 + 1), errTooLarge},
		"two frames together":   {append(append([]byte{flagMore, 1, 'x'}, long(1<<30)...), 'x'), errTooLarge},
		"a command of 4 G":      {binary.BigEndian.AppendUint64([]byte{flagLong | flagCommand}, 1<<32), errProtocol},
		"frames without end":    {many, errTooLarge},
		"1 GiB that never come": {append(long(1<<30), "abc"...), io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			addr := hostPort(rawServer(t, func(conn net.Conn) {
				for _, p := range [][]byte{hello(), ready("PUB"), c.sends} {
					_, _ = conn.Write(p)
				}
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
			}))
			conn, err := dial(t.Context(), addr, sub, time.Second, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err = conn.receive(new(message))
			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
				t.Errorf("%d bytes allocated", grown)
			}
		})
	}
}

func TestPingIsAnswered(t *testing.T) {
	got := make(chan []byte, 1)
	addr := hostPort(rawServer(t, func(c net.Conn) {
		_, _ = c.Write(append(append(hello(), ready("PUB")...), command([]byte("\x04PING\x00\x0acontext"))...))
		_, _ = io.CopyN(io.Discard, c, greetingSize+int64(len(ready("SUB"))))
		pong := make([]byte, 2+len("\x04PONGcontext"))
		_, _ = io.ReadFull(c, pong)
		got <- pong
		_, _ = c.Write([]byte{flagMore, 1, 'a', 0, 1, 'b'})
		_, _ = io.Copy(io.Discard, c)
	}))
	c, err := dial(t.Context(), addr, sub, time.Second, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var m message
	if err := c.receive(&m); err != nil || len(m.ends) != 2 || string(m.frame(0)) != "a" || string(m.frame(-1)) != "b" {
		t.Errorf("got %q, %v", m.bytes, err)
	}
	if pong := <-got; !bytes.Equal(pong, command([]byte("\x04PONGcontext"))) {
		t.Errorf("answered %q", pong)
	}
}

func TestLongAndShortFrames(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // 3.2 MB, more than one step of growth
	addr := hostPort(rawServer(t, func(c net.Conn) {
		_, _ = c.Write(append(hello(), ready("XPUB")...))
		peer := &conn{Conn: c}
		_ = peer.send([]byte("t"), nil, big)
		_ = peer.send([]byte("u"), make([]byte, 255), make([]byte, 256))
		_, _ = io.Copy(io.Discard, c)
	}))
	c, err := dial(t.Context(), addr, sub, time.Second, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var m message
	if err := c.receive(&m); err != nil || len(m.frame(1)) != 0 || !bytes.Equal(m.frame(2), big) {
		t.Errorf("got %d bytes, %v", len(m.bytes), err)
	}
	if err := c.receive(&m); err != nil || len(m.frame(1)) != 255 || len(m.frame(2)) != 256 {
		t.Errorf("got frames up to %v, %v", m.ends, err)
	}
}

// Whatever one publisher does, the others' events arrive.
func TestNoPublisherHoldsUpAnother(t *testing.T) {
	good := publish(t, "127.0.0.1", 0)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	silent := publish(t, "127.0.0.1", 0)
	workers := []*fleet.Worker{
		worker("unreachable", "tcp://"+gone.Addr().String()),
		worker("mute", rawServer(t, speak())),
		worker("silent", silent.endpoint()),
		worker("rude", rawServer(t, func(c net.Conn) { c.Close() })),
		worker("mute-about-the-past", silent.endpoint(), func(w *fleet.Worker) { w.KVReplay = rawServer(t, speak()) }),
		worker("unresolvable", "tcp://no-such-host.invalid:5557"),
		worker("good", good.endpoint()),
	}
	cfg := impatient()
	cfg.DialTimeout = time.Minute
	v := watch(t, cfg, workers...)
	good.heard()
	a := testfleet.NewPrompt(1, 1)
	good.emit(vllm(a.Stored(1, 0, 1)))
	v.wantDepth("the good one's blocks", "good", a, 1)
	start := time.Now()
	v.set(workers[6])
	v.connected(1)
	v.stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("letting the bad ones go took %v", took)
	}
}

func TestGarbageIsCountedAndSurvived(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	v := watch(t, impatient(), worker("w", p.endpoint()))
	p.heard()
	a, b := testfleet.NewPrompt(1, 2), testfleet.NewPrompt(2, 2)
	p.emit(vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the start", "w", a, 2)
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 50
	for i := range n {
		junk := make([]byte, rng.IntN(300))
		for j := range junk {
			junk[j] = byte(rng.Uint32())
		}
		if i%10 == 0 {
			p.frames([]byte("kv-events"), junk) // without a number: the view is dropped at once
			continue
		}
		p.send("kv-events", p.keep(nil), append([]byte{0xc1}, junk...))
	}
	p.emit(vllm(b.Stored(2, 0, 2)))
	v.wantDepth("a good batch behind them", "w", b, 2)
	if got := v.depth("w", a); got != 0 {
		t.Errorf("%d blocks are left of a view that cannot be trusted", got)
	}
	if got := testutil.ToFloat64(v.sub.metrics.DecodeErrors); got != n {
		t.Errorf("%v counted, want %d", got, n)
	}
	if v.log.Count("cannot be read") != 1 {
		t.Error("the garbage should be said once")
	}
}

// Raw garbage in place of frames breaks the connection, not the program.
func TestGarbageBytesOnTheConnection(t *testing.T) {
	bad := rawServer(t, func(c net.Conn) {
		defer c.Close()
		junk := make([]byte, 4096)
		for i := range junk {
			junk[i] = byte(rand.Uint32())
		}
		_, _ = c.Write(append(append(hello(), ready("PUB")...), junk...))
	})
	p := publish(t, "127.0.0.1", 0)
	v := watch(t, impatient(), worker("bad", bad), worker("good", p.endpoint()))
	p.heard()
	testkit.Until(t, "some broken connections", func() bool { return testutil.ToFloat64(v.sub.metrics.Reconnects) > 5 })
	a := testfleet.NewPrompt(1, 1)
	p.emit(vllm(a.Stored(1, 0, 1)))
	v.wantDepth("the good one's blocks", "good", a, 1)
}

// A burst beyond every queue: what the publisher drops is filled from its past.
func TestABurst(t *testing.T) {
	p := publish(t, "127.0.0.1", 0)
	replay := p.replay()
	if err := p.sock.SetOption("HWM", 100); err != nil {
		t.Fatal(err)
	}
	v := watch(t, impatient(), worker("w", p.endpoint(), func(w *fleet.Worker) { w.KVReplay = replay }))
	p.heard()
	const n = 2000
	a := testfleet.NewPrompt(1, n)
	for i := range n {
		p.emit(vllm(a.Stored(float64(i), i, i+1)))
	}
	testkit.Until(t, "all of it, kept in step by later batches", func() bool {
		p.emit(vllm(&kvindex.Batch{Rank: -1, At: n}))
		return v.depth("w", a) == n
	})
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte{flagMore, 1, 'a', 0, 1, 'b'})
	f.Add(append(command([]byte("\x04PING\x00\x0ax")), 0, 0))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 0, 0, 2, 'a', 'b'})
	f.Fuzz(func(t *testing.T, sent []byte) {
		a, b := net.Pipe()
		defer a.Close()
		go func() {
			defer b.Close()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			_, _ = b.Write(sent)
		}()
		c := &conn{Conn: a, r: newReader(a), limit: 1 << 16}
		var m message
		total := 0
		for c.receive(&m) == nil {
			for i := range m.ends {
				total += len(m.frame(i))
			}
			if len(m.ends) == 0 || len(m.bytes) > c.limit {
				t.Fatalf("a message of %d frames and %d bytes", len(m.ends), len(m.bytes))
			}
		}
		if total > len(sent) {
			t.Fatalf("%d bytes of frames in %d bytes", total, len(sent))
		}
	})
}
