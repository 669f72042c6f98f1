package kvindex

import "testing"

func TestHeldCountsTheBlocksOfEvents(t *testing.T) {
	s := newStory(t)
	want := func(when, key string, n int) {
		t.Helper()
		if got := s.x.Held(key); got != n {
			t.Errorf("%s: %q holds %d blocks, want %d", when, key, got, n)
		}
	}
	want("before any event", "w", 0)
	s.apply(storePrompt(1), storePrompt(2))
	want("two prompts of 8 blocks", "w", 16)
	s.apply(Event{Kind: Removed, Hashes: handles(1, 8)[6:]})
	want("the last two blocks are gone", "w", 14)
	want("a target that is not kept", "x", 0)
	if _, kept := s.x.byKey["x"]; kept {
		t.Error("to ask for a target makes the index keep it")
	}
	s.x.Forget("w")
	want("forgotten", "w", 0)
}
