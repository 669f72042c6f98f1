package retry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/internal/retry"
)

func TestWaitsDoubleUpToTheMostAndAreSpread(t *testing.T) {
	b := retry.NewBackoff(100*time.Millisecond, time.Second)
	for round := range 2 {
		for _, ms := range []int{100, 200, 400, 800, 1000, 1000} {
			whole := time.Duration(ms) * time.Millisecond
			if got := b.Next(); got < whole/2 || got > whole {
				t.Errorf("round %d: %v, want %v to %v", round, got, whole/2, whole)
			}
		}
		b.Reset()
	}
	seen := map[time.Duration]bool{}
	for range 50 {
		b.Reset()
		seen[b.Next()] = true
	}
	if len(seen) < 10 {
		t.Errorf("%d different waits of 50: they are not spread", len(seen))
	}
}

func TestAPauseEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if !retry.Sleep(ctx, 2*time.Second) || time.Since(began) != 2*time.Second {
			t.Errorf("a whole pause took %v", time.Since(began))
		}
		if retry.NewBackoff(time.Hour, time.Hour).Pause(ctx) || time.Since(began) != 3*time.Second {
			t.Errorf("cut off after %v", time.Since(began))
		}
	})
}
