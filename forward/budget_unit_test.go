package forward

import (
	"testing"
	"time"
)

// TestRetryBudgetPercentAndRetryBudgetFloorBoundRepetitions: all workers down at 1000
// requests a second, and the fleet gets a fifth more of it and three a second.
func TestRetryBudgetPercentAndRetryBudgetFloorBoundRepetitions(t *testing.T) {
	for _, tt := range []struct {
		name         string
		rps, seconds int
		share, floor float64
		most, least  int
	}{
		{"a flood", 1000, 30, 0.2, 3, 30*200 + 30*3 + 30, 30*200 - 200},
		{"a trickle", 1, 60, 0.2, 3, 60, 60},
		{"nothing", 100, 10, 0, 0, 0, 0},
		{"a floor alone", 100, 20, 0, 3, 20*3 + 30, 30},
	} {
		var b retryBudget
		now, took := time.Unix(1, 0), 0
		for range tt.rps * tt.seconds {
			b.request(now)
			if b.take(now, tt.share, tt.floor) {
				took++
			}
			now = now.Add(time.Second / time.Duration(tt.rps))
		}
		if took > tt.most || took < tt.least {
			t.Errorf("%s: %d repetitions, want %d to %d", tt.name, took, tt.least, tt.most)
		}
	}
	var b retryBudget
	now := time.Unix(1, 0)
	for b.take(now, 0, 3) {
	}
	if b.take(now.Add(9*time.Second), 0, 3) {
		t.Error("the window is shorter than it says")
	}
	if !b.take(now.Add(11*time.Second), 0, 3) {
		t.Error("what was spent is never given back")
	}
}
