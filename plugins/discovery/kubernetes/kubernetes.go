// Package kubernetes follows the fleet that Infera's workers register in an
// annotation of their Pods. It implements fleet.Source.
//
// Each session lists the Pods and watches them from the listing's version on.
// The API server ends each watch after a while; the next one goes on where it
// ended, and nothing is listed again. A version that the server no longer has, a
// watch that brings neither an event nor a bookmark, and any error are followed
// by a new listing, which is reconciled with the fleet as a whole. A connection
// that is open but silent counts as dead and is closed (contract §11 D3). Until
// the source is in step again the last known fleet stays, marked as lost. An API
// server that is down or forbids the listing at the start is waited for.
//
// # What a Pod's worker is
//
// The table's file has the rules. In short: a record counts while its Pod's
// phase is Running; the worker gets requests while its container is Ready (D4,
// see [Readiness]); it drains from the Pod's deletion on (D13). Claims are kept
// by Pod UID, so that several Pods may claim one worker_id and the end of one
// does not take the others' worker away (D5), and a Pod that registers under
// another id leaves no phantom (D6).
//
// A record that cannot be used is left out alone, counted, and logged once for
// as long as the Pod keeps it.
//
// # Concurrency
//
// A Source belongs to the goroutine that runs Watch; Register may be called
// from any. The watch has a goroutine of the client library's, which ends with
// it.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"pointsman/fleet"
)

// Source follows the Pods of one namespace and label selector.
type Source struct {
	cfg     Config
	pods    *pods
	log     *slog.Logger
	metrics *metrics
}

// New returns a source. It reads the kubeconfig or the service account's files
// and does not connect.
func New(cfg Config, log *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	p, err := newPods(cfg)
	if err != nil {
		return nil, err
	}
	return &Source{cfg: cfg, pods: p, log: log, metrics: newMetrics()}, nil
}

// Watch implements [fleet.Source]. It returns nil when ctx is done and no other
// error ends it.
func (s *Source) Watch(ctx context.Context, feed *fleet.Feed) error {
	f := &follower{Source: s, feed: feed, table: newTable(s.cfg), contested: map[string]bool{}}
	defer s.pods.conns.CloseAll()
	wait := s.cfg.Backoff
	for {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return nil // what ended the session is that we are asked to stop
		}
		s.metrics.failed(err)
		if f.opened {
			wait = s.cfg.Backoff
		}
		if f.listed && routine(err) {
			f.log.LogAttrs(ctx, slog.LevelDebug, "the Pods have to be listed again", slog.Any("error", err))
			if time.Since(began) > s.cfg.Backoff {
				continue
			}
		} else {
			feed.Lost()
			f.complain(ctx, err)
		}
		if !pause(ctx, max(wait/2+rand.N(wait/2+1), asked(err, s.cfg.MaxBackoff))) { //nolint:gosec // spreads retries, keeps no secret
			return nil
		}
		wait = min(2*wait, s.cfg.MaxBackoff)
	}
}

// asked returns how long the API server asked to be left alone, at most most.
func asked(err error, most time.Duration) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, most)
}

// pause waits; it returns false when ctx is done before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// follower is the state of one Watch.
type follower struct {
	*Source
	feed  *fleet.Feed
	table *table

	contested map[string]bool // worker_ids that it was said of
	lastErr   string          // what was said of the present outage; "" when in step
	settled   bool            // false until the first watch, and in an outage
	started   bool            // some session has listed the fleet
	listed    bool            // the present session has listed the fleet
	opened    bool            // the present session has opened a watch
	version   string          // latest that the present session knows of
}

// session lists and follows until something breaks.
func (f *follower) session(ctx context.Context) error {
	f.listed, f.opened = false, false
	if err := f.list(ctx); err != nil {
		return err
	}
	for {
		began := time.Now()
		if err := f.follow(ctx); err != nil {
			return err
		}
		if time.Since(began) < f.cfg.Backoff && !pause(ctx, f.cfg.Backoff) {
			return ctx.Err()
		}
	}
}

// list reads all pages of one consistent listing.
func (f *follower) list(ctx context.Context) error {
	var all []corev1.Pod
	limit, from := f.cfg.Page, ""
	for {
		page, err := f.pods.list(ctx, limit, from)
		if expired(err) && from != "" {
			// The listing's snapshot is gone before its last page: take all at once.
			all, limit, from = nil, 0, ""
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, page.Items...)
		f.version, from = page.ResourceVersion, page.Continue
		if from == "" {
			break
		}
	}
	f.metrics.lists.Inc()
	f.note(ctx, f.table.replace(all))
	f.feed.Replace(f.table.workers())
	f.started, f.listed = true, true
	return nil
}

// inStep notes that the session's first watch is open.
func (f *follower) inStep(ctx context.Context) {
	f.metrics.watches.Inc()
	if f.opened {
		return
	}
	f.opened = true
	level := slog.LevelInfo
	if f.settled { // a listing amid normal work is no news
		level = slog.LevelDebug
	}
	f.settled, f.lastErr = true, ""
	f.log.LogAttrs(ctx, level, "the fleet is in step with the API server",
		slog.String("namespace", f.pods.namespace), slog.String("selector", f.pods.selector),
		slog.Int("pods", len(f.table.pods)), slog.Int("workers", len(f.table.claims)), slog.String("version", f.version))
}

// follow applies changes until the watch ends. It returns nil when the next one
// can go on from there.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening := time.AfterFunc(f.cfg.Silence, func() { cancel(f.silent()) })
	w, err := f.pods.watch(ctx, f.version, f.cfg.WatchFor)
	if !opening.Stop() || err != nil {
		if w != nil {
			w.Stop()
		}
		return f.dead(cmp.Or(context.Cause(ctx), err))
	}
	defer w.Stop()
	f.inStep(ctx)
	silence := time.NewTimer(f.cfg.Silence)
	defer silence.Stop()
	heard := false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, open := <-w.ResultChan():
			switch {
			case !open && heard:
				return nil
			case !open:
				return errMute
			}
			if err := f.apply(ctx, e); err != nil {
				return err
			}
			heard = true
			silence.Reset(f.cfg.Silence)
		case <-silence.C:
			return f.dead(f.silent())
		}
	}
}

func (f *follower) silent() error { return fmt.Errorf("%w for %v", errSilence, f.cfg.Silence) }

// dead closes the connections when err says that they are.
func (f *follower) dead(err error) error {
	if errors.Is(err, errSilence) {
		f.pods.conns.CloseAll()
	}
	return err
}

func (f *follower) apply(ctx context.Context, e watch.Event) error {
	if e.Type == watch.Error {
		return f.pods.explain("watch", apierrors.FromObject(e.Object))
	}
	p, ok := e.Object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("watch pods: got a %T", e.Object)
	}
	f.version = p.ResourceVersion
	switch e.Type {
	case watch.Added, watch.Modified:
		f.publish(ctx, f.table.put(p))
	case watch.Deleted:
		f.publish(ctx, f.table.remove(p))
	}
	f.feed.Fresh(time.Now())
	return nil
}

// publish hands the fleet what a Pod's change means for it.
func (f *follower) publish(ctx context.Context, c change) {
	f.note(ctx, []change{c})
	for _, id := range c.ids() {
		if w := f.table.worker(id); w != nil {
			f.feed.Put(w)
		} else {
			f.feed.Delete(id)
		}
	}
}

// complain says what is wrong with the API server, once until it changes.
func (f *follower) complain(ctx context.Context, err error) {
	f.settled = false
	if err == nil || f.lastErr == err.Error() {
		return
	}
	f.lastErr = err.Error()
	f.log.LogAttrs(ctx, slog.LevelWarn, "the fleet is out of step with the API server; the last known one stays",
		slog.String("server", f.pods.host), slog.Any("error", err))
}
