package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"

	"pointsman/internal/retry"
)

// Handler is told what a [View] sees. Its methods are called by one goroutine,
// in the order in which things happened, and must not keep it for long.
type Handler[T any] interface {
	// Replace gets a whole listing: objects not in it are gone.
	Replace(ctx context.Context, all []T)
	// Put gets an object that is new or changed, Remove one that is gone, as it
	// was last.
	Put(ctx context.Context, obj T)
	Remove(ctx context.Context, obj T)
	// Fresh says that the view was in step at that moment: an event or a
	// bookmark came.
	Fresh(at time.Time)
	// InStep says that a listing is followed by a watch, which begins at
	// version. It is news unless a listing amid normal work preceded it.
	InStep(ctx context.Context, version string, news bool)
	// Ended says that listing or watching ended with err, which Follow begins
	// anew. routine asks for nothing but another listing; otherwise the view is
	// out of step, which is news unless the last end was the same.
	Ended(ctx context.Context, err error, routine, news bool)
	// Watching says that a watch was opened.
	Watching()
}

// follower is the state of one Follow.
type follower[T any] struct {
	*View[T]
	handler Handler[T]

	lastErr string // what was said of the present outage; "" when in step
	settled bool   // false until the first watch, and in an outage
	listed  bool   // the present session has listed
	opened  bool   // the present session has opened a watch
	version string // latest that the present session knows of
}

// Follow lists and watches until ctx is done. No error ends it.
func (v *View[T]) Follow(ctx context.Context, h Handler[T]) {
	f := &follower[T]{View: v, handler: h}
	backoff := retry.NewBackoff(v.cfg.Backoff, v.cfg.MaxBackoff)
	for {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return // what ended the session is that we are asked to stop
		}
		if f.opened {
			backoff.Reset()
		}
		if f.listed && routine(err) {
			h.Ended(ctx, err, true, false)
			if time.Since(began) > v.cfg.Backoff {
				continue
			}
		} else {
			f.settled = false
			text := ""
			if err != nil {
				text = err.Error()
			}
			news := text != "" && text != f.lastErr
			h.Ended(ctx, err, false, news)
			f.lastErr = cmp.Or(text, f.lastErr)
		}
		if !retry.Sleep(ctx, max(backoff.Next(), asked(err, v.cfg.MaxBackoff))) {
			return
		}
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

// session lists and follows until something breaks.
func (f *follower[T]) session(ctx context.Context) error {
	f.listed, f.opened = false, false
	if err := f.list(ctx); err != nil {
		return err
	}
	for {
		began := time.Now()
		if err := f.follow(ctx); err != nil {
			return err
		}
		if time.Since(began) < f.cfg.Backoff && !retry.Sleep(ctx, f.cfg.Backoff) {
			return ctx.Err()
		}
	}
}

// list reads all pages of one consistent listing.
func (f *follower[T]) list(ctx context.Context) error {
	var all []T
	limit, from := f.cfg.Page, ""
	for {
		items, version, next, err := f.Page(ctx, limit, from)
		if expired(err) && from != "" {
			// The listing's snapshot is gone before its last page: take all at once.
			all, limit, from = nil, 0, ""
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, items...)
		f.version, from = version, next
		if from == "" {
			break
		}
	}
	f.handler.Replace(ctx, all)
	f.listed = true
	return nil
}

// inStep notes that a watch is open.
func (f *follower[T]) inStep(ctx context.Context) {
	f.handler.Watching()
	if f.opened {
		return
	}
	f.opened = true
	f.handler.InStep(ctx, f.version, !f.settled)
	f.settled, f.lastErr = true, ""
}

// follow applies changes until the watch ends. It returns nil when the next one
// can go on from there.
func (f *follower[T]) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening := time.AfterFunc(f.cfg.Silence, func() { cancel(f.silent()) })
	w, err := f.watch(ctx, f.version, f.cfg.WatchFor)
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

func (f *follower[T]) silent() error { return fmt.Errorf("%w for %v", errSilence, f.cfg.Silence) }

// dead closes the connections when err says that they are.
func (f *follower[T]) dead(err error) error {
	if errors.Is(err, errSilence) {
		f.client.Close()
	}
	return err
}

func (f *follower[T]) apply(ctx context.Context, e watch.Event) error {
	if e.Type == watch.Error {
		return f.explain("watch", apierrors.FromObject(e.Object))
	}
	obj, ok := any(e.Object).(T)
	if !ok {
		return fmt.Errorf("watch %s: got a %T", f.resource.Plural, e.Object)
	}
	at, err := meta.Accessor(e.Object)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.resource.Plural, err)
	}
	f.version = at.GetResourceVersion()
	switch e.Type {
	case watch.Added, watch.Modified:
		f.handler.Put(ctx, obj)
	case watch.Deleted:
		f.handler.Remove(ctx, obj)
	}
	f.handler.Fresh(time.Now())
	return nil
}
