//nolint:gosec // G115: ids, lengths and halves of words are packed; see tree.go for how far each goes
package kvindex

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const never = math.MaxInt64

// Index is the prefix index of a fleet. See the package comment for its rules
// and for what may be called when.
type Index struct {
	cfg     Config
	table   atomic.Pointer[[]*target] // by slot; nil where none is; copied to change
	nextDue atomic.Int64              // unix nanoseconds of the first prediction to end
	clock   atomic.Int64              // the latest now that was given, unix nanoseconds
	counts  counters

	mu    sync.Mutex // guards all below; taken after a target's own lock
	byKey map[string]*target
	slots []*target // by slot: the last target of it, forgotten or not
	tree  tree
}

// New returns an empty index. Fields of cfg that are not positive get their
// defaults; use [Config.Validate] to refuse them.
func New(cfg Config) *Index {
	x := &Index{cfg: cfg.withDefaults(), byKey: map[string]*target{}}
	x.table.Store(&[]*target{})
	x.nextDue.Store(never)
	x.tree.init()
	return x
}

// target is what is kept of one target. Its holdings are 2*slot, exact, and
// 2*slot+1, predicted.
type target struct {
	key string
	in  Instance

	// Read without a lock; see [Index.Mode].
	blockSize atomic.Int64
	connected atomic.Bool
	inStep    atomic.Bool  // a batch was applied and no gap is open
	partial   atomic.Bool  // blocks may be missing from the view
	resync    atomic.Bool  // a replay from the start might complete it
	silent    atomic.Int64 // since when a first token waits for its events, unix ns; 0 for not
	guessedTo atomic.Int64 // no prediction lasts longer, unix ns
	blocks    atomic.Int64 // blocks of the exact view
	predicted atomic.Int64 // blocks of the predicted view, per run the deepest
	counts    targetCounters

	feed   sync.Mutex // guards the exact view and what follows; held across a whole batch
	engine engineMap
	extra  map[uint32]uint32 // ref -> engine hashes beyond the first; nil for none
	tiers  map[uint64]Tier   // engine hash -> tiers, where not Device alone; nil for none
	seq    sequence
	applier

	gone   bool   // guarded by Index.mu: forgotten
	recent recent // guarded by Index.mu
}

func (t *target) exactHolding() uint32     { return uint32(t.in.slot()) * 2 }
func (t *target) predictedHolding() uint32 { return uint32(t.in.slot())*2 + 1 }

// Instance returns the id of the target with the given key (a worker's ID, or
// ID#dpRANK), and starts to keep it if it is new.
func (x *Index) Instance(key string) Instance {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.keep(key).in
}

// keep returns the key's target, a new one if there is none.
func (x *Index) keep(key string) *target {
	if t := x.byKey[key]; t != nil {
		return t
	}
	t := &target{key: key}
	if n := len(x.tree.freeSlots); n > 0 {
		slot := x.tree.freeSlots[0] // the one unused for longest
		x.tree.freeSlots = x.tree.freeSlots[1:]
		uses := uint32(x.slots[slot].in)>>slotBits + 1
		t.in = Instance(uses<<slotBits | slot)
		x.slots[slot] = t
	} else {
		t.in = Instance(len(x.slots))
		x.slots = append(x.slots, t)
	}
	x.byKey[key] = t
	x.publishTable(t.in.slot(), t)
	return t
}

func (x *Index) publishTable(slot int, t *target) {
	next := slices.Clone(*x.table.Load())
	for len(next) <= slot {
		next = append(next, nil)
	}
	next[slot] = t
	x.table.Store(&next)
}

// lookupTarget returns the instance's target without a lock, nil for none.
func (x *Index) lookupTarget(in Instance) *target {
	table := *x.table.Load()
	if i := in.slot(); i < len(table) && table[i] != nil && table[i].in == in {
		return table[i]
	}
	return nil
}

// target is lookupTarget for holders of x.mu.
func (x *Index) target(in Instance) *target {
	if t := x.lookupTarget(in); t != nil && !t.gone {
		return t
	}
	return nil
}

// Forget drops all that is known of a target. Its instance is worthless from
// then on; a target that comes back under the same key gets a new one.
func (x *Index) Forget(key string) {
	x.mu.Lock()
	t := x.byKey[key]
	if t == nil {
		x.mu.Unlock()
		return
	}
	delete(x.byKey, key)
	t.gone = true
	x.publishTable(t.in.slot(), nil)
	x.mu.Unlock()

	t.feed.Lock()
	defer t.feed.Unlock()
	x.sweep(t)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tree.retire(retiredInstance, uint32(t.in.slot()), 0)
	x.tree.collect()
}

// BlockSize returns the block size in tokens that a target's events have shown;
// 0 when none has, or the instance is not known.
func (x *Index) BlockSize(in Instance) int {
	if t := x.lookupTarget(in); t != nil {
		return int(t.blockSize.Load())
	}
	return 0
}

// Blocks returns how many blocks a target is believed to hold, by its events or by
// predictions, whichever view has more; 0 when the instance is not known. It takes no
// lock.
func (x *Index) Blocks(in Instance) int {
	if t := x.lookupTarget(in); t != nil {
		return int(max(t.blocks.Load(), t.predicted.Load(), 0))
	}
	return 0
}

// Held returns how many blocks the events of the target with the given key say
// that it holds; 0 for a target that is not kept.
func (x *Index) Held(key string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.byKey[key]; t != nil {
		return int(t.blocks.Load())
	}
	return 0
}

// Mode returns how much is known of a target at now: [Exact] while its feed is
// connected, has delivered, has no open gap and tells of what first tokens prove
// (Config.SilentAfter); else [Predicted] while something is predicted of it, or
// blocks are still counted on of which its events told before; else [None].
func (x *Index) Mode(in Instance, now time.Time) Mode {
	t := x.lookupTarget(in)
	if t == nil {
		return None
	}
	return x.mode(t, now.UnixNano())
}

func (x *Index) mode(t *target, now int64) Mode {
	if t.connected.Load() && t.inStep.Load() {
		since := t.silent.Load()
		if since == 0 || now-since <= int64(x.cfg.SilentAfter) {
			return Exact
		}
	}
	if t.blocks.Load() > 0 || t.predicted.Load() > 0 && t.guessedTo.Load() > now {
		return Predicted
	}
	return None
}

// watchSilence notes that a target has blocks that its events should tell of.
func (x *Index) watchSilence(t *target, hs []Hash, now int64) {
	if t.silent.Load() == 0 && t.inStep.Load() && x.tree.heldBy(t.exactHolding(), hs) < len(hs) {
		t.silent.Store(now)
	}
}

// heldBy returns how many leading blocks of hs one holding holds.
func (t *tree) heldBy(holding uint32, hs []Hash) int {
	pos := 0
	for pos < len(hs) {
		id := t.find(hs[pos])
		if id == 0 {
			break
		}
		r := t.run(id)
		w0 := r.w0.Load()
		m := match(t.arena.words(baseOf(w0), lenOf(w0)), hs[pos:])
		_, rec := findRecord(t.records(r), holding)
		pos += min(m, rec.depth())
		if rec.depth() < m {
			break
		}
	}
	return pos
}
