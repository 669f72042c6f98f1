package admission_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/admission"
)

// A further attempt of an admitted request waits for a worker, within the time
// that it has left in the queue.
func TestAgainWaitsWithinTheRequestsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(2, 5)), &place{slots: 1}
		pass := enter(t, g, request(p))
		began := time.Now()
		refused(t, pass.Again(t.Context(), ""), http.StatusGatewayTimeout, admission.CodeQueueTime)
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("waited %v, want 5s", d)
		}
		if s := g.Snapshot(); s.Inflight != 1 {
			t.Errorf("in flight %d: the pass is still valid", s.Inflight)
		}
		refused(t, pass.Again(t.Context(), ""), http.StatusTooManyRequests, admission.CodeCapacity) // its time is over
		pass.Release()
		other := enter(t, g, &admission.Request{Units: 1, Pick: func(time.Time) error { return nil }})
		if err := other.Again(context.Background(), ""); err != nil {
			t.Error(err)
		}
		other.Release()
		if s := g.Snapshot(); s.Inflight != 0 || s.Queued != 0 {
			t.Errorf("left over %+v", s)
		}
	})
}

// The time that a request ran is not counted as time in the queue (contract 2D: no
// timer shortens another).
func TestAgainCountsTheTimeInTheQueueAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(1, 5)), &place{slots: 2}
		first := enter(t, g, request(p))
		time.AfterFunc(2*time.Second, first.Release)
		pass := enter(t, g, request(p)) // waits two seconds of its five
		time.Sleep(time.Hour)
		began := time.Now()
		r := refused(t, pass.Again(t.Context(), ""), http.StatusGatewayTimeout, admission.CodeQueueTime)
		if d := time.Since(began); d != 3*time.Second || r.Queued != 5*time.Second {
			t.Errorf("waited %v, told %v in all, want 3s and 5s", d, r.Queued)
		}
		pass.Release()
	})
}

// A request that has tried some workers waits for the others. Newcomers that can go
// to those that it has tried go there.
func TestAgainHoldsBackOnlyThoseThatWaitForTheSameWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, full, free := admission.NewGate(enforcing(0, 5)), &place{slots: 1}, new(place)
		running := enter(t, g, &admission.Request{Units: 1, Key: "m", Pick: full.pick})
		where := free.pick
		moving := enter(t, g, &admission.Request{Units: 1, Key: "m", Pick: func(now time.Time) error { return where(now) }})
		where = full.pick // free has failed it
		again := make(chan error, 1)
		go func() { again <- moving.Again(t.Context(), "m without free") }()
		synctest.Wait()
		if s := g.Snapshot(); s.Queued != 1 {
			t.Fatalf("queued %d, want 1", s.Queued)
		}
		enter(t, g, &admission.Request{Units: 1, Key: "m", Pick: free.pick}).Release()
		running.Release() // its slot is given back by the picker in truth
		full.mu.Lock()
		full.used--
		full.mu.Unlock()
		g.Wake()
		if err := <-again; err != nil {
			t.Error(err)
		}
		moving.Release()
	})
}
