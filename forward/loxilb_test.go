package forward_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/forward"
)

// What LoxiLB's gateway does to streams (failover.md §6, from its source): it makes up
// the end of one whose worker was silent for 25 s, and took a limit of the whole answer
// for one of silence.
func TestLoxiLBStreamsOfSlowWorkersAreNeitherCutNorEndedByUs(t *testing.T) {
	short := []string{role, tok0, tok1, stop, done}
	long := slices.Concat([]string{role}, slices.Repeat([]string{tok0}, 8192), []string{stop, done})
	tests := []struct {
		name  string
		ids   []string
		parts []string
		pause time.Duration
	}{
		{"a worker that is silent for 30 s before each event", []string{"m1"}, short, 30 * time.Second},
		{"a pair that is", []string{"p1", "d1"}, short, 30 * time.Second},
		{"8192 tokens in 131 s", []string{"m1"}, long, 16 * time.Millisecond},
		{"8192 tokens in 131 s of a pair", []string{"p1", "d1"}, long, 16 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lines{answer: func(id string, _ int) (*scripted, error) {
					if id[0] == 'p' {
						return fine(), nil
					}
					return &scripted{parts: tt.parts, pause: tt.pause}, nil
				}}
				w := newLineWorld(t, tt.ids, l, forward.DefaultConfig(), nil)
				if got, want := w.rec.Body.String(), strings.Join(tt.parts, ""); got != want || w.took < 2*time.Minute {
					t.Errorf("after %v %d bytes of %d: %.200q", w.took, len(got), len(want), got)
				}
				for _, id := range tt.ids {
					if n := l.count(id); n != 1 {
						t.Errorf("%s was asked %d times", id, n)
					}
				}
			})
		})
	}
}
