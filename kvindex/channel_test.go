package kvindex

import (
	"math/rand/v2"
	"testing"
	"time"
)

// engineSim is an engine with a small cache of chains: it stores prompts, evicts
// from their ends, and publishes both with sequence numbers. It remembers its
// last batches for replay.
type engineSim struct {
	r       *rand.Rand
	cached  map[uint64]Hash // engine hash -> our hash
	prompts [][]uint64      // engine hashes of each cached prompt, in order
	life    uint64          // which process: engine hashes differ between two
	seq     uint64
	clock   float64
	history []Batch
}

const (
	simBlock   = 4
	simHistory = 12
)

func newEngineSim(r *rand.Rand) *engineSim {
	e := &engineSim{r: r}
	e.restart()
	return e
}

// restart makes it a new process with an empty cache that numbers from 0.
func (e *engineSim) restart() {
	e.life++
	e.cached = map[uint64]Hash{}
	e.prompts, e.history, e.seq = nil, nil, 0
}

// work does something to the cache and returns the batch that tells of it.
func (e *engineSim) work() Batch {
	var events []Event
	for range 1 + e.r.IntN(3) {
		switch {
		case len(e.prompts) > 12 || len(e.prompts) > 0 && e.r.IntN(4) == 0:
			events = append(events, e.evict())
		case e.r.IntN(60) == 0:
			events = append(events, Event{Kind: Cleared})
			clear(e.cached)
			e.prompts = nil
		default:
			events = append(events, e.store())
		}
	}
	e.clock++
	b := Batch{Seq: e.seq, HasSeq: true, Rank: -1, At: e.clock, Events: events}
	e.seq++
	e.history = append(e.history, b)
	if len(e.history) > simHistory {
		e.history = e.history[1:]
	}
	return b
}

// store adds a prompt, half of the time as the growth of one that is there.
func (e *engineSim) store() Event {
	var parent uint64
	var seed Hash
	var at int
	if len(e.prompts) > 0 && e.r.IntN(2) == 0 {
		at = e.r.IntN(len(e.prompts))
		p := e.prompts[at]
		parent = p[len(p)-1]
		seed = e.cached[parent]
	} else {
		at = len(e.prompts)
		e.prompts = append(e.prompts, nil)
	}
	tokens := make([]uint32, simBlock*(1+e.r.IntN(6)))
	for i := range tokens {
		tokens[i] = e.r.Uint32()
	}
	ev := Event{Kind: Stored, Parent: parent, HasParent: parent != 0, Tokens: tokens, BlockSize: simBlock}
	for _, h := range HashTokens(nil, seed, tokens, simBlock) {
		name := h ^ e.life<<48 ^ 0x1234
		ev.Hashes = append(ev.Hashes, name)
		e.cached[name] = h
	}
	e.prompts[at] = append(e.prompts[at], ev.Hashes...)
	return ev
}

// evict drops the last blocks of a prompt, or all of it.
func (e *engineSim) evict() Event {
	k := e.r.IntN(len(e.prompts))
	p := e.prompts[k]
	keep := e.r.IntN(len(p))
	gone := p[keep:]
	for _, name := range gone {
		delete(e.cached, name)
	}
	if keep == 0 {
		e.prompts[k] = e.prompts[len(e.prompts)-1]
		e.prompts = e.prompts[:len(e.prompts)-1]
	} else {
		e.prompts[k] = p[:keep]
	}
	return Event{Kind: Removed, Hashes: append([]uint64(nil), gone...)}
}

// source is what a subscriber does with what comes: the advice of Feed's comment.
type source struct {
	f   *Feed
	e   *engineSim
	now time.Time
}

func (s *source) live(b *Batch) {
	gap := s.f.Apply(b, s.now)
	if gap != nil {
		s.replay(gap.From)
		if s.f.Apply(b, s.now) != nil {
			s.f.Reset(ResetGap)
			s.f.Apply(b, s.now)
		}
	}
	if s.f.NeedsResync() {
		s.f.Reset(ResetResync)
		s.replay(0)
		s.f.Apply(b, s.now)
	}
}

func (s *source) replay(from uint64) {
	for i := range s.e.history {
		b := &s.e.history[i]
		if b.Seq < from {
			continue
		}
		if s.f.ApplyReplayed(b, s.now) != nil {
			s.f.Reset(ResetGap)
			s.f.ApplyReplayed(b, s.now)
		}
	}
}

// compare checks the view against the engine's cache: never more than is there,
// and all of it unless the view says that it is partial.
func (s *source) compare(t *testing.T, x *Index, in Instance) {
	t.Helper()
	var scratch Scratch
	missing := 0
	for _, p := range s.e.prompts {
		var hs []Hash
		for _, name := range p {
			hs = append(hs, s.e.cached[name])
		}
		x.Lookup(hs, &scratch)
		missing += len(hs) - scratch.Depth(in)
	}
	view := int(x.lookupTarget(in).blocks.Load())
	if extra := view - len(s.e.cached); extra > 0 {
		t.Fatalf("the view has %d blocks that the engine has not", extra)
	}
	if missing > 0 && !s.f.Partial() {
		t.Fatalf("%d of %d blocks are missing from a view that says it is whole", missing, len(s.e.cached))
	}
	if err := x.audit(); err != nil {
		t.Fatal(err)
	}
}

// Batches are lost, repeated and delayed, connections break, engines restart: in
// the end the view is right or says that it is not.
func TestALossyChannelNeverLeavesAWrongView(t *testing.T) {
	for name, c := range map[string]struct {
		lose, burst, restart, repeat, late int // per mille; late: batches before the start
	}{
		"a good channel":                       {},
		"single batches are lost":              {lose: 50},
		"more are lost than can be replayed":   {lose: 10, burst: 30},
		"the engine restarts":                  {restart: 20},
		"the engine restarts on a bad channel": {lose: 50, burst: 5, restart: 20},
		"the last batch comes again":           {repeat: 100},
		"joining late, all can be replayed":    {late: 8},
		"joining late, not all can":            {late: 40, lose: 20},
		"all of it":                            {lose: 30, burst: 5, restart: 10, repeat: 30, late: 15},
	} {
		t.Run(name, func(t *testing.T) {
			whole := 0
			for seed := range uint64(30) {
				r := rand.New(rand.NewPCG(seed, 3))
				x := New(Config{})
				s := &source{f: x.Feed("w"), e: newEngineSim(r), now: time.Unix(1, 0)}
				in := x.Instance("w")
				s.f.Connected(s.now)
				for range c.late {
					s.e.work()
				}
				chance := func(perMille int) bool { return r.IntN(1000) < perMille }
				skip := 0
				for range 150 {
					if chance(c.restart) {
						s.e.restart()
					}
					if chance(c.burst) {
						skip = simHistory + r.IntN(5)
						s.f.Lost(s.now)
						s.f.Connected(s.now)
					}
					b := s.e.work()
					if skip > 0 || chance(c.lose) && b.Seq != 0 {
						// Losing number 0 of a restart right after number 0 of the
						// life before would look like one gap: only discovery's
						// incarnation can tell then.
						skip = max(0, skip-1)
						continue
					}
					s.live(&b)
					if chance(c.repeat) {
						s.live(&b)
					}
					if s.e.life == 1 || c.lose+c.burst == 0 {
						s.compare(t, x, in)
					}
				}
				if !s.f.Partial() {
					whole++
				}
			}
			if c.burst == 0 && c.late < 10 && whole != 30 {
				t.Errorf("%d of 30 views are whole in the end, want all: everything could be replayed", whole)
			}
		})
	}
}
