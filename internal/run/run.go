// Package run starts the long-running parts of a program and stops them
// together.
//
// # Concurrency
//
// A [Group] owns the goroutines it starts. The first part to end with an error
// cancels the others; Wait returns when all have ended.
package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group runs parts until one fails or the context is done.
type Group struct {
	ctx    context.Context //nolint:containedctx // the group is the life time that ctx describes
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

// New returns a group whose parts stop when ctx is done.
func New(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	return g
}

// Context is done when the group is stopping.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts part, which blocks until its context is done. An error other than
// the context's own stops the group; name says whose it was.
func (g *Group) Go(name string, part func(ctx context.Context) error) {
	g.wg.Go(func() {
		err := part(g.ctx)
		if err == nil || g.ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return
		}
		err = fmt.Errorf("%s: %w", name, err)
		g.mu.Lock()
		g.errs = append(g.errs, err)
		g.mu.Unlock()
		g.cancel(err)
	})
}

// Stop tells all parts to end.
func (g *Group) Stop() { g.cancel(context.Canceled) }

// Wait returns when every part has ended, with all their errors joined.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel(context.Canceled)
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}
