// Package retry spaces the attempts of who is to try for ever: adapters whose other
// side is away.
//
// # Concurrency
//
// A [Backoff] belongs to one goroutine.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the waits between attempts: each is twice the last, up to the most, and
// spread, so that those who lost the same server do not come back all at once.
type Backoff struct {
	first, most, next time.Duration
}

// NewBackoff returns waits from first to most.
func NewBackoff(first, most time.Duration) *Backoff {
	return &Backoff{first: first, most: most, next: first}
}

// Next returns the wait before the next attempt: the half of it to the whole, at
// random.
func (b *Backoff) Next() time.Duration {
	wait := b.next
	b.next = min(2*wait, b.most)
	return wait/2 + rand.N(wait/2+1) //nolint:gosec // spreads retries, keeps no secret
}

// Reset is for an attempt that went well: waits begin at the first again.
func (b *Backoff) Reset() { b.next = b.first }

// Pause waits for [Backoff.Next]; it returns false when ctx is done before.
func (b *Backoff) Pause(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Sleep waits for d; it returns false when ctx is done before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
