package reports

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Sink is told what reports come to. Its methods are called without a lock held,
// from whatever goroutine has brought a report, and must not block.
type Sink interface {
	// Others says what a worker's rank has in flight that is not this picker's.
	Others(worker string, rank int, o Other)
	// Sent says that another picker has sent a request to a worker.
	Sent(s *Sent, at time.Time)
	// Settled says that such a request has had its first token, or has ended, or moved,
	// without. The same may be told more than once.
	Settled(ref Ref, began bool, at time.Time)
	// First says that a request of this picker has had its first token.
	First(pick uint64, at time.Time)
	// Done says that a request of this picker has ended, or has left the worker that
	// was picked. The same may be told twice.
	Done(d *Done, at time.Time)
}

// Other is what is in flight on a worker's rank that is not this picker's.
type Other struct {
	Load
	Rate float64       // token-equivalents that the worker prefills in a millisecond; 0 unknown
	At   time.Time     // when it was so
	Beat time.Duration // it is said again within this
}

// A forwarder that is not heard for some of its heartbeats has gone, and with it
// what it had in flight.
const (
	lostBeats    = 3
	goneBeats    = 5
	pickerSilent = 10 * time.Second // after which a replica counts as gone
)

// prior is how much of the fleet's mean speed is mixed into a worker's own, in ms of
// service (findings, policy.md §3): of few samples one learns little.
const prior = 3000

// Board puts the reports of all forwarders together for one picker. Make it with
// [NewBoard].
type Board struct {
	me      string
	sink    Sink
	metrics *metrics

	mu      sync.Mutex
	sources map[string]*source
	workers map[key]*merged
	work    Work                 // of all workers together
	parts   int                  // what all sources say of workers, so many
	pickers map[string]time.Time // until when each is known to live
}

// Via is the way a report has come.
type Via uint8

// The ways.
const (
	ViaBroker Via = iota
	ViaHTTP
	vias
)

type source struct {
	seq     uint64
	at      time.Time
	beat    time.Duration
	workers map[key]*part
}

// part is what one source says of one worker.
type part struct {
	others, mine Load
	work         Work
	told         bool // by the report at hand
}

// merged is what all of them say.
type merged struct {
	part

	sources int
	at      time.Time
	via     [vias]time.Time // when it was last heard of by each way
	beat    time.Duration
}

// NewBoard returns an empty board of the picker me.
func NewBoard(me string, sink Sink) *Board {
	b := &Board{me: me, sink: sink, sources: map[string]*source{}, workers: map[key]*merged{}, pickers: map[string]time.Time{}}
	b.metrics = newMetrics(b)
	return b
}

// Me returns the picker's ID.
func (b *Board) Me() string { return b.me }

// change is what a report says anew of a worker.
type change struct {
	key
	Other
}

// Take puts a report, which is the caller's again afterwards, on the board. Reports
// that came before, by another way, are ignored.
func (b *Board) Take(now time.Time, via Via, r *Report) {
	b.mu.Lock()
	src := b.sources[r.Source]
	switch {
	case src == nil && len(b.sources) >= maxSources:
		b.mu.Unlock()
		b.metrics.excess.Inc()
		return
	case src == nil:
		src = &source{workers: map[key]*part{}}
		b.sources[r.Source] = src
	case r.Seq <= src.seq:
		b.heardBy(now, via, r)
		b.mu.Unlock()
		b.metrics.old.Inc()
		return
	case r.Seq != src.seq+1 && !r.Full:
		b.metrics.gaps.Inc()
	}
	src.seq, src.at, src.beat = r.Seq, now, r.Beat
	for _, id := range r.Pickers {
		b.alive(id, now.Add(max(pickerSilent, lostBeats*r.Beat)))
	}
	changes := b.merge(now, src, r)
	b.heardBy(now, via, r)
	b.mu.Unlock()
	b.metrics.taken.Inc()
	b.tell(now, r, changes)
}

// heardBy notes of which workers r speaks.
func (b *Board) heardBy(now time.Time, via Via, r *Report) {
	for i := range r.Workers {
		if m := b.workers[key{r.Workers[i].ID, r.Workers[i].Rank}]; m != nil {
			m.via[via] = now
		}
	}
}

// merge replaces what src has said before by what r says.
func (b *Board) merge(now time.Time, src *source, r *Report) []change {
	changes := make([]change, 0, len(r.Workers))
	for i := range r.Workers {
		w := &r.Workers[i]
		if src.workers[key{w.ID, w.Rank}] == nil && b.parts >= maxParts {
			b.metrics.excess.Inc()
			continue
		}
		mine := w.ByPicker[b.me]
		p := part{others: w.Total.plus(mine, -1), mine: mine, work: w.Work, told: true}
		changes = append(changes, b.put(now, src, key{w.ID, w.Rank}, p))
	}
	if r.Full {
		for k, p := range src.workers {
			if !p.told {
				changes = append(changes, b.put(now, src, k, part{}))
				b.drop(src, k)
			}
		}
	}
	for i := range r.Workers {
		if p := src.workers[key{r.Workers[i].ID, r.Workers[i].Rank}]; p != nil {
			p.told = false
		}
	}
	for i := range changes {
		changes[i].Rate = b.rate(changes[i].key)
	}
	return changes
}

// put makes p what src says of a worker.
func (b *Board) put(now time.Time, src *source, k key, p part) change {
	m := b.workers[k]
	if m == nil {
		m = &merged{}
		b.workers[k] = m
	}
	old := src.workers[k]
	if old == nil {
		old = &part{}
		src.workers[k] = old
		m.sources++
		b.parts++
	}
	b.swap(m, old, &p)
	*old = p
	m.at, m.beat = now, src.beat
	return change{key: k, Other: Other{Load: m.others, At: now, Beat: src.beat}}
}

func (b *Board) swap(m *merged, old, p *part) {
	m.others = m.others.plus(old.others, -1).plus(p.others, 1)
	m.mine = m.mine.plus(old.mine, -1).plus(p.mine, 1)
	for _, w := range [...]*Work{&m.work, &b.work} {
		w.Tokens = max(0, w.Tokens-old.work.Tokens+p.work.Tokens)
		w.Millis = max(0, w.Millis-old.work.Millis+p.work.Millis)
	}
}

// drop forgets what src says of a worker.
func (b *Board) drop(src *source, k key) {
	p, m := src.workers[k], b.workers[k]
	if p == nil || m == nil {
		return
	}
	b.swap(m, p, &part{})
	delete(src.workers, k)
	b.parts--
	if m.sources--; m.sources == 0 {
		delete(b.workers, k)
	}
}

// rate is the speed of a worker, 0 unknown. Between forwarders of one worker, and
// between a worker and the fleet, it is a quotient of sums.
func (b *Board) rate(k key) float64 {
	if b.work.Millis <= 0 || b.work.Tokens <= 0 {
		return 0
	}
	mean := b.work.Tokens / b.work.Millis
	m := b.workers[k]
	if m == nil {
		return mean
	}
	return (m.work.Tokens + prior*mean) / (m.work.Millis + prior)
}

func (b *Board) tell(now time.Time, r *Report, changes []change) {
	for i := range changes {
		c := &changes[i]
		b.sink.Others(c.id, c.rank, c.Other)
	}
	for i := range r.Sent {
		if r.Sent[i].Picker != b.me {
			b.sink.Sent(&r.Sent[i], now)
		}
	}
	for i := range r.First {
		if r.First[i].Picker == b.me {
			b.sink.First(r.First[i].Pick, now)
		} else {
			b.sink.Settled(r.First[i], true, now)
		}
	}
	for i := range r.Done {
		if r.Done[i].Picker == b.me {
			b.sink.Done(&r.Done[i], now)
		} else {
			b.sink.Settled(r.Done[i].Ref, false, now)
		}
	}
}

// Saw says that a picker, which may be this one, lives. It reports whether it had
// not been known to.
func (b *Board) Saw(picker string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.pickers[picker]
	b.alive(picker, now.Add(pickerSilent))
	return !known
}

// alive notes that a picker lives until then, with mu held.
func (b *Board) alive(picker string, then time.Time) {
	until, known := b.pickers[picker]
	if (known || len(b.pickers) < maxReplicas) && then.After(until) {
		b.pickers[picker] = then
	}
}

// Bounds of the memory that strangers could take.
const (
	maxReplicas = 1000
	maxSources  = 1 << 14
	maxParts    = 1 << 18 // workers, of all forwarders that each speaks for
)

// Replicas returns how many pickers live, this one included.
func (b *Board) Replicas(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 1
	for id, until := range b.pickers {
		if id != b.me && !now.After(until) {
			n++
		}
	}
	return n
}

// Mine returns how many of this picker's requests a worker's rank has, by the
// reports of all forwarders, and when that was last said; false when nobody says.
func (b *Board) Mine(worker string, rank int, now time.Time) (n int, at time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.workers[key{worker, rank}]
	if m == nil || now.Sub(m.at) > lostBeats*m.beat {
		return 0, time.Time{}, false
	}
	return m.mine.Requests, m.at, true
}

// Heard reports whether a forwarder speaks for a worker, by whatever way.
func (b *Board) Heard(worker string, now time.Time) bool {
	return b.heard(worker, func(m *merged) time.Time { return m.at }, now)
}

// HeardBy is the same of one way.
func (b *Board) HeardBy(via Via, worker string, now time.Time) bool {
	return b.heard(worker, func(m *merged) time.Time { return m.via[via] }, now)
}

// maxRanks is how many ranks of a worker are looked for.
const maxRanks = 64

func (b *Board) heard(worker string, at func(*merged) time.Time, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for rank := -1; rank < maxRanks; rank++ {
		m := b.workers[key{worker, rank}]
		if m != nil && now.Sub(at(m)) <= lostBeats*m.beat {
			return true
		}
		if m == nil && rank > 0 {
			break
		}
	}
	return false
}

// Sources returns how many forwarders are heard.
func (b *Board) Sources() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sources)
}

// Tick forgets forwarders and pickers that are not heard any more. What such a
// forwarder alone said of a worker is left to fade.
func (b *Board) Tick(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, src := range b.sources {
		if now.Sub(src.at) <= goneBeats*src.beat {
			continue
		}
		keys := make([]key, 0, len(src.workers))
		for k := range src.workers {
			keys = append(keys, k)
		}
		for _, k := range keys {
			b.drop(src, k)
		}
		delete(b.sources, id)
	}
	for id, until := range b.pickers {
		if now.After(until) {
			delete(b.pickers, id)
		}
	}
}

// Run calls Tick once a second, and then each of the given functions, until ctx is
// done.
func (b *Board) Run(ctx context.Context, then ...func(now time.Time)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			b.Tick(now)
			for _, f := range then {
				f(now)
			}
		}
	}
}

// Pickers returns the pickers that are known to live, in order, this one left out
// unless it was seen.
func (b *Board) Pickers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]string, 0, len(b.pickers))
	for id := range b.pickers {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}
