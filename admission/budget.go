package admission

import (
	"errors"
	"sync/atomic"
)

// ErrExhausted means that a budget has no room: the request must be refused
// (429) and may be tried again.
var ErrExhausted = errors.New("too much is being served: try again later")

// Budget bounds a sum, such as the bytes of request bodies held in memory at
// once. Make it with [NewBudget]. It is safe for concurrent use and takes no lock.
type Budget struct{ limit, used atomic.Int64 }

// NewBudget returns a budget of limit units; 0 or less is no limit, and then the
// sum is only counted.
func NewBudget(limit int64) *Budget {
	b := new(Budget)
	b.SetLimit(limit)
	return b
}

// SetLimit makes limit the bound of what is taken from now on; what is held stays.
func (b *Budget) SetLimit(limit int64) { b.limit.Store(limit) }

// Take adds n to the sum and reports whether it fits. What does not fit is not
// added. Who took n gives n back.
func (b *Budget) Take(n int64) bool {
	if limit := b.limit.Load(); b.used.Add(n) > limit && limit > 0 {
		b.used.Add(-n)
		return false
	}
	return true
}

// Give takes n off the sum.
func (b *Budget) Give(n int64) {
	if n != 0 {
		b.used.Add(-n)
	}
}

// Used returns the sum.
func (b *Budget) Used() int64 { return b.used.Load() }
