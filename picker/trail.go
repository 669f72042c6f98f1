package picker

import (
	"math/bits"
	"time"

	"pointsman/kvindex"
)

// MaxMarks is how many hashes a [Trail] has at most.
const MaxMarks = 8

// Trail is a prompt in a few of its blocks' hashes: those at powers of two, the deepest
// of them, and that of its last block. Hashes are chained, so each stands for all
// before it: who has a prompt that agrees at one of them knows that the two begin alike
// up to there. The zero Trail is no prompt.
type Trail struct {
	Size, Blocks int // tokens per block; full blocks of the prompt
	N            int // of Hashes
	Hashes       [MaxMarks]kvindex.Hash
}

// Foreign names another replica's pick; Pick is 0 where it has no number.
type Foreign struct {
	Picker string
	Pick   uint64
}

// leastMark is the shortest beginning, in tokens, that is worth a mark.
const leastMark = 64

// markAt returns the position of the i-th mark of a prompt, in blocks, from the last
// one backwards; 0 for none.
func markAt(blocks, size, i int) int {
	top := 1 << (bits.Len(uint(blocks)) - 1)
	if top != blocks {
		if i == 0 {
			return blocks
		}
		i--
	}
	if p := top >> i; p*size >= leastMark || p == 1 && size >= leastMark {
		return p
	}
	return 0
}

func trailOf(hs []kvindex.Hash, size int) (tr Trail) {
	if len(hs) == 0 || size <= 0 {
		return Trail{}
	}
	tr = Trail{Size: size, Blocks: len(hs)}
	for tr.N < MaxMarks {
		p := markAt(len(hs), size, tr.N)
		if p == 0 {
			break
		}
		tr.Hashes[tr.N] = hs[p-1]
		tr.N++
	}
	return tr
}

// Trail returns what other replicas may be told of the prompt that d has sent to its
// worker; the zero Trail when its cache will not have it, or d is done.
func (d *Decision) Trail() Trail {
	if d.rec == nil {
		return Trail{}
	}
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.rec.gen != d.gen || d.rec.n == 0 || !d.rec.legs[0].told {
		return Trail{}
	}
	n := d.rec.legs[0].node
	return trailOf(n.hashes, n.size)
}

// Bounds of what is kept of others' picks.
const (
	maxTrails   = 4096
	trailTTL    = 30 * time.Second // without a first token
	namelessTTL = 5 * time.Second  // of a pick that nothing more will be heard of
	presentTTL  = 10 * time.Minute // after the first token, on a worker without events
	nearest     = 64               // trails of one mark that a pick looks at
)

// trails is what other replicas have sent where: prompts that are about to be in
// workers' caches, of which no event tells yet. The picker's mutex guards it.
type trails struct {
	all   []foreign // a ring: the oldest goes first
	next  int
	live  int
	marks map[kvindex.Hash][]uint32 // places in all, the newest last
	refs  map[Foreign]uint32
	stamp uint64
}

type foreign struct {
	Trail
	t     *target // nil for none
	ref   Foreign
	until int64 // Unix ns
}

// foretold is how many leading blocks of the prompt at hand others have sent a target.
type foretold struct {
	stamp       uint64
	size, depth int
}

// Foretell says that another replica has sent a prompt to a worker's rank (-1 for a
// worker without ranks), whose cache counts as having it soon: until [Picker.Settled],
// or for 30 s. What the fleet does not have is ignored, and false returned.
func (p *Picker) Foretell(workerID string, rank int, ref Foreign, tr Trail, now time.Time) bool {
	if tr.N < 1 || tr.N > MaxMarks || tr.Blocks < 1 || tr.Size < 1 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.sync().ids[workerID] {
		if r.Rank == rank || rank < 0 && r.Rank <= 0 {
			p.trails.add(foreign{Trail: tr, t: r.t, ref: ref}, now)
			return true
		}
	}
	return false
}

// Settled says that another replica's pick has had its first token, or has ended
// without. Where events tell of caches, they do from then on; elsewhere a prompt that
// has begun counts as there for ten minutes, as a pick of this replica would, among
// the last 4,096.
func (p *Picker) Settled(ref Foreign, began bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.trails
	at, ok := s.refs[ref]
	if !ok {
		return
	}
	delete(s.refs, ref)
	f := &s.all[at]
	if f.ref = (Foreign{}); !began || f.t.mode == kvindex.Exact || f.t.gone {
		s.drop(at)
		return
	}
	f.until = now.Add(presentTTL).UnixNano()
}

func (s *trails) add(f foreign, now time.Time) (at uint32) {
	if s.marks == nil {
		s.all = make([]foreign, maxTrails)
		s.marks, s.refs = map[kvindex.Hash][]uint32{}, map[Foreign]uint32{}
	}
	at = uint32(s.next) //nolint:gosec // below maxTrails
	s.next = (s.next + 1) % maxTrails
	s.drop(at)
	f.until = now.Add(namelessTTL).UnixNano()
	if f.ref.Pick != 0 {
		f.until = now.Add(trailTTL).UnixNano()
		s.refs[f.ref] = at
	}
	s.all[at] = f
	s.live++
	for _, h := range f.Hashes[:f.N] {
		s.marks[h] = append(s.marks[h], at)
	}
	return at
}

func (s *trails) drop(at uint32) {
	f := &s.all[at]
	if f.t == nil {
		return
	}
	for _, h := range f.Hashes[:f.N] {
		list := s.marks[h]
		for i, other := range list {
			if other == at {
				list = append(list[:i], list[i+1:]...)
				break
			}
		}
		if len(list) == 0 {
			delete(s.marks, h)
		} else {
			s.marks[h] = list
		}
	}
	if s.refs[f.ref] == at && f.ref.Pick != 0 {
		delete(s.refs, f.ref)
	}
	*f = foreign{}
	s.live--
}

// expire drops what is over at now, and what was sent to departed workers.
func (s *trails) expire(now time.Time) {
	if s.live == 0 {
		return
	}
	for at := range s.all {
		if f := &s.all[at]; f.t != nil && (f.until <= now.UnixNano() || f.t.gone) {
			s.drop(uint32(at))
		}
	}
}

// begin starts a pick: no target has been told of its prompt.
func (s *trails) begin() { s.stamp++ }

// find notes on the targets how much of a prompt others have sent them.
func (s *trails) find(b *kvindex.Blocks) {
	if s.live == 0 || len(b.Hashes) == 0 || b.Size <= 0 {
		return
	}
	for i := 0; ; i++ {
		p := markAt(len(b.Hashes), b.Size, i)
		if p == 0 {
			return
		}
		list := s.marks[b.Hashes[p-1]]
		for _, at := range list[max(0, len(list)-nearest):] {
			f := &s.all[at]
			depth := p
			if f.Size != b.Size {
				continue
			}
			if f.Blocks > p && f.Blocks <= len(b.Hashes) && f.Hashes[0] == b.Hashes[f.Blocks-1] {
				depth = f.Blocks
			}
			if t := f.t; t.foretold.stamp != s.stamp || t.foretold.size != b.Size || t.foretold.depth < depth {
				t.foretold = foretold{s.stamp, b.Size, depth}
			}
		}
	}
}

// depth returns what find has noted on t of blocks of a size.
func (s *trails) depth(t *target, size int) int {
	if t.foretold.stamp != s.stamp || t.foretold.size != size {
		return 0
	}
	return t.foretold.depth
}
