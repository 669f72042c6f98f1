package picker

import (
	"hash/fnv"

	"pointsman/kvindex"
	"pointsman/scorer"
)

// This file fills the columns that not every policy reads; see selection.fill for the
// others. A column that nobody reads is empty.

// held returns the prompt tokens that row i need not compute. Equal text around
// images that cannot be compared proves nothing.
func (s *selection) held(i int) float64 {
	if !s.tell {
		return 0
	}
	return s.in.Hit[i] + float64(s.promised[i])
}

// work returns the te of the request on row i, of images that it has not seen too.
func (s *selection) work(i int) float64 {
	in := &s.in
	return s.latency.work(s.held(i), in.Prompt+in.Missing[i]*scorer.BlocksPerImage*in.Unit)
}

// fillTimed writes what least-latency goes by in row i. now is in Unix ns.
func (s *selection) fillTimed(i int, t *target, now int64) {
	in := &s.in
	pace := t.pace(in.FleetPace)
	in.Pace[i] = pace
	others := &t.external.now
	in.Queue[i] = others.PrefillTokens
	in.Coming[i] = float64(t.coming-t.pastTokens) + others.PrefillTokens
	if t.head != nil {
		in.Queue[i] += t.ahead(now, pace)
	}
	if i > 0 && in.Missing[i] == in.Missing[i-1] && s.held(i) == s.held(i-1) {
		in.Work[i] = in.Work[i-1] // mostly all but a few hold the same
	} else {
		in.Work[i] = s.work(i)
	}
	s.source[i] = t.source()
}

// fillCompared writes what only other routers' formulae go by.
func (s *selection) fillCompared(index *kvindex.Index) {
	in := &s.in
	from := s.place()
	for i, r := range s.rows {
		t := r.t
		in.Queued[i], in.Usage[i] = float64(t.pending)+t.external.now.Waiting, 0
		if t.asked {
			in.Usage[i] = t.scraped.Usage
			if t.scraped.Queued >= 0 {
				in.Queued[i] = t.scraped.Queued
			}
		}
		in.Held[i] = s.held(i)
		in.Stored[i] = float64(index.Blocks(t.in) * max(1, t.size))
		in.Draw[i] = draw(from, t.place)
	}
}

// place returns where the prompt's beginning is on the ring. Prompts without blocks
// have none and are spread.
func (s *selection) place() uint64 {
	for j := range s.lists {
		if b := &s.lists[j]; len(b.Hashes) > 0 {
			return b.Hashes[min(len(b.Hashes), max(1, scorer.RingTokens/b.Size))-1]
		}
	}
	return mix(*s.turns)
}

// draw returns how far the worker at one place is from a prompt at another: below 1,
// different for each prompt, and the same in every process. So each prompt has its own
// order of workers, and when one joins or leaves only its own share moves. (Thaler and
// Ravishankar, 1998: highest random weight. It bounds as a ring does, without points
// of its own for each worker.)
func draw(prompt, worker uint64) float64 {
	return float64(mix(prompt^worker)>>11) / (1 << 53)
}

// placeOf returns a target's place on the ring.
func placeOf(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails (hash.Hash)
	return h.Sum64()
}

// mix is SplitMix64's finalizer.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
