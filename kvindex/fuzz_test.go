package kvindex

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

// FuzzApply plays any sequence of events, well-formed ones and nonsense, against
// the naive model. Each operation is five bytes: what, target, chain, from, to.
func FuzzApply(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 8, 5, 0, 0, 3, 5, 9, 0, 0, 0, 8, 11, 1, 0, 0, 0})
	f.Add([]byte{2, 1, 1, 0, 16, 0, 1, 1, 0, 9, 3, 1, 1, 4, 16, 6, 1, 1, 0, 16, 7, 1, 0, 0, 0})
	f.Add([]byte{9, 0, 2, 0, 12, 10, 0, 2, 0, 0, 0, 0, 2, 0, 12, 5, 0, 2, 2, 3, 12, 0, 9, 200, 7})
	const blocks = 24
	chains := randomChains(rand.New(rand.NewPCG(7, 7)), 5, blocks, 2)
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 5*400 {
			ops = ops[:5*400]
		}
		w := newWorld(t, 2, chains)
		var whats []byte
		for ; len(ops) >= 5; ops = ops[5:] {
			whats = append(whats, ops[0]&15)
			w.fuzzStep(ops[0], int(ops[1])%modelTargets, int(ops[2])%len(chains), int(ops[3]), int(ops[4]), blocks)
			w.check(int(ops[2]) % len(chains))
		}
		if bytes.IndexByte(whats, 14) < 0 {
			w.audit() // what is not a chain may be stored twice
		}
		w.empty()
	})
}

func (w *world) fuzzStep(what byte, target, chain, a, b, blocks int) {
	from, to := a%blocks, 1+b%blocks
	if from >= to {
		from = 0
	}
	tier := Tier(what >> 4 & 7)
	switch what & 15 {
	case 0:
		w.store(target, chain, 0, to, false, tier)
	case 1:
		w.store(target, chain, from, to, false, tier)
	case 2:
		w.store(target, chain, from, to, true, tier)
	case 3:
		w.remove(target, chain, span(from, to, 0, nil), false, tier)
	case 4:
		w.remove(target, chain, span(from, to, 1, nil), false, tier)
	case 5:
		w.remove(target, chain, span(from, to, 0, nil), true, tier)
	case 6:
		w.repoint(target, chain, a%len(w.chains), b%blocks)
	case 7:
		w.clear(target)
	case 8:
		w.forget(target)
	case 9:
		w.predict(target, chain, to, time.Duration(1+a)*time.Second)
	case 10:
		w.predict(target, chain, to, 0)
	case 11:
		w.pass(time.Duration(a) * time.Second)
	case 12: // nonsense that must change nothing
		w.apply(target, Event{
			Kind: Kind(a), BlockSize: -b, Tokens: w.chains[chain][:from], Hashes: []uint64{1 << 60, uint64(a)}, Tier: tier,
		})
		if Kind(a) == Cleared {
			w.m.targets[target].clear()
		}
	case 13: // a parent that no one has
		e := Event{Kind: Stored, BlockSize: w.size, HasParent: true, Parent: 1<<61 + uint64(a), Tokens: w.chains[chain][:w.size], Hashes: []uint64{1}}
		w.apply(target, e)
	case 14: // not a chain, but what a caller may pass
		hs := []Hash{uint64(a), uint64(b), uint64(a), uint64(b), uint64(b)}
		w.x.Predict(w.ins[target], hs[:1+a%5], w.now, time.Second)
		w.x.Lookup(hs, &w.s)
	}
}

// FuzzJudge checks that no order of sequence numbers applies a batch twice
// between two resets, and that batches are applied in rising order.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0x82, 5, 0x83, 0x84, 5, 0})
	f.Add([]byte{7, 7, 0x80, 0x81, 3, 4})
	f.Fuzz(func(t *testing.T, words []byte) {
		var s sequence
		last := -1
		for i, word := range words {
			live := word&0x80 == 0
			b := Batch{Seq: uint64(word & 15), HasSeq: true, At: float64(i + 1)}
			switch s.judge(&b, live) {
			case gap:
				if s.next >= b.Seq {
					t.Fatalf("step %d: gap before %d, next is %d", i, b.Seq, s.next)
				}
				continue
			case restart:
				if !live {
					t.Fatalf("step %d: a replayed batch is a restart", i)
				}
				s, last = sequence{}, -1
			case take:
				if int(b.Seq) <= last || last >= 0 && int(b.Seq) != last+1 {
					t.Fatalf("step %d: %d is applied after %d", i, b.Seq, last)
				}
			case duplicate:
				if int(b.Seq) > last {
					t.Fatalf("step %d: %d is a duplicate after %d", i, b.Seq, last)
				}
			}
			last = max(last, int(b.Seq))
			s.advance(&b, live)
		}
	})
}
