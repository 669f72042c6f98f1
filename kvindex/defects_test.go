package kvindex

import (
	"fmt"
	"testing"
	"time"
)

// Each of these is a defect of Infera's index that must not occur here; the
// numbers are those of the interoperability contract.
func TestDefectsOfInferasIndexDoNotOccur(t *testing.T) {
	for name, play := range map[string]func(s *story){
		"K6: children of a block that was lost come back with the first token": func(s *story) {
			child := storePrompt(1)
			child.Tokens, child.Hashes = child.Tokens[16:], child.Hashes[4:]
			child.HasParent, child.Parent = true, handles(1, 4)[3] // stored before we knew the worker
			s.apply(child)
			s.want(1, 0)
			s.x.Present(s.in, HashTokens(nil, 0, prompt(1), 4), s.now)
			s.want(1, 8)
		},
		"K7: a new process under an old name holds nothing": func(s *story) {
			s.run("0 1 2")
			s.x.Present(s.in, HashTokens(nil, 0, prompt(7), 4), s.now)
			s.f.Reset(ResetIncarnation)
			for n := range 8 {
				s.want(n, 0)
			}
			s.run("0=ok")
			s.want(0, 8)
			if s.f.Partial() {
				s.t.Error("a view that starts with number 0 says that it is partial")
			}
		},
		"K8: lost batches are noticed": func(s *story) {
			s.run("0 1 4=gap:2-3")
		},
		"K9: a router that joins late says so until it knows": func(s *story) {
			s.run("500=ok")
			if !s.f.Partial() || !s.f.NeedsResync() {
				s.t.Error("the view does not say that it is partial")
			}
		},
		"K10: an adapter's blocks are not the base model's": func(s *story) {
			e := storePrompt(1)
			e.Extra = Extra("my-lora", "")
			s.apply(e)
			s.want(1, 0)
			s.x.Lookup(HashTokens(nil, Extra("my-lora", ""), prompt(1), 4), &s.s)
			if got := s.s.Depth(s.in); got != 8 {
				s.t.Errorf("%d blocks of the adapter, want 8", got)
			}
			s.x.Lookup(HashTokens(nil, Extra("my-lora", "salt"), prompt(1), 4), &s.s)
			if got := s.s.Depth(s.in); got != 0 {
				s.t.Errorf("%d blocks under another salt, want 0", got)
			}
		},
		"K11: a block that leaves the host stays on the device": func(s *story) {
			host := storePrompt(1)
			host.Tier = Host
			s.apply(storePrompt(1), host, removed(Host, handles(1, 8)...))
			s.want(1, 8)
			s.apply(removed(Device, handles(1, 8)...))
			s.want(1, 0)
		},
		"K12: a block with two engine hashes outlives one": func(s *story) {
			twice := storePrompt(1)
			twice.Hashes = handles(2, 8)
			s.apply(storePrompt(1), twice, removed(0, handles(2, 8)...))
			s.want(1, 8)
			s.apply(removed(0, handles(1, 8)...))
			s.want(1, 0)
		},
		"K13: a child is never chained from the root": func(s *story) {
			e := storePrompt(1)
			e.HasParent, e.Parent = true, 0 // what a decoder may make of a hash it cannot read
			s.apply(e)
			s.want(1, 0)
			if got := s.x.lookupTarget(s.in).counts.orphans.Load(); got != 1 {
				s.t.Errorf("%d unknown parents, want 1", got)
			}
		},
		"K14: a worker that left leaves nothing": func(s *story) {
			s.run("0 1 2 3")
			s.x.Forget("w")
			if runs, _, _ := s.x.sizes(); runs != 0 {
				s.t.Errorf("%d runs of a worker that left", runs)
			}
			s.in = s.x.Instance("w")
			if got := s.x.BlockSize(s.in); got != 0 {
				s.t.Errorf("a worker that came back has the block size %d of its former life", got)
			}
		},
		"K16: the events' block size counts": func(s *story) {
			s.apply(Event{Kind: Stored, BlockSize: 8, Tokens: prompt(1), Hashes: handles(1, 4)})
			if got := s.x.BlockSize(s.in); got != 8 {
				s.t.Errorf("block size %d, want 8", got)
			}
			s.x.Lookup(HashTokens(nil, 0, prompt(1), 8), &s.s)
			if got := s.s.Depth(s.in); got != 4 {
				s.t.Errorf("%d blocks, want 4", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			play(s)
			if err := s.x.audit(); err != nil {
				t.Error(err)
			}
		})
	}
}

// want checks how much of a prompt the story's target holds.
func (s *story) want(n, blocks int) {
	s.t.Helper()
	if got := s.depth(n); got != blocks {
		s.t.Errorf("prompt %d: %d blocks, want %d", n, got, blocks)
	}
}

func TestRanksOfOneWorkerAreTargetsOfTheirOwn(t *testing.T) {
	x := New(Config{})
	now := time.Unix(1, 0)
	var ins []Instance
	for rank := range 4 {
		key := fmt.Sprintf("10.0.0.1:8000#dp%d", rank)
		ins = append(ins, x.Instance(key))
		e := storePrompt(1)
		e.Tokens, e.Hashes = e.Tokens[:8*(rank+1)], e.Hashes[:2*(rank+1)]
		x.Feed(key).Apply(&Batch{Events: []Event{e}}, now)
	}
	x.Feed("10.0.0.1:8000#dp3").Apply(&Batch{Events: []Event{{Kind: Cleared}}}, now)
	var s Scratch
	x.Lookup(HashTokens(nil, 0, prompt(1), 4), &s)
	for rank, want := range []int{2, 4, 6, 0} {
		if got := s.Depth(ins[rank]); got != want {
			t.Errorf("rank %d: %d blocks, want %d", rank, got, want)
		}
	}
}

func TestDifferentBlockSizesDoNotMeet(t *testing.T) {
	x := New(Config{})
	now := time.Unix(1, 0)
	small, large := x.Instance("small"), x.Instance("large")
	x.Feed("small").Apply(&Batch{Events: []Event{{Kind: Stored, BlockSize: 4, Tokens: prompt(1), Hashes: handles(1, 8)}}}, now)
	x.Feed("large").Apply(&Batch{Events: []Event{{Kind: Stored, BlockSize: 16, Tokens: prompt(1), Hashes: handles(1, 2)}}}, now)
	var s Scratch
	for _, c := range []struct{ size, small, large int }{{4, 8, 0}, {16, 0, 2}, {8, 0, 0}} {
		x.Lookup(HashTokens(nil, 0, prompt(1), c.size), &s)
		if s.Depth(small) != c.small || s.Depth(large) != c.large {
			t.Errorf("blocks of %d: depths %d and %d, want %d and %d", c.size, s.Depth(small), s.Depth(large), c.small, c.large)
		}
	}
}
