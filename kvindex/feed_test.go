package kvindex

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// story is an index with one target, told in short sentences.
type story struct {
	t    *testing.T
	x    *Index
	f    *Feed
	in   Instance
	now  time.Time
	live float64 // publisher's clock
	s    Scratch
}

func newStory(t *testing.T) *story {
	t.Helper()
	x := New(Config{})
	st := &story{t: t, x: x, f: x.Feed("w"), in: x.Instance("w"), now: time.Unix(100, 0)}
	st.f.Connected(st.now)
	return st
}

// prompt n is 8 blocks of 4 tokens that no other prompt shares.
func prompt(n int) []uint32 {
	tokens := make([]uint32, 32)
	for i := range tokens {
		tokens[i] = uint32(n*1000 + i)
	}
	return tokens
}

func handles(n, blocks int) []uint64 {
	var hs []uint64
	for i := range blocks {
		hs = append(hs, uint64(n*100+i+1))
	}
	return hs
}

func storePrompt(n int) Event {
	return Event{Kind: Stored, Hashes: handles(n, 8), Tokens: prompt(n), BlockSize: 4}
}

func (s *story) batch(seq int, events ...Event) *Batch {
	s.live++
	return &Batch{Seq: uint64(seq), HasSeq: seq >= 0, Rank: -1, At: s.live, Events: events}
}

// depth is how much of prompt n the target holds.
func (s *story) depth(n int) int {
	s.x.Lookup(HashTokens(nil, 0, prompt(n), 4), &s.s)
	return s.s.Depth(s.in)
}

// run plays a script, one step per word:
//
//	3      a live batch with number 3 that stores prompt 3
//	r3     the same, replayed
//	3=dup  ... with an expectation: ok, dup, restart, gap:FROM-TO
//	old3   a live batch with number 3 and the time of the last one
//	reset  for a gap that is not filled
//	lost, back  the connection
func (s *story) run(script string) {
	s.t.Helper()
	last := map[int]*Batch{}
	for word := range strings.FieldsSeq(script) {
		step, want, _ := strings.Cut(word, "=")
		switch step {
		case "reset":
			s.f.Reset(ResetGap)
			continue
		case "lost":
			s.f.Lost(s.now)
			continue
		case "back":
			s.f.Connected(s.now)
			continue
		}
		var seq int
		apply := s.f.Apply
		num := step
		if rest, ok := strings.CutPrefix(step, "r"); ok {
			num, apply = rest, s.f.ApplyReplayed
		}
		num, again := strings.CutPrefix(num, "old")
		if _, err := fmt.Sscan(num, &seq); err != nil {
			s.t.Fatalf("script word %q: %v", word, err)
		}
		b := s.batch(seq, storePrompt(seq))
		if again || (step[0] == 'r' && last[seq] != nil) {
			b = last[seq]
		}
		last[seq] = b
		before := s.counts()
		gap := apply(b, s.now)
		if got := before.verdict(s.counts(), gap); want != "" && got != want {
			s.t.Fatalf("script %q: %s is %s, want %s", script, step, got, want)
		}
	}
}

type feedCounts struct{ dups, restarts, stored uint64 }

func (s *story) counts() feedCounts {
	t := s.x.lookupTarget(s.in)
	return feedCounts{t.counts.duplicates.Load(), s.x.counts.resets[resetIndex(ResetRestart)].Load(), t.counts.stored.Load()}
}

func (c feedCounts) verdict(after feedCounts, gap *Gap) string {
	switch {
	case gap != nil:
		return fmt.Sprintf("gap:%d-%d", gap.From, gap.To)
	case after.dups > c.dups:
		return "dup"
	case after.restarts > c.restarts:
		return "restart"
	case after.stored > c.stored:
		return "ok"
	}
	return "nothing"
}

func TestSequenceNumbersTellGapsRepetitionsAndRestartsApart(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		holds   []int // prompts that are held in the end, of 0..9
		mode    Mode
		partial bool
		resync  bool
	}{
		"batches in order":                                 {"0=ok 1=ok 2=ok", []int{0, 1, 2}, Exact, false, false},
		"joining late is partial":                          {"7=ok 8=ok", []int{7, 8}, Exact, true, true},
		"a gap is not applied":                             {"0 1 5=gap:2-4", []int{0, 1}, Predicted, false, false},
		"a gap is filled by replay":                        {"0 1 4=gap:2-3 r2=ok r3=ok 4=ok 5=ok", []int{0, 1, 2, 3, 4, 5}, Exact, false, false},
		"replay goes further than the gap":                 {"0 1 4=gap:2-3 r2=ok r3=ok r4=ok old4=dup 5=ok", []int{0, 1, 2, 3, 4, 5}, Exact, false, false},
		"replay starts before the gap":                     {"0 1 3=gap:2-2 r0=dup r1=dup r2=ok 3=ok", []int{0, 1, 2, 3}, Exact, false, false},
		"replay has lost the beginning of the gap":         {"0 1 5=gap:2-4 r4=gap:2-3 reset r4=ok 5=ok", []int{4, 5}, Exact, true, false},
		"a gap that cannot be replayed":                    {"0 1 5=gap:2-4 reset 5=ok 6=ok", []int{5, 6}, Exact, true, true},
		"a restart drops what was known":                   {"0 1 2 0=restart 1=ok", []int{0, 1}, Exact, false, false},
		"a restart whose first batches were missed":        {"0 1 2 3 1=restart 2=ok", []int{1, 2}, Exact, true, true},
		"a restart at the last number":                     {"0 1 2 2=restart", []int{2}, Exact, true, true},
		"the last batch twice":                             {"0 1 2 old2=dup 3=ok", []int{0, 1, 2, 3}, Exact, false, false},
		"a restart right after a replay":                   {"0 3=gap:1-2 r1 r2 r3 1=restart", []int{1}, Exact, true, true},
		"a restart after a replay that no live one passed": {"reset r0 r1 r2 0=restart", []int{0}, Exact, false, false},
		"a whole history is replayed after joining late":   {"3=ok reset r0=ok r1=ok r2=ok r3=ok old3=dup 4=ok", []int{0, 1, 2, 3, 4}, Exact, false, false},
		"a short history is replayed after joining late":   {"3=ok reset r2=ok r3=ok 4=ok", []int{2, 3, 4}, Exact, true, false},
		"a loss without a miss":                            {"0 1 lost back 2=ok", []int{0, 1, 2}, Exact, false, false},
		"a loss with a miss":                               {"0 1 lost back 4=gap:2-3", []int{0, 1}, Predicted, false, false},
		"out of touch":                                     {"0 1 lost", []int{0, 1}, Predicted, false, false},
		"no numbers":                                       {"-1=ok -1=ok", nil, Exact, false, false},
		"no numbers, after a loss":                         {"-1=ok lost back", nil, None, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.run(c.script)
			held := map[int]bool{}
			for _, n := range c.holds {
				held[n] = true
			}
			for n := range 10 {
				want := 0
				if held[n] {
					want = 8
				}
				if got := s.depth(n); got != want {
					t.Errorf("prompt %d: %d blocks, want %d", n, got, want)
				}
			}
			if got := s.x.Mode(s.in, s.now); got != c.mode {
				t.Errorf("mode %v, want %v", got, c.mode)
			}
			if got := s.f.Partial(); got != c.partial {
				t.Errorf("partial %v, want %v", got, c.partial)
			}
			if got := s.f.NeedsResync(); got != c.resync {
				t.Errorf("needs resync %v, want %v", got, c.resync)
			}
		})
	}
}

func TestALongGapIsCountedOnce(t *testing.T) {
	s := newStory(t)
	s.run("0 5=gap:1-4 6=gap:1-5 7=gap:1-6")
	if got := s.x.lookupTarget(s.in).counts.gaps.Load(); got != 1 {
		t.Errorf("%d gaps, want 1", got)
	}
	s.run("r1 r2 r3 r4 r5 r6")
	if got := s.x.Mode(s.in, s.now); got != Exact {
		t.Errorf("mode %v after the replay, want exact", got)
	}
}

func TestAnUnknownParentIsNeverSilent(t *testing.T) {
	s := newStory(t)
	orphan := storePrompt(1)
	orphan.HasParent, orphan.Parent = true, 999
	s.f.Apply(s.batch(0, orphan), s.now)
	if got := s.depth(1); got != 0 {
		t.Errorf("%d blocks of a chain with an unknown parent, want 0", got)
	}
	if !s.f.Partial() || !s.f.NeedsResync() {
		t.Error("the view does not say that it is partial")
	}
	if got := s.x.lookupTarget(s.in).counts.orphans.Load(); got != 1 {
		t.Errorf("%d unknown parents counted, want 1", got)
	}
	s.x.Present(s.in, HashTokens(nil, 0, prompt(1), 4), s.now)
	if got := s.depth(1); got != 8 {
		t.Errorf("%d blocks after a first token, want 8", got)
	}
	s.f.Apply(s.batch(1, Event{Kind: Cleared}), s.now)
	if s.f.Partial() || s.f.NeedsResync() {
		t.Error("the view of an empty cache is partial")
	}
}

func TestAnUnknownParentAsksForOneReplayOnly(t *testing.T) {
	s := newStory(t)
	orphan := storePrompt(1)
	orphan.HasParent, orphan.Parent = true, 999
	s.f.Reset(ResetResync)
	s.f.ApplyReplayed(s.batch(5, orphan), s.now) // what the publisher still has
	s.f.Apply(s.batch(6, orphan), s.now)
	if s.f.NeedsResync() || !s.f.Partial() {
		t.Error("after a replay of all there is: want partial and no resync")
	}
}

func TestAnotherBlockSizeStartsOver(t *testing.T) {
	s := newStory(t)
	s.run("0 1")
	if got := s.x.BlockSize(s.in); got != 4 {
		t.Errorf("block size %d, want 4", got)
	}
	s.f.Apply(s.batch(2, Event{Kind: Stored, Hashes: []uint64{1, 2}, Tokens: prompt(5)[:16], BlockSize: 8}), s.now)
	if got := s.x.BlockSize(s.in); got != 8 {
		t.Errorf("block size %d, want 8", got)
	}
	if s.depth(0) != 0 || s.depth(1) != 0 {
		t.Error("blocks of the old size are still held")
	}
	s.x.Lookup(HashTokens(nil, 0, prompt(5), 8), &s.s)
	if got := s.s.Depth(s.in); got != 2 {
		t.Errorf("%d blocks of the new size, want 2", got)
	}
	s.run("3=ok") // the sequence went on
	if !s.f.Partial() {
		t.Error("a view that started over does not say that it is partial")
	}
}

func TestEventsThatCannotBeUsedAreCounted(t *testing.T) {
	s := newStory(t)
	fewer, more, noSize := storePrompt(1), storePrompt(2), storePrompt(3)
	fewer.Hashes = fewer.Hashes[:7]
	more.Hashes = append(more.Hashes, 1)
	noSize.BlockSize = 0
	b := s.batch(0, fewer, more, noSize, Event{Kind: 9}, storePrompt(4))
	b.Skipped = 5
	s.f.Apply(b, s.now)
	for n := 1; n <= 3; n++ {
		if got := s.depth(n); got != 0 {
			t.Errorf("prompt %d: %d blocks, want 0", n, got)
		}
	}
	if got := s.depth(4); got != 8 {
		t.Errorf("the good event beside them: %d blocks, want 8", got)
	}
	for i, want := range [numSkips]uint64{5, 2, 1, 1} {
		if got := s.x.counts.skipped[i].Load(); got != want {
			t.Errorf("%s: %d skipped, want %d", skipNames()[i], got, want)
		}
	}
}

func TestAPartialLastBlockIsNotABlock(t *testing.T) {
	s := newStory(t)
	s.f.Apply(s.batch(0, Event{Kind: Stored, Hashes: handles(1, 2), Tokens: prompt(1)[:11], BlockSize: 4}), s.now)
	if got := s.depth(1); got != 2 {
		t.Errorf("%d blocks, want 2", got)
	}
}

func TestAFeedOutlivesItsTarget(t *testing.T) {
	s := newStory(t)
	s.run("0 1 2")
	old := s.in
	s.x.Forget("w")
	s.f.Apply(s.batch(3, storePrompt(3)), s.now)
	s.f.Lost(s.now)
	s.f.Connected(s.now)
	s.f.Reset(ResetGap)
	if got := s.x.Mode(old, s.now); got != None {
		t.Errorf("mode of a forgotten target: %v, want none", got)
	}
	s.in = s.x.Instance("w")
	if s.in == old {
		t.Fatal("a target that came back has its old instance")
	}
	if got := s.depth(0); got != 0 {
		t.Errorf("a target that came back holds %d blocks, want 0", got)
	}
	s.f.Connected(s.now)
	s.run("4=ok")
	if got := s.depth(4); got != 8 {
		t.Errorf("%d blocks by the old feed, want 8", got)
	}
	if !s.f.Partial() {
		t.Error("the new view does not know that batches were missed")
	}
}

func TestASilentEngineStopsBeingExact(t *testing.T) {
	s := newStory(t)
	s.run("0")
	known, unknown := HashTokens(nil, 0, prompt(0), 4), HashTokens(nil, 0, prompt(1), 4)
	s.x.Present(s.in, known, s.now)
	s.now = s.now.Add(time.Hour)
	if got := s.x.Mode(s.in, s.now); got != Exact {
		t.Errorf("mode %v though there was nothing to report, want exact", got)
	}
	s.x.Present(s.in, unknown, s.now)
	s.now = s.now.Add(30 * time.Second)
	if got := s.x.Mode(s.in, s.now); got != Exact {
		t.Errorf("mode %v after 30 s, want exact", got)
	}
	s.now = s.now.Add(31 * time.Second)
	if got := s.x.Mode(s.in, s.now); got != Predicted {
		t.Errorf("mode %v after 61 s, want predicted", got)
	}
	s.run("1")
	if got := s.x.Mode(s.in, s.now); got != Exact {
		t.Errorf("mode %v after an event, want exact", got)
	}
}

func TestMetricsSayWhatIsKnown(t *testing.T) {
	s := newStory(t)
	reg := prometheus.NewPedanticRegistry()
	if err := s.x.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := s.x.Register(reg); err == nil {
		t.Error("registered twice without an error")
	}
	s.run("0 1 3=gap:2-2 reset 3")
	s.x.Predict(s.in, HashTokens(nil, 0, prompt(9), 4), s.now, 0)
	s.x.Instance("idle")
	want := `
# HELP infera_policy_cache_view_size Blocks that the target's events say it holds.
# TYPE infera_policy_cache_view_size gauge
infera_policy_cache_view_size{worker_id="idle"} 0
infera_policy_cache_view_size{worker_id="w"} 8
# HELP pointsman_kvindex_mode What is known of the target: 0 nothing, 1 predictions, 2 its events.
# TYPE pointsman_kvindex_mode gauge
pointsman_kvindex_mode{worker_id="idle"} 0
pointsman_kvindex_mode{worker_id="w"} 2
# HELP pointsman_kvindex_partial 1 while the target may hold blocks that its view lacks.
# TYPE pointsman_kvindex_partial gauge
pointsman_kvindex_partial{worker_id="idle"} 0
pointsman_kvindex_partial{worker_id="w"} 1
# HELP pointsman_kvindex_predicted_blocks Blocks that are assumed to be on the target.
# TYPE pointsman_kvindex_predicted_blocks gauge
pointsman_kvindex_predicted_blocks{worker_id="idle"} 0
pointsman_kvindex_predicted_blocks{worker_id="w"} 8
# HELP pointsman_kvindex_gaps_total Gaps in the sequence of the target's batches.
# TYPE pointsman_kvindex_gaps_total counter
pointsman_kvindex_gaps_total{worker_id="idle"} 0
pointsman_kvindex_gaps_total{worker_id="w"} 1
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want), "infera_policy_cache_view_size", "pointsman_kvindex_mode",
		"pointsman_kvindex_partial", "pointsman_kvindex_predicted_blocks", "pointsman_kvindex_gaps_total")
	if err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	s.x.Forget("w")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "w" {
					t.Errorf("%s still has a series of a forgotten target", f.GetName())
				}
			}
		}
	}
}

func TestAViewThatIsKeptAfterALossIsAPrediction(t *testing.T) {
	s := newStory(t)
	s.run("0 1 lost")
	if depth, mode := s.depth(0), s.x.Mode(s.in, s.now); depth != 8 || mode != Predicted {
		t.Errorf("%d blocks are counted on in mode %v, want 8 in mode predicted", depth, mode)
	}
	s.run("back 2")
	if got := s.x.Mode(s.in, s.now); got != Exact {
		t.Errorf("mode %v though the events go on without a gap, want exact", got)
	}
	s.run("lost reset")
	if depth, mode := s.depth(0), s.x.Mode(s.in, s.now); depth != 0 || mode != None {
		t.Errorf("%d blocks in mode %v after the view was dropped, want 0 in mode none", depth, mode)
	}
}
