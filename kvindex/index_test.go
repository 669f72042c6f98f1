package kvindex

import (
	"strings"
	"testing"
	"time"
)

func (s *story) apply(events ...Event) {
	s.t.Helper()
	if gap := s.f.Apply(s.batch(-1, events...), s.now); gap != nil {
		s.t.Fatalf("gap %v", gap)
	}
}

func removed(tier Tier, hashes ...uint64) Event {
	return Event{Kind: Removed, Hashes: hashes, Tier: tier}
}

func TestABlockIsHeldWhileAnyTierHasIt(t *testing.T) {
	onHost := storePrompt(1)
	onHost.Tier = Host
	for name, c := range map[string]struct {
		events []Event
		want   int
	}{
		"on the device":                         {[]Event{storePrompt(1)}, 8},
		"on the host only":                      {[]Event{onHost}, 8},
		"gone from the device":                  {[]Event{storePrompt(1), removed(Device, handles(1, 8)...)}, 0},
		"gone from a tier not named":            {[]Event{storePrompt(1), removed(0, handles(1, 8)...)}, 0},
		"moved to the host":                     {[]Event{storePrompt(1), onHost, removed(Device, handles(1, 8)...)}, 8},
		"back on the device":                    {[]Event{storePrompt(1), onHost, removed(Host, handles(1, 8)...)}, 8},
		"gone from both":                        {[]Event{storePrompt(1), onHost, removed(Host, handles(1, 8)...), removed(Device, handles(1, 8)...)}, 0},
		"gone from both at once":                {[]Event{storePrompt(1), onHost, removed(Host|Device, handles(1, 8)...)}, 0},
		"removed from a tier that it is not on": {[]Event{storePrompt(1), removed(Disk, handles(1, 8)...)}, 8},
		"on the host, removed from the device":  {[]Event{onHost, removed(Device, handles(1, 8)...)}, 8},
		"stored twice on one tier":              {[]Event{storePrompt(1), storePrompt(1), removed(Device, handles(1, 8)...)}, 0},
		"its middle gone":                       {[]Event{storePrompt(1), removed(Device, handles(1, 8)[3])}, 3},
		"its first block gone":                  {[]Event{storePrompt(1), removed(Device, handles(1, 1)...)}, 0},
		"its middle gone and back":              {[]Event{storePrompt(1), removed(Device, handles(1, 8)[3]), storePrompt(1)}, 8},
		"cleared":                               {[]Event{storePrompt(1), {Kind: Cleared}}, 0},
		"cleared and stored again":              {[]Event{storePrompt(1), {Kind: Cleared}, storePrompt(1)}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.apply(c.events...)
			if got := s.depth(1); got != c.want {
				t.Errorf("%d blocks, want %d", got, c.want)
			}
			if got := s.x.lookupTarget(s.in).counts.tiered.Load(); c.want == 0 && got != 0 {
				t.Errorf("%d tier entries left, want 0", got)
			}
		})
	}
}

func TestABlockIsHeldWhileAnyEngineHashNamesIt(t *testing.T) {
	s := newStory(t)
	again := storePrompt(1)
	again.Hashes = handles(7, 8)
	s.apply(storePrompt(1), again)
	if got := s.x.lookupTarget(s.in).counts.extra.Load(); got != 8 {
		t.Errorf("%d extra hashes, want 8", got)
	}
	s.apply(removed(0, handles(1, 8)...))
	if got := s.depth(1); got != 8 {
		t.Errorf("%d blocks after one of two hashes went, want 8", got)
	}
	s.apply(removed(0, handles(7, 8)...))
	if got := s.depth(1); got != 0 {
		t.Errorf("%d blocks after both hashes went, want 0", got)
	}
}

func TestAnEngineHashThatNamesAnotherBlockLetsGoOfTheFirst(t *testing.T) {
	s := newStory(t)
	other := storePrompt(2)
	other.Hashes = handles(1, 8)
	s.apply(storePrompt(1), other)
	if got := s.depth(1); got != 0 {
		t.Errorf("first prompt: %d blocks, want 0", got)
	}
	if got := s.depth(2); got != 8 {
		t.Errorf("second prompt: %d blocks, want 8", got)
	}
}

func TestAdaptersAndSaltsDoNotShareBlocks(t *testing.T) {
	s := newStory(t)
	lora := storePrompt(1)
	lora.Extra = Extra("adapter", "")
	s.apply(lora)
	if got := s.depth(1); got != 0 {
		t.Errorf("base model: %d blocks of an adapter's, want 0", got)
	}
	s.x.Lookup(HashTokens(nil, Extra("adapter", ""), prompt(1), 4), &s.s)
	if got := s.s.Depth(s.in); got != 8 {
		t.Errorf("adapter: %d blocks, want 8", got)
	}
}

func TestAPromptGrowsOverManyEvents(t *testing.T) {
	s := newStory(t)
	tokens := make([]uint32, 3000*4)
	for i := range tokens {
		tokens[i] = uint32(i * 7)
	}
	for i := range 3000 { // one block per event, as decoding does
		e := Event{Kind: Stored, BlockSize: 4, Tokens: tokens[4*i : 4*i+4], Hashes: []uint64{uint64(i + 1)}}
		if i > 0 {
			e.HasParent, e.Parent = true, uint64(i)
		}
		s.apply(e)
	}
	hs := HashTokens(nil, 0, tokens, 4)
	s.x.Lookup(hs, &s.s)
	if got := s.s.Depth(s.in); got != 3000 {
		t.Errorf("%d blocks, want 3000", got)
	}
	if runs, _, _ := s.x.sizes(); runs > 16 {
		t.Errorf("%d runs for one chain, want at most 16: they must get room to grow", runs)
	}
	for i := 3000; i > 0; i-- {
		s.apply(removed(0, uint64(i)))
		if i%500 == 1 {
			s.x.Lookup(hs, &s.s)
			if got := s.s.Depth(s.in); got != i-1 {
				t.Errorf("%d blocks after the tail went, want %d", got, i-1)
			}
		}
	}
}

func TestInstancesOfForgottenTargetsAreWorthless(t *testing.T) {
	x := New(Config{})
	now := time.Unix(1, 0)
	hs := HashTokens(nil, 0, prompt(1), 4)
	var s Scratch
	a := x.Instance("a")
	if got := x.Instance("a"); got != a {
		t.Errorf("one key has instances %d and %d", a, got)
	}
	x.Predict(a, hs, now, 0)
	x.Forget("a")
	x.Forget("a")
	x.Forget("never known")
	seen := map[Instance]bool{a: true}
	for i := range 300 { // long enough for slots to be given out again
		in := x.Instance("a")
		if seen[in] {
			t.Fatalf("round %d: instance %d was given out before", i, in)
		}
		seen[in] = true
		x.Predict(in, hs, now, 0)
		x.Predict(a, hs[:1], now, 0) // stale
		x.Present(a, hs[:1], now)
		x.Lookup(hs, &s)
		if got := s.Depth(in); got != 8 {
			t.Fatalf("round %d: %d blocks, want 8", i, got)
		}
		if got := s.Depth(a); got != 0 {
			t.Fatalf("round %d: a stale instance holds %d blocks, want 0", i, got)
		}
		x.Forget("a")
	}
	if got := len(*x.table.Load()); got > 200 {
		t.Errorf("%d slots after 300 targets one after the other: none is given out again", got)
	}
	if got := x.Mode(a, now); got != None || x.BlockSize(a) != 0 {
		t.Errorf("stale instance: mode %v, block size %d", got, x.BlockSize(a))
	}
}

func TestAScratchServesManyIndexes(t *testing.T) {
	var s Scratch
	if got := s.Depth(0); got != 0 {
		t.Errorf("before any lookup: depth %d, want 0", got)
	}
	hs := HashTokens(nil, 0, prompt(1), 4)
	for i := range 3 {
		x := New(Config{})
		in := x.Instance("a")
		x.Predict(in, hs[:i], time.Unix(1, 0), 0)
		x.Lookup(hs, &s)
		if got := s.Depth(in); got != i {
			t.Errorf("index %d: depth %d, want %d", i, got, i)
		}
		if got := s.ExactDepth(in); got != 0 {
			t.Errorf("index %d: exact depth %d of predictions only, want 0", i, got)
		}
		x.Lookup(nil, &s)
		if got := s.Depth(in); got != 0 {
			t.Errorf("index %d: depth %d of an empty prompt, want 0", i, got)
		}
	}
	if got := s.Depth(1 << 20); got != 0 {
		t.Errorf("an instance that never was: depth %d, want 0", got)
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	err := Config{PredictedTTL: -1, PresentTTL: -1, PredictedBlocks: -1, SilentAfter: -1}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"PredictedTTL", "PresentTTL", "PredictedBlocks", "SilentAfter"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("error %q does not name %s", err, field)
		}
	}
}

func TestNamesAreReadable(t *testing.T) {
	for got, want := range map[string]string{
		Stored.String(): "stored", Removed.String(): "removed", Cleared.String(): "cleared", Kind(9).String(): "kind(9)",
		None.String(): "none", Predicted.String(): "predicted", Exact.String(): "exact", Mode(9).String(): "mode(9)",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
