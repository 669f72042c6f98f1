// Package kubernetes follows the fleet that Infera's workers register in an
// annotation of their Pods. It implements fleet.Source.
//
// The Pods are listed and watched by internal/kube. Each listing is reconciled
// with the fleet as a whole. Until the source is in step again after an outage
// (contract §11 D3) the last known fleet stays, marked as lost. An API server
// that is down or forbids the listing at the start is waited for.
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
	"context"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"pointsman/fleet"
	"pointsman/internal/kube"
)

// Source follows the Pods of one namespace and label selector.
type Source struct {
	cfg     Config
	client  *kube.Client
	pods    *kube.View[*corev1.Pod]
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
	client, err := kube.NewClient(cfg.Config)
	if err != nil {
		return nil, err
	}
	pods, err := kube.Select(client, kube.Pods(), strings.TrimSpace(cfg.Selector), "")
	if err != nil {
		return nil, err
	}
	return &Source{cfg: cfg, client: client, pods: pods, log: log, metrics: newMetrics()}, nil
}

// Watch implements [fleet.Source]. It returns nil when ctx is done and no other
// error ends it.
func (s *Source) Watch(ctx context.Context, feed *fleet.Feed) error {
	defer s.client.Close()
	s.pods.Follow(ctx, newFollower(s, feed))
	return nil
}

// follower is the state of one Watch; it is the Pods' [kube.Handler].
type follower struct {
	*Source
	feed  *fleet.Feed
	table *table

	contested map[string]bool // worker_ids that it was said of
	started   bool            // the fleet has been listed
}

func newFollower(s *Source, feed *fleet.Feed) *follower {
	return &follower{Source: s, feed: feed, table: newTable(s.cfg), contested: map[string]bool{}}
}

// Replace implements [kube.Handler].
func (f *follower) Replace(ctx context.Context, all []*corev1.Pod) {
	f.metrics.lists.Inc()
	f.note(ctx, f.table.replace(all))
	f.feed.Replace(f.table.workers())
	f.started = true
}

// Put implements [kube.Handler].
func (f *follower) Put(ctx context.Context, p *corev1.Pod) { f.publish(ctx, f.table.put(p)) }

// Remove implements [kube.Handler].
func (f *follower) Remove(ctx context.Context, p *corev1.Pod) { f.publish(ctx, f.table.remove(p)) }

// Fresh implements [kube.Handler].
func (f *follower) Fresh(at time.Time) { f.feed.Fresh(at) }

// Watching implements [kube.Handler].
func (f *follower) Watching() { f.metrics.watches.Inc() }

// InStep implements [kube.Handler].
func (f *follower) InStep(ctx context.Context, version string, news bool) {
	level := slog.LevelInfo
	if !news {
		level = slog.LevelDebug
	}
	f.log.LogAttrs(ctx, level, "the fleet is in step with the API server",
		slog.String("namespace", f.client.Namespace), slog.String("selector", f.cfg.Selector),
		slog.Int("pods", len(f.table.pods)), slog.Int("workers", len(f.table.claims)), slog.String("version", version))
}

// Ended implements [kube.Handler].
func (f *follower) Ended(ctx context.Context, err error, routine, news bool) {
	f.metrics.failed(err)
	if routine {
		f.log.LogAttrs(ctx, slog.LevelDebug, "the Pods have to be listed again", slog.Any("error", err))
		return
	}
	f.feed.Lost()
	if news {
		f.log.LogAttrs(ctx, slog.LevelWarn, "the fleet is out of step with the API server; the last known one stays",
			slog.String("server", f.client.Host), slog.Any("error", err))
	}
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
