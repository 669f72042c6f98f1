// Package etcd follows the fleet that Infera's workers register in etcd. It
// implements fleet.Source.
//
// Each session lists the prefix and watches it from the listing's revision on,
// so that no change falls between the two (contract §11 D2). Whatever
// ends a session (a cancelled or compacted watch, an etcd that lost its data,
// silence on a connection that is still open) is followed by a new connection
// and a new listing, which is reconciled with the fleet as a whole (D1, D3).
// Until then the last known fleet stays, marked as lost. An etcd that is down at
// the start is waited for.
//
// A record that cannot be used is left out alone, counted and logged once per
// revision. When it replaces a good record of the same key the worker goes: its
// former record no longer holds, and a new listing would not have it either
// (D11).
//
// # Concurrency
//
// A Source belongs to the goroutine that runs Watch. The etcd client has
// goroutines of its own, which end with each session.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pointsman/fleet"
	"pointsman/internal/retry"
	"pointsman/wire"
)

// Source follows one prefix of one etcd cluster.
type Source struct {
	cfg       Config
	endpoints []string
	log       *slog.Logger
}

// New returns a source. It reads the PEM files of cfg once, to refuse them now
// rather than at the first connection, and does not connect.
func New(cfg Config, log *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	endpoints, err := cfg.endpoints()
	if err != nil {
		return nil, err
	}
	if _, err := cfg.tls(endpoints); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Prefix = wire.Prefix(cfg.Prefix)
	return &Source{cfg: cfg, endpoints: endpoints, log: log}, nil
}

// What can end a session beside etcd's own errors.
var (
	errSilence = errors.New("no sign of life from etcd")
	errClosed  = errors.New("etcd closed the watch")
	errRewind  = errors.New("etcd went back to an earlier revision or is another cluster")
)

// Watch implements [fleet.Source]. It returns nil when ctx is done and no other
// error ends it.
func (s *Source) Watch(ctx context.Context, feed *fleet.Feed) error {
	f := &follower{Source: s, feed: feed, bad: map[string]int64{}}
	backoff := retry.NewBackoff(s.cfg.Backoff, s.cfg.MaxBackoff)
	for {
		err := f.session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // what ended the session is that we are asked to stop
		}
		feed.Lost()
		if f.listed {
			backoff.Reset()
		}
		f.complain(ctx, err)
		if !backoff.Pause(ctx) {
			return nil
		}
	}
}

// follower is the state of one Watch.
type follower struct {
	*Source
	feed *fleet.Feed

	bad      map[string]int64 // revision of each key's unusable record, to say it once
	lastErr  string           // what was said of the present outage; "" when in step
	listed   bool             // the present session has listed the fleet
	cluster  uint64
	revision int64 // latest that the present session knows of
}

// session connects, lists and follows until something breaks.
func (f *follower) session(ctx context.Context) error {
	f.listed = false
	client, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := f.list(ctx, client); err != nil {
		return err
	}
	return f.follow(ctx, client)
}

func (f *follower) connect(ctx context.Context) (*clientv3.Client, error) {
	secure, err := f.cfg.tls(f.endpoints)
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: f.endpoints, TLS: secure, Username: f.cfg.User, Password: f.cfg.Password,
		DialTimeout: f.cfg.Timeout,
		// etcd's servers refuse pings more often than every 5 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: f.cfg.Timeout,
		Context: ctx,
		Logger:  zap.NewNop(), // what matters comes back as an error
	})
}

func (f *follower) list(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	resp, err := client.Get(ctx, f.cfg.Prefix, clientv3.WithPrefix())
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("list %s: no answer within %v: %w", f.cfg.Prefix, f.cfg.Timeout, err)
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", f.cfg.Prefix, err)
	}
	workers := make([]*fleet.Worker, 0, len(resp.Kvs))
	bad := make(map[string]int64)
	for _, kv := range resp.Kvs {
		w, err := f.worker(kv)
		if err != nil {
			f.skip(ctx, kv, err)
			bad[string(kv.Key)] = kv.ModRevision
		}
		if w != nil {
			workers = append(workers, w)
		}
	}
	f.bad = bad
	f.feed.Replace(workers)
	f.listed, f.lastErr = true, ""
	f.cluster, f.revision = resp.Header.ClusterId, resp.Header.Revision
	f.log.LogAttrs(ctx, slog.LevelInfo, "the fleet is in step with etcd",
		slog.String("prefix", f.cfg.Prefix), slog.Int("workers", len(workers)), slog.Int64("revision", f.revision))
	return nil
}

// follow applies changes behind the listing, and asks etcd for its progress: the answer to that
// is the only proof that silence means no change (D3).
func (f *follower) follow(ctx context.Context, client *clientv3.Client) error {
	// Cancelled before the client closes, so that its watch ends first.
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	// Watch blocks until its stream is open, however long that takes.
	opening := time.AfterFunc(f.cfg.Silence, func() { cancel(f.silent()) })
	// From the listing's own revision, not the next: a server does not answer for
	// the progress of a watch that begins in the future, so a quiet etcd would
	// look dead. What changed in that revision comes twice, which changes nothing.
	changes := client.Watch(ctx, f.cfg.Prefix,
		clientv3.WithPrefix(), clientv3.WithRev(f.revision), clientv3.WithProgressNotify())
	opening.Stop()
	probe := time.NewTicker(f.cfg.Probe)
	defer probe.Stop()
	silence := time.NewTimer(f.cfg.Silence)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case resp, open := <-changes:
			if !open {
				return cmp.Or(context.Cause(ctx), errClosed)
			}
			if err := f.apply(ctx, &resp); err != nil {
				return err
			}
			silence.Reset(f.cfg.Silence)
		case <-probe.C:
			f.ask(ctx, client)
		case <-silence.C:
			return f.silent()
		}
	}
}

func (f *follower) silent() error { return fmt.Errorf("%w for %v", errSilence, f.cfg.Silence) }

// ask requests a progress notice. It may fail while the client is between two
// connections; then no notice comes, which is what counts.
func (f *follower) ask(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Probe/2)
	defer cancel()
	_ = client.RequestProgress(ctx)
}

func (f *follower) apply(ctx context.Context, resp *clientv3.WatchResponse) error {
	if err := resp.Err(); err != nil {
		return fmt.Errorf("watch %s: %w", f.cfg.Prefix, err)
	}
	if resp.Header.ClusterId != f.cluster || resp.Header.Revision < f.revision {
		return errRewind
	}
	f.revision = resp.Header.Revision
	for _, e := range resp.Events {
		f.change(ctx, e)
	}
	f.feed.Fresh(time.Now())
	return nil
}

func (f *follower) change(ctx context.Context, e *clientv3.Event) {
	key := string(e.Kv.Key)
	id, ok := wire.WorkerID(f.cfg.Prefix, key)
	if e.Type == clientv3.EventTypeDelete {
		delete(f.bad, key)
		if ok {
			f.feed.Delete(id)
			f.log.LogAttrs(ctx, slog.LevelInfo, "a worker's record is gone: it drains, left or lost its lease", slog.String("worker_id", id))
		}
		return
	}
	w, err := f.worker(e.Kv)
	if err != nil {
		f.skip(ctx, e.Kv, err)
		f.bad[key] = e.Kv.ModRevision
	} else {
		delete(f.bad, key)
	}
	if w == nil {
		f.feed.Delete(id)
		return
	}
	f.feed.Put(w)
	f.log.LogAttrs(ctx, slog.LevelInfo, "a worker registered or changed its record", slog.String("worker_id", id))
}

// worker reads a record. Its lease stands for the process that registered: an
// Infera worker takes a new one whenever it starts. Without a lease it is the
// key's creation.
func (f *follower) worker(kv *mvccpb.KeyValue) (*fleet.Worker, error) {
	id, ok := wire.WorkerID(f.cfg.Prefix, string(kv.Key))
	if !ok {
		return nil, &wire.RecordError{Field: "worker_id", Err: errors.New("the key ends with the prefix")}
	}
	w, err := wire.DecodeRegistration(id, kv.Value)
	if w != nil {
		w.Incarnation = fmt.Sprintf("lease %x", kv.Lease)
		if kv.Lease == 0 {
			w.Incarnation = fmt.Sprintf("revision %d", kv.CreateRevision)
		}
	}
	return w, err
}

// skip counts and says that a record could not be used, once per revision.
func (f *follower) skip(ctx context.Context, kv *mvccpb.KeyValue, err error) {
	if f.bad[string(kv.Key)] == kv.ModRevision {
		return
	}
	f.feed.Skip(wire.Reason(err))
	if errors.Is(err, wire.ErrClaim) {
		f.feed.Conflict()
	}
	f.log.LogAttrs(ctx, slog.LevelWarn, "a worker's record cannot be used; it gets no requests",
		slog.String("key", string(kv.Key)), slog.Int64("revision", kv.ModRevision), slog.Any("error", err))
}

// complain says what is wrong with etcd, once until it changes.
func (f *follower) complain(ctx context.Context, err error) {
	if err == nil || f.lastErr == err.Error() {
		return
	}
	f.lastErr = err.Error()
	f.log.LogAttrs(ctx, slog.LevelWarn, "the fleet is out of step with etcd; the last known one stays",
		slog.Any("endpoints", f.endpoints), slog.Any("error", err))
}
