package simengine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/wire"
)

// Topic is the first frame of every event message (Infera starts its engines
// with this topic; infera.md §4.2).
const Topic = "kv-events"

// sendQueue is how many messages wait for a slow subscriber before they are
// dropped, vLLM's default high-water mark.
const sendQueue = 100_000

// endSeq marks the end of a replay (vLLM's publisher convention).
const endSeq = math.MaxUint64

// bufferedBatch is one numbered payload.
type bufferedBatch struct {
	seq     uint64
	payload []byte
}

// queued is a batch on its way out.
type queued struct {
	due time.Time
	changes
}

// publisher numbers event batches, keeps the last of them for replay, and sends
// them. Every incarnation starts at sequence 0.
type publisher struct {
	cfg        KVEventsConfig
	encode     func(dst []byte, b *kvindex.Batch, keys []wire.Keys) []byte
	send       func(seq uint64, payload []byte) // nil publishes nowhere
	unnumbered bool                             // messages carry no sequence frame
	log        *slog.Logger
	rng        *rand.Rand
	wake       chan struct{}

	qmu   sync.Mutex
	queue []queued

	mu     sync.Mutex
	next   uint64
	lost   uint64
	buffer []bufferedBatch // ring; entry of seq n is at n % len
}

func newPublisher(cfg KVEventsConfig, engine fleet.Engine, seed uint64, log *slog.Logger) *publisher {
	p := &publisher{
		cfg: cfg, encode: wire.AppendVLLMKeys, log: log,
		rng:    rand.New(rand.NewPCG(seed, 1)), //nolint:gosec // chance, not secrecy
		wake:   make(chan struct{}, 1),
		buffer: make([]bufferedBatch, cfg.Buffer),
	}
	// ATOM's publisher sends maps in two frames (infera.md §4.2).
	p.unnumbered = engine == fleet.ATOM
	if engine == fleet.SGLang {
		p.encode = func(dst []byte, b *kvindex.Batch, _ []wire.Keys) []byte { return wire.AppendSGLang(dst, b) }
	}
	return p
}

// publish queues a step's changes. It never blocks.
func (p *publisher) publish(ch changes) {
	p.qmu.Lock()
	p.queue = append(p.queue, queued{due: time.Now().Add(p.cfg.Delay), changes: ch})
	p.qmu.Unlock()
	signal(p.wake)
}

// run sends queued batches in order until ctx is done.
func (p *publisher) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		q, ok := p.pop()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-p.wake:
			}
			continue
		}
		if wait := time.Until(q.due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
		p.out(q.changes)
	}
}

func (p *publisher) pop() (queued, bool) {
	p.qmu.Lock()
	defer p.qmu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		return queued{}, false
	}
	q := p.queue[0]
	p.queue[0] = queued{}
	p.queue = p.queue[1:]
	return q, true
}

// out numbers, buffers and sends one batch; a lost one stays replayable.
func (p *publisher) out(ch changes) {
	b := kvindex.Batch{Rank: -1, At: float64(time.Now().UnixNano()) / 1e9, Events: ch.events}
	payload := p.encode(nil, &b, ch.keys)
	p.mu.Lock()
	seq := p.next
	p.next++
	p.buffer[seq%uint64(len(p.buffer))] = bufferedBatch{seq: seq, payload: payload}
	lose := p.cfg.Loss > 0 && p.rng.Float64() < p.cfg.Loss
	if lose {
		p.lost++
	}
	p.mu.Unlock()
	if !lose && p.send != nil {
		p.send(seq, payload)
	}
}

// counts returns how many batches were numbered, and how many of them lost.
func (p *publisher) counts() (batches, lost uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next, p.lost
}

// since returns the buffered batches from start on.
func (p *publisher) since(start uint64) []bufferedBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := uint64(len(p.buffer))
	first := max(start, p.next-min(p.next, n))
	var out []bufferedBatch
	for s := first; s < p.next; s++ {
		out = append(out, p.buffer[s%n])
	}
	return out
}

// sockets are the publisher's two ZMQ sockets.
type sockets struct {
	pub, replay         zmq4.Socket
	pubPort, replayPort int // -1 where there is none
}

// bindSockets binds the sockets that cfg asks for and points p at them.
func bindSockets(ctx context.Context, host string, cfg KVEventsConfig, p *publisher) (*sockets, error) {
	s := &sockets{pubPort: -1, replayPort: -1}
	// The library logs every handshake that a port scan breaks off.
	quiet := zmq4.WithLogger(slog.NewLogLogger(p.log.Handler(), slog.LevelDebug))
	if cfg.Port >= 0 {
		s.pub = zmq4.NewPub(ctx, quiet)
		if err := s.pub.SetOption(zmq4.OptionHWM, sendQueue); err != nil {
			return nil, errors.Join(fmt.Errorf("kv events socket: %w", err), s.close())
		}
		port, err := listenZMQ(s.pub, host, cfg.Port)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("kv events socket: %w", err), s.close())
		}
		s.pubPort = port
		p.send = func(seq uint64, payload []byte) {
			frames := [][]byte{[]byte(Topic), seqFrame(seq), payload}
			if p.unnumbered {
				frames = [][]byte{[]byte(Topic), payload}
			}
			if err := s.pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil && ctx.Err() == nil {
				p.log.LogAttrs(ctx, slog.LevelWarn, "kv event not sent", slog.Any("error", err))
			}
		}
	}
	if cfg.ReplayPort >= 0 {
		s.replay = zmq4.NewRouter(ctx, quiet)
		port, err := listenZMQ(s.replay, host, cfg.ReplayPort)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("kv replay socket: %w", err), s.close())
		}
		s.replayPort = port
	}
	return s, nil
}

func listenZMQ(sock zmq4.Socket, host string, port int) (int, error) {
	if host == "" {
		host = "0.0.0.0"
	}
	if err := sock.Listen("tcp://" + net.JoinHostPort(host, strconv.Itoa(port))); err != nil {
		return 0, err
	}
	addr, ok := sock.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("listener has no TCP address: %v", sock.Addr())
	}
	return addr.Port, nil
}

func (s *sockets) close() error {
	var errs []error
	for _, sock := range []zmq4.Socket{s.pub, s.replay} {
		if sock != nil {
			errs = append(errs, sock.Close())
		}
	}
	return errors.Join(errs...)
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// serveReplay answers replay requests until ctx is done: a client sends the
// first sequence it wants (after an empty delimiter or not) and gets every
// buffered batch from there on, then the end marker (vLLM's convention).
func (s *sockets) serveReplay(ctx context.Context, p *publisher) {
	for ctx.Err() == nil {
		msg, err := s.replay.Recv()
		if err != nil {
			if ctx.Err() == nil {
				p.log.LogAttrs(ctx, slog.LevelWarn, "replay request not read", slog.Any("error", err))
			}
			return
		}
		n := len(msg.Frames)
		if n < 2 || n > 3 || len(msg.Frames[n-1]) != 8 {
			p.log.LogAttrs(ctx, slog.LevelWarn, "replay request of a wrong shape ignored", slog.Int("frames", n))
			continue
		}
		client := msg.Frames[0]
		batches := append(p.since(binary.BigEndian.Uint64(msg.Frames[n-1])), bufferedBatch{seq: endSeq, payload: []byte{}})
		for _, b := range batches {
			if err := s.replay.SendMulti(zmq4.NewMsgFrom(client, []byte{}, seqFrame(b.seq), b.payload)); err != nil {
				p.log.LogAttrs(ctx, slog.LevelWarn, "replay broken off", slog.Any("error", err))
				break
			}
		}
	}
}
