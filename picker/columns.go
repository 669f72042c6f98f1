package picker

import (
	"hash/fnv"

	"pointsman/kvindex"
	"pointsman/scorer"
)

// This file fills the columns that not every policy reads; see selection.fill for the
// others. A column that nobody reads is empty.

// fillHeld writes what each row is believed to hold, what a burst has used up
// included.
func (s *selection) fillHeld() {
	for i := range s.in.Held {
		s.in.Held[i] = s.held(i)
	}
}

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

// fillTimed writes what least-latency goes by.
func (s *selection) fillTimed() {
	in := &s.in
	if len(in.Queue) == 0 {
		return
	}
	te, ms := 0.0, 0.0
	for _, r := range s.rows {
		a, b := r.t.weight()
		te, ms = te+a, ms+b
	}
	in.FleetPace = s.latency.fleetPace(te, ms)
	for i, r := range s.rows {
		pace := r.t.pace(in.FleetPace)
		in.Pace[i] = pace
		in.Queue[i] = r.t.ahead(s.at, pace)
		in.Work[i] = s.work(i)
		s.source[i] = r.t.source()
	}
}

// fillCompared writes what only other routers' formulae go by.
func (s *selection) fillCompared(index *kvindex.Index) {
	in := &s.in
	if len(in.Draw) == 0 {
		return
	}
	from := s.place()
	for i, r := range s.rows {
		t := r.t
		in.Queued[i], in.Usage[i] = float64(t.pending)+t.external.now.Waiting, 0
		if t.asked {
			in.Queued[i], in.Usage[i] = t.scraped.Queued, t.scraped.Usage
		}
		in.Stored[i] = float64(index.Blocks(t.in) * max(1, t.size))
		in.Draw[i] = draw(from, t.place)
	}
}

// place returns where the prompt's beginning is on the ring. Prompts without blocks
// have none and are spread.
func (s *selection) place() uint64 {
	for j := range s.lists {
		if b := &s.lists[j]; len(b.Hashes) > 0 {
			return uint64(b.Hashes[min(len(b.Hashes), max(1, scorer.RingTokens/b.Size))-1])
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
