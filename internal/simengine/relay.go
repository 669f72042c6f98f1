package simengine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pointsman/fleet"
	"pointsman/wire"
)

// Names and limits of the KV event plane over NATS (Infera infera/kv/nats_bus.py).
const (
	relayStream   = "INFERA_KV_EVENTS"
	relaySubjects = "infera.kv.events.>"
	relayBucket   = "infera_kv_view"
	relayMaxBytes = 256 << 20
	relayMaxMsgs  = 1_000_000
)

// RelayBucket says what a relay writes into the bucket infera_kv_view.
type RelayBucket uint8

// What a relay writes of its engine's blocks.
const (
	BucketAsInfera RelayBucket = iota // vLLM's; of SGLang it can read none, and says so when it stops: K4
	BucketWhole                       // both engines'
	BucketOff                         // nothing
)

// RelayConfig is the relay of a worker's KV events to NATS.
type RelayConfig struct {
	Server   string        // URLs of the broker, comma separated
	WorkerID string        // whose events
	Events   string        // tcp://host:port of rank 0's publisher; rank r is r ports above
	Ranks    int           // 0 (default) means 1
	Engine   fleet.Engine  // what the bucket can hold, as [BucketAsInfera] has it
	Bucket   RelayBucket   // default [BucketAsInfera]
	Every    time.Duration // least time between two writes of one rank. Default 2 s
	Log      *slog.Logger  // nil discards
}

// Relay passes the events of an engine on to JetStream as the relay of Infera's
// launchers does: it subscribes to the engine's publishers, sends the last frame
// of each message on as it is, and now and then writes to the bucket what it has
// seen stored. It does not look at sequence numbers, and what it cannot publish
// is lost (infera/kv/nats_relay.py).
type Relay struct {
	cfg   RelayConfig
	log   *slog.Logger
	nc    *nats.Conn
	js    jetstream.JetStream
	views []*relayView // by rank
	ready chan struct{}
	stop  context.CancelFunc
	wg    sync.WaitGroup

	orderly atomic.Bool // what is known is to be written before the end
}

// StartRelay starts a relay. It does not wait for broker or engine: see
// [Relay.Ready]. When ctx is done the relay ends as by [Relay.Kill]. Its errors
// are an address that is none.
func StartRelay(ctx context.Context, cfg RelayConfig) (*Relay, error) {
	if cfg.Every == 0 {
		cfg.Every = 2 * time.Second
	}
	r := &Relay{cfg: cfg, log: cfg.Log, ready: make(chan struct{})}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	var endpoints []string
	for rank := range max(1, cfg.Ranks) {
		endpoint, err := rankEndpoint(cfg.Events, rank)
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, endpoint)
		r.views = append(r.views, newRelayView())
	}
	var err error
	r.nc, err = nats.Connect(cfg.Server, nats.Name("infera-worker-kv"), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(natsRetry/10))
	if err != nil {
		return nil, fmt.Errorf("kv event relay: %w", err)
	}
	if r.js, err = jetstream.New(r.nc); err != nil {
		r.nc.Close()
		return nil, fmt.Errorf("kv event relay: %w", err)
	}
	ctx, r.stop = context.WithCancel(ctx)
	r.wg.Go(func() { r.run(ctx, endpoints) })
	context.AfterFunc(ctx, r.Kill)
	return r, nil
}

// rankEndpoint returns the publisher of one rank.
func rankEndpoint(events string, rank int) (string, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(events, "tcp://"))
	if err != nil {
		return "", fmt.Errorf("kv event relay: the publisher's address: %w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n+rank > 65535 {
		return "", fmt.Errorf("kv event relay: no port %s for rank %d", port, rank)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}

// Ready is closed once stream and bucket are there and the publishers are
// subscribed to.
func (r *Relay) Ready() <-chan struct{} { return r.ready }

// Close writes what is known to the bucket, once the broker has taken what was
// published, and ends the relay.
func (r *Relay) Close() {
	r.orderly.Store(true)
	r.Kill()
}

// Kill ends the relay as its process's death would.
func (r *Relay) Kill() {
	r.stop()
	r.wg.Wait()
	r.nc.Close()
}

// run prepares the broker, then relays until ctx is done.
func (r *Relay) run(ctx context.Context, endpoints []string) {
	retry := time.NewTicker(natsRetry / 10)
	defer retry.Stop()
	for {
		err := r.prepare(ctx)
		if err == nil {
			break
		}
		r.log.LogAttrs(ctx, slog.LevelDebug, "stream of KV events not made", slog.Any("error", err))
		select {
		case <-ctx.Done():
			r.lastFlush(ctx) // stream and bucket may be there all the same
			return
		case <-retry.C:
		}
	}
	var dialed sync.WaitGroup
	dialed.Add(len(endpoints))
	for rank, endpoint := range endpoints {
		r.wg.Go(func() { r.relay(ctx, rank, endpoint, sync.OnceFunc(dialed.Done)) })
	}
	dialed.Wait()
	close(r.ready)
	r.flushBuckets(ctx)
}

// prepare makes stream and bucket where they are not there.
func (r *Relay) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: relayStream, Subjects: []string{relaySubjects}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage,
		Discard: jetstream.DiscardOld, MaxBytes: relayMaxBytes, MaxMsgs: relayMaxMsgs,
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err
	}
	if r.cfg.Bucket == BucketOff {
		return nil
	}
	_, err = r.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: relayBucket})
	if errors.Is(err, jetstream.ErrBucketExists) {
		return nil
	}
	return err
}

// relay passes on one rank's messages until ctx is done.
func (r *Relay) relay(ctx context.Context, rank int, endpoint string, dialed func()) {
	defer dialed()
	subject := "infera.kv.events." + wire.Token(r.cfg.WorkerID) + "." + itoa(rank)
	retry := time.NewTicker(natsRetry / 10)
	defer retry.Stop()
	for ctx.Err() == nil {
		err := r.subscribe(ctx, rank, subject, endpoint, dialed)
		if ctx.Err() != nil {
			return
		}
		r.log.LogAttrs(ctx, slog.LevelDebug, "publisher of KV events not reached", slog.String("endpoint", endpoint), slog.Any("error", err))
		select {
		case <-ctx.Done():
		case <-retry.C:
		}
	}
}

func (r *Relay) subscribe(ctx context.Context, rank int, subject, endpoint string, dialed func()) error {
	sub := zmq4.NewSub(ctx, zmq4.WithLogger(slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)))
	defer func() { _ = sub.Close() }()
	if err := sub.SetOption(zmq4.OptionSubscribe, Topic); err != nil {
		return err
	}
	if err := sub.Dial(endpoint); err != nil {
		return err
	}
	dialed()
	for {
		msg, err := sub.Recv()
		if err != nil {
			return err
		}
		if len(msg.Frames) < 2 {
			continue
		}
		payload := msg.Frames[len(msg.Frames)-1]
		if _, err := r.js.PublishAsync(subject, payload); err != nil {
			r.log.LogAttrs(ctx, slog.LevelWarn, "kv event not relayed", slog.Any("error", err))
		}
		if r.cfg.Bucket == BucketWhole || r.cfg.Engine != fleet.SGLang {
			r.views[rank].apply(payload)
		}
	}
}

// flushBuckets writes each rank's blocks when they have changed, and once more
// at an orderly end.
func (r *Relay) flushBuckets(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.lastFlush(ctx)
			return
		case <-tick.C:
			r.flush(ctx, false)
		}
	}
}

// lastFlush writes what is known at the end, unless the end is a crash.
func (r *Relay) lastFlush(ctx context.Context) {
	if r.orderly.Load() {
		r.awaitAcks(ctx)
		r.flush(context.WithoutCancel(ctx), true)
	}
}

// awaitAcks waits for the broker to have taken what was published.
func (r *Relay) awaitAcks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if !r.nc.IsConnected() {
		return
	}
	select {
	case <-r.js.PublishAsyncComplete():
	case <-ctx.Done():
	}
}

// flush writes the ranks that have changed; all of them at the end, even those
// of which nothing is known (K4).
func (r *Relay) flush(ctx context.Context, last bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if r.cfg.Bucket == BucketOff || !r.nc.IsConnected() {
		return
	}
	kv, err := r.js.KeyValue(ctx, relayBucket)
	for rank, v := range r.views {
		if err != nil {
			break
		}
		value, changed := v.value()
		if changed || last {
			_, err = kv.Put(ctx, wire.Token(r.cfg.WorkerID)+"."+itoa(rank), value)
		}
	}
	if err != nil {
		r.log.LogAttrs(ctx, slog.LevelDebug, "bucket not written", slog.Any("error", err))
	}
}
