package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestPredictionsEndUnlessTheyComeTrue(t *testing.T) {
	long := func(n int) []Hash { return HashTokens(nil, 0, prompt(n), 4) }
	for name, c := range map[string]struct {
		play func(s *story)
		want int
	}{
		"picked": {func(s *story) { s.x.Predict(s.in, long(1), s.now, 0) }, 8},
		"picked 30 s ago": {func(s *story) {
			s.x.Predict(s.in, long(1), s.now, 0)
			s.now = s.now.Add(30 * time.Second)
		}, 0},
		"picked 30 s ago for a minute": {func(s *story) {
			s.x.Predict(s.in, long(1), s.now, time.Minute)
			s.now = s.now.Add(30 * time.Second)
		}, 8},
		"picked again 20 s ago": {func(s *story) {
			for range 2 {
				s.x.Predict(s.in, long(1), s.now, 0)
				s.now = s.now.Add(20 * time.Second)
			}
		}, 8},
		"its beginning picked again": {func(s *story) {
			s.x.Predict(s.in, long(1), s.now, 0)
			s.now = s.now.Add(20 * time.Second)
			s.x.Predict(s.in, long(1)[:3], s.now, 0)
			s.now = s.now.Add(20 * time.Second)
		}, 3},
		"a shorter time does not shorten a longer one": {func(s *story) {
			s.x.Predict(s.in, long(1), s.now, time.Hour)
			s.x.Predict(s.in, long(1), s.now, time.Second)
			s.now = s.now.Add(time.Minute)
		}, 8},
		"first token 5 min ago": {func(s *story) {
			s.x.Predict(s.in, long(1), s.now, 0)
			s.x.Present(s.in, long(1), s.now)
			s.now = s.now.Add(5 * time.Minute)
		}, 8},
		"first token 10 min ago": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.now = s.now.Add(10 * time.Minute)
		}, 0},
		"stored and ended": {func(s *story) {
			s.x.Predict(s.in, long(1), s.now, 0)
			s.apply(storePrompt(1))
			s.now = s.now.Add(time.Hour)
		}, 8},
		"removed by an event": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.apply(storePrompt(1), removed(0, handles(1, 8)...))
		}, 0},
		"cut by an event": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.apply(storePrompt(1), removed(0, handles(1, 8)[5]))
		}, 5},
		"cut by an event and picked again": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.apply(storePrompt(1), removed(0, handles(1, 8)[5]))
			s.x.Predict(s.in, long(1), s.now, 0)
		}, 8},
		"an event for another tier only": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.apply(storePrompt(1), removed(Host, handles(1, 8)...))
		}, 8},
		"cleared": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.apply(Event{Kind: Cleared})
		}, 0},
		"reset": {func(s *story) {
			s.x.Present(s.in, long(1), s.now)
			s.f.Reset(ResetIncarnation)
		}, 0},
		"nothing picked": {func(s *story) { s.x.Predict(s.in, nil, s.now, 0) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			c.play(s)
			s.x.Expire(s.now)
			if got := s.depth(1); got != c.want {
				t.Errorf("%d blocks, want %d", got, c.want)
			}
		})
	}
}

func TestModeOfATargetWithoutEvents(t *testing.T) {
	x := New(Config{})
	in, now := x.Instance("w"), time.Unix(1, 0)
	if got := x.Mode(in, now); got != None {
		t.Errorf("at first: %v, want none", got)
	}
	x.Predict(in, []Hash{1, 2, 3}, now, 0)
	if got := x.Mode(in, now); got != Predicted {
		t.Errorf("after a pick: %v, want predicted", got)
	}
	if got := x.Mode(in, now.Add(time.Minute)); got != None {
		t.Errorf("when all has ended: %v, want none", got)
	}
}

func TestTheLeastRecentPredictionsOfATargetGoFirst(t *testing.T) {
	x := New(Config{PredictedBlocks: 100})
	in, other, now := x.Instance("w"), x.Instance("other"), time.Unix(1, 0)
	var s Scratch
	prompts := make([][]Hash, 20)
	for i := range prompts {
		prompts[i] = HashTokens(nil, 0, prompt(i), 4)
	}
	x.Predict(other, prompts[0], now, time.Hour)
	for _, hs := range prompts[:12] { // 96 blocks
		x.Predict(in, hs, now, time.Hour)
	}
	x.Predict(in, prompts[0], now, time.Hour) // used again
	x.Predict(in, prompts[12], now, time.Hour)
	x.Predict(in, prompts[13], now, time.Hour)
	var held []int
	for i, hs := range prompts {
		x.Lookup(hs, &s)
		if s.Depth(in) == len(hs) {
			held = append(held, i)
		}
	}
	if want := []int{0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}; !slices.Equal(held, want) {
		t.Errorf("prompts held: %v, want %v", held, want)
	}
	x.Lookup(prompts[0], &s)
	if got := s.Depth(other); got != 8 {
		t.Errorf("another target lost predictions: %d blocks, want 8", got)
	}
}

func TestTheEndOfALongPredictionGoesBeforeItsBeginning(t *testing.T) {
	x := New(Config{PredictedBlocks: 2000})
	in, now := x.Instance("w"), time.Unix(1, 0)
	long, more := make([]Hash, 1900), make([]Hash, 400)
	for i := range long {
		long[i] = uint64(i)*golden + 1
	}
	for i := range more {
		more[i] = uint64(i)*golden + 2
	}
	x.Predict(in, long, now, time.Hour)
	x.Predict(in, more, now, time.Hour)
	var s Scratch
	x.Lookup(long, &s)
	if got := s.Depth(in); got != 3*maxRun {
		t.Errorf("%d blocks of the long prompt left, want its first %d", got, 3*maxRun)
	}
	x.Lookup(more, &s)
	if got := s.Depth(in); got != len(more) {
		t.Errorf("%d blocks of the new prompt, want %d", got, len(more))
	}
}

func TestEndedPredictionsLeaveWithoutBeingAskedTo(t *testing.T) {
	x := New(Config{})
	now := time.Unix(1, 0)
	idle, busy := x.Instance("idle"), x.Instance("busy")
	for i := range 200 {
		x.Predict(idle, HashTokens(nil, 0, prompt(i), 4), now, 0)
	}
	now = now.Add(time.Hour)
	for range 10 {
		x.Predict(busy, HashTokens(nil, 0, prompt(1000), 4), now, 0)
	}
	if got := x.lookupTarget(idle).predicted.Load(); got != 0 {
		t.Errorf("%d predicted blocks of an idle target are left, want 0", got)
	}
}

func TestTheHeapOfEndsStaysInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var s guesses
	s.init()
	live := map[uint32]int64{}
	for range 20000 {
		switch r.IntN(4) {
		case 0, 1:
			g, at := s.alloc(), r.Int64N(1000)
			s.all[g] = guess{until: at}
			s.push(g, at)
			live[g] = at
		case 2:
			for g := range live {
				if r.IntN(2) == 0 { // prolonged
					live[g] += 10
					s.all[g].until += 10
					break
				}
				s.take(int(s.all[g].heapAt))
				s.free = append(s.free, g)
				delete(live, g)
				break
			}
		case 3:
			now := r.Int64N(1000)
			for g := s.ended(now); g != 0; g = s.ended(now) {
				if at, ok := live[g]; !ok || at > now {
					t.Fatalf("guess %d ended at %d, want %d (%v)", g, now, at, ok)
				}
				s.take(int(s.all[g].heapAt))
				s.free = append(s.free, g)
				delete(live, g)
			}
			for g, at := range live {
				if at <= now {
					t.Fatalf("guess %d should have ended at %d, it is %d", g, at, now)
				}
			}
		}
	}
}
