package forward

import (
	"sync"
	"time"
)

// The window over which repetitions are compared with requests.
const (
	budgetSlots = 20
	budgetSlot  = 500 * time.Millisecond
)

// retryBudget bounds what a fleet that fails gets on top of its load (failover
// 2B): in any ten seconds, repetitions may be a share of the requests, plus a
// floor per second so that few requests may be repeated too. The time is an
// argument and must not go back. It is safe for concurrent use.
type retryBudget struct {
	mu       sync.Mutex
	slot     int64 // number of the newest slot
	requests [budgetSlots]int
	retries  [budgetSlots]int
	offered  int // sum of requests
	spent    int // sum of retries
}

// request notes one request.
func (b *retryBudget) request(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests[b.at(now)]++
	b.offered++
}

// take reports whether something may be repeated, and notes that it is. share is
// of the requests of the window, floor repetitions per second whatever the load.
func (b *retryBudget) take(now time.Time, share, floor float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.at(now)
	window := (budgetSlots * budgetSlot).Seconds()
	if float64(b.spent+1) > share*float64(b.offered)+floor*window {
		return false
	}
	b.retries[i]++
	b.spent++
	return true
}

// at returns the index of now's slot, when the slots that have left the window
// are empty again.
func (b *retryBudget) at(now time.Time) int64 {
	slot := now.UnixNano() / int64(budgetSlot)
	if b.slot == 0 || slot-b.slot >= budgetSlots {
		b.requests, b.retries = [budgetSlots]int{}, [budgetSlots]int{}
		b.offered, b.spent, b.slot = 0, 0, slot
	}
	for b.slot < slot {
		b.slot++
		i := b.slot % budgetSlots
		b.offered -= b.requests[i]
		b.spent -= b.retries[i]
		b.requests[i], b.retries[i] = 0, 0
	}
	return b.slot % budgetSlots
}
