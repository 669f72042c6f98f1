package simengine

import (
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"

	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/wire"
)

// one returns a step's changes with one stored block of hash h.
func one(h uint64) changes {
	var ch changes
	ch.add(kvindex.Event{Kind: kvindex.Stored, Hashes: []uint64{h}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Tier: kvindex.Device}, wire.Keys{})
	return ch
}

// hashOf returns the block hash of a payload made of one.
func hashOf(t *testing.T, payload []byte) uint64 {
	t.Helper()
	var b kvindex.Batch
	if err := wire.DecodeBatch(payload, &b); err != nil {
		t.Fatal(err)
	}
	return b.Events[0].Hashes[0]
}

// sent collects what a publisher sends.
type sent struct {
	mu   sync.Mutex
	seqs []uint64
	at   []time.Time
}

func (s *sent) take(seq uint64, _ []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seqs = append(s.seqs, seq)
	s.at = append(s.at, time.Now())
}

func (s *sent) list() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seqs)
}

func TestBatchesAreNumberedFromZeroAndKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(KVEventsConfig{Buffer: 3}, fleet.VLLM, 1, slog.New(slog.DiscardHandler))
		var s sent
		p.send = s.take
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.run(ctx) }()
		for h := range uint64(5) {
			p.publish(one(100 + h))
		}
		synctest.Wait()
		if got := s.list(); !slices.Equal(got, []uint64{0, 1, 2, 3, 4}) {
			t.Errorf("sent %v, want 0 to 4", got)
		}
		cancel()
		<-done
		for _, tc := range []struct {
			name  string
			start uint64
			want  []uint64
		}{
			{"from the start gives what the buffer still has", 0, []uint64{2, 3, 4}},
			{"from the middle", 3, []uint64{3, 4}},
			{"from the last", 4, []uint64{4}},
			{"from the future gives nothing", 5, nil},
			{"from far ahead gives nothing", endSeq, nil},
		} {
			var got []uint64
			for _, b := range p.since(tc.start) {
				if h := hashOf(t, b.payload); h != 100+b.seq {
					t.Errorf("batch %d carries block %d", b.seq, h)
				}
				got = append(got, b.seq)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("a replay %s: %v, want %v", tc.name, got, tc.want)
			}
		}
	})
}

func TestLostBatchesAreNumberedAndReplayable(t *testing.T) {
	p := newPublisher(KVEventsConfig{Buffer: 1000, Loss: 0.25}, fleet.SGLang, 3, slog.New(slog.DiscardHandler))
	var s sent
	p.send = s.take
	for h := range uint64(1000) {
		p.out(one(h))
	}
	batches, lost := p.counts()
	if n := uint64(len(s.list())); batches != 1000 || n+lost != 1000 {
		t.Errorf("%d numbered, %d sent, %d lost", batches, n, lost)
	}
	if lost < 200 || lost > 300 {
		t.Errorf("%d of 1000 lost, want about 250", lost)
	}
	if n := len(p.since(0)); n != 1000 {
		t.Errorf("%d batches replayable, want all 1000", n)
	}
}

func TestDelayedBatchesComeLateAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(KVEventsConfig{Buffer: 10, Delay: time.Second}, fleet.VLLM, 1, slog.New(slog.DiscardHandler))
		var s sent
		p.send = s.take
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.run(ctx) }()
		begin := time.Now()
		p.publish(one(1))
		time.Sleep(300 * time.Millisecond)
		p.publish(one(2))
		time.Sleep(600 * time.Millisecond)
		if got := s.list(); len(got) != 0 {
			t.Errorf("%v sent after 900 ms", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.at) != 2 || s.at[0].Sub(begin) != time.Second || s.at[1].Sub(begin) != 1300*time.Millisecond {
			t.Errorf("sent at %v after %v, want after 1 s and 1.3 s", s.at, begin)
		}
		cancel()
		<-done
	})
}

func TestEncodingFollowsTheEngine(t *testing.T) {
	for engine, first := range map[fleet.Engine]byte{fleet.VLLM: 0x87, fleet.ATOM: 0x87, fleet.SGLang: 0x97} {
		p := newPublisher(KVEventsConfig{Buffer: 1}, engine, 1, nil)
		p.out(one(1))
		// [0x93, float64 of 9 bytes, array of one, the event]: a map or an array.
		if b := p.since(0)[0].payload; b[11] != first {
			t.Errorf("%s: the event begins with %#x, want %#x", engine, b[11], first)
		}
	}
}

// zmqPair is a publisher on real sockets.
func zmqPair(t *testing.T) (*publisher, *sockets) {
	t.Helper()
	cfg := KVEventsConfig{Buffer: 100}
	p := newPublisher(cfg, fleet.VLLM, 1, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := bindSockets(ctx, "127.0.0.1", cfg, p)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.serveReplay(ctx, p) }()
	t.Cleanup(func() {
		cancel()
		_ = s.close()
		<-done
	})
	return p, s
}

func TestSubscriberGetsThreeFrames(t *testing.T) {
	p, s := zmqPair(t)
	sub := zmq4.NewSub(t.Context())
	t.Cleanup(func() { _ = sub.Close() })
	if err := sub.SetOption(zmq4.OptionSubscribe, Topic); err != nil {
		t.Fatal(err)
	}
	if err := sub.Dial("tcp://127.0.0.1:" + itoa(s.pubPort)); err != nil {
		t.Fatal(err)
	}
	// The subscription travels on its own: publish until a message arrives.
	got := make(chan zmq4.Msg)
	go func() {
		if msg, err := sub.Recv(); err == nil {
			got <- msg
		}
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for h := uint64(0); ; h++ {
		p.out(one(h))
		select {
		case msg := <-got:
			if len(msg.Frames) != 3 || string(msg.Frames[0]) != "kv-events" || len(msg.Frames[1]) != 8 {
				t.Fatalf("frames %q, want topic, 8 bytes of sequence and a payload", msg.Frames)
			}
			if seq := binary.BigEndian.Uint64(msg.Frames[1]); hashOf(t, msg.Frames[2]) != seq {
				t.Errorf("sequence %d carries block %d", seq, hashOf(t, msg.Frames[2]))
			}
			return
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("nothing received")
		}
	}
}

func TestReplayAnswersBothKindsOfClient(t *testing.T) {
	for _, tc := range []struct {
		name   string
		frames func(start []byte) [][]byte
	}{
		{"with a delimiter, as a REQ socket sends", func(b []byte) [][]byte { return [][]byte{{}, b} }},
		{"without one", func(b []byte) [][]byte { return [][]byte{b} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, s := zmqPair(t)
			for h := range uint64(5) {
				p.out(one(h))
			}
			dealer := zmq4.NewDealer(t.Context())
			t.Cleanup(func() { _ = dealer.Close() })
			if err := dealer.Dial("tcp://127.0.0.1:" + itoa(s.replayPort)); err != nil {
				t.Fatal(err)
			}
			if err := dealer.SendMulti(zmq4.NewMsgFrom([]byte("no"), []byte("sense"))); err != nil { // ignored
				t.Fatal(err)
			}
			if err := dealer.SendMulti(zmq4.NewMsgFrom(tc.frames(seqFrame(2))...)); err != nil {
				t.Fatal(err)
			}
			for _, want := range []uint64{2, 3, 4, endSeq} {
				msg, err := dealer.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if len(msg.Frames) != 3 || len(msg.Frames[0]) != 0 || len(msg.Frames[1]) != 8 {
					t.Fatalf("frames %q, want a delimiter, a sequence and a payload", msg.Frames)
				}
				if got := binary.BigEndian.Uint64(msg.Frames[1]); got != want {
					t.Fatalf("batch %d, want %d", got, want)
				}
				if empty := len(msg.Frames[2]) == 0; empty != (want == endSeq) {
					t.Errorf("batch %d has a payload of %d bytes", want, len(msg.Frames[2]))
				}
			}
		})
	}
}

func TestSocketsThatCannotBeBoundAreNamed(t *testing.T) {
	_, s := zmqPair(t)
	for _, tc := range []struct {
		name string
		cfg  KVEventsConfig
	}{
		{"kv events socket", KVEventsConfig{Port: s.pubPort, ReplayPort: -1, Buffer: 1}},
		{"kv replay socket", KVEventsConfig{Port: -1, ReplayPort: s.replayPort, Buffer: 1}},
	} {
		p := newPublisher(tc.cfg, fleet.VLLM, 1, slog.New(slog.DiscardHandler))
		_, err := bindSockets(t.Context(), "127.0.0.1", tc.cfg, p)
		if err == nil || !strings.Contains(err.Error(), tc.name) {
			t.Errorf("a port in use: error %v, want one that names the %s", err, tc.name)
		}
	}
}
