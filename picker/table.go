package picker

import (
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"pointsman/fleet"
	"pointsman/kvindex"
)

// table is the candidates of one snapshot. It never changes, but for sizes.
type table struct {
	snap   *fleet.Snapshot
	rows   []*row
	models map[string]*pool
	all    *pool
	keys   map[string]*row   // by target key
	ids    map[string][]*row // by worker ID
	ends   map[string][]*row // by endpoint: host:port and bare host
	class  map[pairing]int   // by what two legs must have in common
}

// pairing is what makes two workers a pair: they speak one protocol about one
// model (Infera defect P8).
type pairing struct{ model, protocol string }

// row is one target in one snapshot.
type row struct {
	fleet.Target
	t     *target
	n     int // index in table.rows
	class int // in table.class; -1 for a worker that no pair can have
}

// pool is the targets of one name that requests ask for: a model, an alias of
// one, or an adapter.
type pool struct {
	model   string
	cand    []*row                // active and mixed: what an ordinary request may go to
	rest    []*row                // the others
	prefill []*row                // of these, the active ones of role prefill
	decode  []*row                // and of role decode
	pairs   bool                  // some of them can be paired
	sizes   atomic.Pointer[[]int] // distinct block sizes of active targets
	unit    float64               // tokens that stand for one block: the largest size
}

// candidates are the rows that an ordinary request may go to.
func (pl *pool) candidates(req *Request) []*row {
	switch {
	case len(pl.cand) > 0 || !req.AnyRole:
		return pl.cand
	case len(pl.decode) > 0:
		return pl.decode
	}
	return pl.prefill
}

// String names the pool in errors.
func (pl *pool) String() string {
	if pl.model == "" {
		return "any model"
	}
	return "model " + strconv.Quote(pl.model)
}

// defaultUnit is the block size assumed where none is known: vLLM's.
const defaultUnit = 16

// sync returns the table of the store's present snapshot, with mu held.
func (p *Picker) sync() *table {
	snap := p.store.Snapshot()
	old := p.tab.Load()
	if old != nil && old.snap == snap && !p.stale {
		return old
	}
	p.stale = false
	joining := old != nil && len(old.rows) > 0 // not so when this process is what has joined
	tab := &table{
		snap:   snap,
		models: make(map[string]*pool),
		all:    new(pool),
		keys:   make(map[string]*row, len(snap.Workers)),
		ids:    make(map[string][]*row, len(snap.Workers)),
		ends:   make(map[string][]*row, 2*len(snap.Workers)),
		class:  make(map[pairing]int),
	}
	var targets []fleet.Target
	for _, w := range snap.Workers {
		targets = w.Targets(targets[:0])
		p.meet(w.ID, joining)
		for _, tg := range targets {
			tab.add(&row{Target: tg, t: p.arrive(tg), class: p.classOf(tab, tg.Worker)}, p.cfg.DestinationPort)
		}
	}
	for _, pl := range tab.models {
		pl.pairs = pairable(pl, len(tab.class))
	}
	for key, t := range p.targets {
		if tab.keys[key] == nil {
			p.depart(key, t)
		}
	}
	p.breakers.Retain(func(id string) bool { return tab.ids[id] != nil })
	p.part(tab)
	p.suspectNew(tab)
	p.readSizes(tab)
	p.refreshed = time.Time{} // the next pick reads the modes, for it knows the time
	p.tab.Store(tab)
	return tab
}

func (tab *table) add(r *row, port int) {
	r.n = len(tab.rows)
	tab.rows = append(tab.rows, r)
	tab.keys[r.Key] = r
	tab.ids[r.Worker.ID] = append(tab.ids[r.Worker.ID], r)
	for _, name := range r.Worker.Names(nil) {
		pl := tab.models[name]
		if pl == nil {
			pl = &pool{model: name}
			tab.models[name] = pl
		}
		pl.add(r)
	}
	tab.all.add(r)
	dest := r.Worker.Destination(port)
	tab.ends[dest] = append(tab.ends[dest], r)
	if host, _, err := net.SplitHostPort(dest); err == nil {
		tab.ends[host] = append(tab.ends[host], r)
		if bare := "[" + host + "]"; net.ParseIP(host) != nil && net.ParseIP(host).To4() == nil {
			tab.ends[bare] = append(tab.ends[bare], r)
		}
	}
}

func (pl *pool) add(r *row) {
	if r.Worker.Status == fleet.Active {
		switch r.Worker.Role {
		case fleet.Mixed:
			pl.cand = append(pl.cand, r)
			return
		case fleet.Prefill:
			pl.prefill = append(pl.prefill, r)
		case fleet.Decode:
			pl.decode = append(pl.decode, r)
		}
	}
	pl.rest = append(pl.rest, r)
}

// arrive returns what is remembered of a target, or a new memory.
func (p *Picker) arrive(tg fleet.Target) *target {
	t := p.targets[tg.Key]
	role := tg.Worker.Role.String()
	switch {
	case t == nil:
		t = &target{key: tg.Key, gone: true, host: p.hosts[tg.Worker.ID], place: placeOf(tg.Key)}
		p.targets[tg.Key] = t
		fallthrough
	case t.gone:
		t.gone = false
		t.in = p.index.Instance(tg.Key)
		t.circuit = p.breakers.Circuit(tg.Worker.ID)
		t.host = p.hosts[tg.Worker.ID]
	}
	t.restarted(p.index, tg.Worker)
	if t.role != role {
		if t.picks != nil {
			p.metrics.forgetTarget(t)
		}
		t.role = role
		t.picks = p.metrics.pickCounter(t)
	}
	return t
}

// restarted forgets what t's worker had cached when the worker is a new process.
// Requests in flight stay: they end on their own. A worker with a publisher has a
// feed that resets the index; resetting it here too could drop newer events.
func (t *target) restarted(index *kvindex.Index, w *fleet.Worker) {
	old := t.incarnation
	t.incarnation = w.Incarnation
	if old == "" || w.Incarnation == "" || old == w.Incarnation {
		return
	}
	t.images.clear()
	t.host.untried = true
	if w.KVEvents == "" {
		index.Forget(t.key)
		t.in = index.Instance(t.key)
	}
}

// depart forgets a target that is no longer in the fleet. Requests in flight on
// it keep their ledger: should it come back, they are still its load.
func (p *Picker) depart(key string, t *target) {
	if !t.gone {
		t.gone = true
		p.index.Forget(key)
		p.metrics.forgetTarget(t)
		t.recent, t.turn, t.role, t.picks, t.size = 0, 0, "", nil, 0
		t.countExternal(0)
		t.external = external{}
		t.images.clear()
	}
	if t.requests == 0 {
		delete(p.targets, key)
	}
}

// refreshEvery bounds how old the block sizes and modes are that a pick works
// with. Reading them for each candidate of each pick would cost more than the
// scoring.
const refreshEvery = 250 * time.Millisecond

// refresh reads block sizes and modes when they are old, with mu held.
func (p *Picker) refresh(now time.Time) {
	if d := now.Sub(p.refreshed); d >= 0 && d < refreshEvery {
		return
	}
	if !p.refreshed.IsZero() {
		p.fadeRates(now.Sub(p.refreshed))
	}
	p.refreshed = now
	tab := p.tab.Load()
	for _, r := range tab.rows {
		r.t.mode = p.index.Mode(r.t.in, now)
	}
	p.visit(now)
	p.fadeExternal(now)
	p.dropScraped(now)
	p.trails.expire(now)
	p.suppose(now)
	p.readSizes(tab)
}

// readSizes sets the block size of every target, and what follows from it.
func (p *Picker) readSizes(tab *table) {
	changed := false
	for _, r := range tab.rows {
		size := p.index.BlockSize(r.t.in)
		if size <= 0 {
			size = max(0, r.Worker.BlockSize)
		}
		changed = changed || size != r.t.size
		r.t.size = size
	}
	if !changed && tab.all.sizes.Load() != nil {
		return
	}
	tab.all.setSizes()
	for _, pl := range tab.models {
		pl.setSizes()
	}
}

func (pl *pool) setSizes() {
	sizes := []int{}
	collect := func(rows []*row) {
		for _, r := range rows {
			if r.t.size > 0 && r.Worker.Status == fleet.Active {
				sizes = append(sizes, r.t.size)
			}
		}
	}
	collect(pl.cand)
	collect(pl.rest)
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	pl.sizes.Store(&sizes)
	pl.unit = defaultUnit
	if len(sizes) > 0 {
		pl.unit = float64(sizes[len(sizes)-1])
	}
}

// listFor returns which of the request's block lists is of the given size, or -1.
func listFor(lists []kvindex.Blocks, approx bool, size int) int {
	if approx && len(lists) > 0 {
		return 0
	}
	for j := range lists {
		if size > 0 && lists[j].Size == size {
			return j
		}
	}
	return -1
}
