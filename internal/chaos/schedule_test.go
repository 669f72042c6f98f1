package chaos

import (
	"testing"
	"time"
)

func testRoles() []string {
	return []string{"prefill", "prefill", "prefill", "decode", "decode", "decode", "mixed", "mixed"}
}

func TestASeedDrawsTheSameScheduleAgain(t *testing.T) {
	a, b := Draw(7, time.Minute, testRoles(), 2), Draw(7, time.Minute, testRoles(), 2)
	if len(a) < 20 || a.String() != b.String() {
		t.Errorf("%d steps, then\n%s\ninstead of\n%s", len(a), b, a)
	}
	if c := Draw(8, time.Minute, testRoles(), 2); c.String() == a.String() {
		t.Error("another seed draws the same schedule")
	}
}

func TestEveryKindOfFaultIsDrawnSoonerOrLater(t *testing.T) {
	seen := map[Kind]bool{}
	for seed := range uint64(20) {
		for _, s := range Draw(seed, time.Minute, testRoles(), 2) {
			seen[s.Kind] = true
		}
	}
	for _, k := range append(perWorker(), global()...) {
		if !seen[k] {
			t.Errorf("no %s in 20 schedules", k)
		}
	}
}

func TestAScheduleNeverBreaksAllOfAKindNorAnythingTwiceAtOnce(t *testing.T) {
	roles := testRoles()
	for seed := range uint64(50) {
		plan := Draw(seed, time.Minute, roles, 2)
		for i, s := range plan {
			if s.At+s.For > time.Minute {
				t.Errorf("seed %d: %s outlasts the run", seed, s)
			}
			broken := map[string]int{}
			for _, other := range plan[:i+1] {
				if other.Kind == EPPRestart || other.Target < 0 || other.At+other.For <= s.At {
					continue
				}
				if other != s && other.Target == s.Target && s.Kind != EPPRestart {
					t.Errorf("seed %d: %s while %s", seed, s, other)
				}
				broken[roles[other.Target]]++
			}
			for role, n := range broken {
				if limit := map[string]int{"prefill": 2, "decode": 2, "mixed": 1}[role]; n > limit {
					t.Errorf("seed %d: %d of the %s workers are broken at %v", seed, n, role, s.At)
				}
			}
		}
	}
}
