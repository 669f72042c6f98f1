package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Gate admits requests: at once, after a wait in its queue, or not. Make it with
// [NewGate].
type Gate struct {
	wakes   atomic.Uint64 // calls of Wake
	waiters atomic.Int64  // requests in the queue, for Wake to look at without the lock
	mode    atomic.Uint32

	mu       sync.Mutex
	cfg      Config
	limit    int // units that may run now; 0 no limit
	used     int // units running, as far as the ceiling is concerned
	open     int // units running in truth: observed requests too that Enforce would hold back
	requests int // requests that these belong to
	seq      uint64
	queue    queue
	blocked  map[string]bool // keys whose workers were full when last asked
	tenants  tenants
	freed    int       // observed units given back that let a ghost take a worker
	ghosts   int       // in the queue
	ghostEnd time.Time // when the first of them has waited for as long as it may
	woken    uint64    // wakes seen to
	draining bool
	oldest   *Request // of the open ones
	newest   *Request
	meanWait time.Duration
	adapt    adaptive
	swept    time.Time
	metrics  *metrics
	roles    func() []RoleLoad // nil for none
	clock    func() time.Time
}

// NewGate returns a gate with a valid configuration; see [Config.Validate].
func NewGate(cfg Config) *Gate {
	return NewGateAt(cfg, time.Now)
}

// NewGateAt is [NewGate] for a gate that lives in another time: clock says what time
// it is, for a replay the virtual one. Such a gate is asked with [Gate.Offer].
func NewGateAt(cfg Config, clock func() time.Time) *Gate {
	g := &Gate{blocked: map[string]bool{}, metrics: newMetrics(), clock: clock}
	g.configure(cfg)
	return g
}

func (g *Gate) configure(cfg Config) {
	before := g.cfg.ceiling()
	g.cfg = cfg
	g.mode.Store(uint32(cfg.Mode))
	g.adapt.configure(&g.cfg, before)
	g.limit = g.adapt.limit
}

// SetConfig puts another configuration in force, for requests that come later.
// Those that wait keep their deadline; where there is more room than before,
// the first of them go at once. An invalid configuration changes nothing.
func (g *Gate) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	g.mu.Lock()
	defer g.unlock()
	cfg.live = g.cfg.live
	g.configure(cfg)
	clear(g.blocked)
	g.dispatch(g.clock())
	return nil
}

// SetReplicas says how many programs like this one live, itself included: the
// ceiling is divided among them where [Config].Replicas is 0.
func (g *Gate) SetReplicas(n int) {
	g.mu.Lock()
	defer g.unlock()
	if n = max(n, 1); n == max(g.cfg.live, 1) {
		return
	}
	cfg := g.cfg
	cfg.live = n
	g.configure(cfg)
	clear(g.blocked)
	g.dispatch(time.Now())
}

// Mode returns the mode in force. It takes no lock.
func (g *Gate) Mode() Mode { return Mode(g.mode.Load()) } //nolint:gosec // stored from a Mode

// Enter admits r, at once or after a wait, and picks its worker by r.Pick. It
// returns a *[Refusal] when r is not admitted, the cause of ctx when that ends
// while r waits, and an error of Pick that is no ErrFull as it is. The pass is
// valid when the error is nil.
func (g *Gate) Enter(ctx context.Context, r *Request) (Pass, error) {
	err := g.offer(r)
	if errors.Is(err, errParked) {
		if r.OnPark != nil {
			r.OnPark()
		}
		err = g.wait(ctx, r)
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	if err != nil {
		return Pass{}, err
	}
	return Pass{g, r, r.gen}, nil
}

// offer admits r, refuses it, or puts it into the queue: errParked.
func (g *Gate) offer(r *Request) error {
	now := g.clock()
	mode := g.Mode()
	if mode != Enforce {
		return g.pass(now, r, mode)
	}
	g.mu.Lock()
	defer g.unlock()
	return g.arrive(now, r)
}

// Offer is [Gate.Enter] for a caller that must not block, because its clock stands
// still while it does: a replay. A request that has to wait is parked; it is admitted
// when r.Pick is called and returns nil, or it leaves by [Gate.GiveUp]. The pass is
// valid from then on.
func (g *Gate) Offer(r *Request) (p Pass, parked bool, err error) {
	err = g.offer(r)
	if errors.Is(err, errParked) {
		return Pass{g, r, r.gen}, true, nil
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	if err != nil {
		return Pass{}, false, err
	}
	return Pass{g, r, r.gen}, false, nil
}

// GiveUp ends the wait of a request that [Gate.Offer] parked, because its time is
// up: it returns the *[Refusal] that [Gate.Enter] would have, or nil when the request
// waits no more.
func (g *Gate) GiveUp(p Pass) error {
	g.mu.Lock()
	waits := p.r.gen == p.gen && p.r.state == waiting && !p.r.ghost
	g.unlock()
	if !waits {
		return nil
	}
	return g.leave(p.r, reasonQueueTimeout, nil)
}

// errParked says that a request has to wait.
var errParked = errors.New("parked")

// Bypass counts a request that needs no admission.
func (g *Gate) Bypass() { g.metrics.decide(reasonBypass) }

// pass admits r without waiting. In mode Observe it counts what would have been.
func (g *Gate) pass(now time.Time, r *Request, mode Mode) error {
	if err := g.fresh(now, r); err != nil {
		return err
	}
	err := g.pick(now, r)
	switch {
	case errors.Is(err, ErrFull):
		g.metrics.decide(reasonShed)
		return refusal(reasonShed, shortRetry)
	case err != nil && !errors.Is(err, ErrOverCap):
		return g.failed(err)
	}
	g.mu.Lock()
	defer g.unlock()
	g.opened(now, r)
	if mode == Off {
		g.metrics.decide(reasonAdmitted)
		g.take(r)
		return nil
	}
	r.ghost, r.overCap = true, err != nil
	g.expire(now)
	g.slot(r)
	switch why := g.place(now, r); {
	case r.state == active:
		g.metrics.decide(reasonAdmitted)
	case why == nil:
		g.metrics.decide(reasonWouldQueue)
	default:
		r.state = ended
		g.metrics.decide(reasonWouldShed)
	}
	return nil
}

// fresh makes r a new request, unless the gate drains.
func (g *Gate) fresh(now time.Time, r *Request) error {
	g.mu.Lock()
	defer g.unlock()
	return g.begin(now, r)
}

func (g *Gate) begin(now time.Time, r *Request) error {
	if g.draining {
		g.metrics.decide(reasonDraining)
		return refusal(reasonDraining, drainRetry)
	}
	g.seq++
	r.gen++
	r.seq, r.arrived = g.seq, now
	r.state, r.holding, r.ghost, r.overCap, r.open, r.reported = absent, false, false, false, false, false
	r.slot, r.deadline, r.queued, r.err, r.panicked, r.done = nil, time.Time{}, 0, nil, nil, nil
	r.patience = g.cfg.QueueWait
	return nil
}

// arrive is Enter in mode Enforce, up to the wait.
func (g *Gate) arrive(now time.Time, r *Request) error {
	if err := g.begin(now, r); err != nil {
		return err
	}
	if g.queue.n == 0 {
		g.woken = g.wakes.Load() // nobody waits for what was told until now
	}
	g.expire(now)
	g.slot(r)
	if why := g.place(now, r); why != nil {
		g.unslot(r)
		g.metrics.decide(why.reason)
		return why
	}
	switch r.state {
	case active:
		g.metrics.decide(reasonAdmitted)
		return nil
	case ended:
		return r.err
	case absent, waiting:
	}
	g.metrics.decide(reasonQueued)
	r.done = make(chan struct{}, 1)
	return errParked
}

// place admits r, or puts it into the queue, or returns why neither can be.
func (g *Gate) place(now time.Time, r *Request) *Refusal {
	if top := g.cfg.ceiling(); top > 0 && r.Units > top {
		return oversized(r.Units, top)
	}
	r.lane = laneNone
	g.enqueue(r)
	g.dispatch(now)
	if r.state != waiting {
		return nil
	}
	g.dequeue(r)
	if why := g.room(r); why != nil {
		return why
	}
	r.deadline = now.Add(r.patience)
	g.enqueue(r)
	return nil
}

// room finds r's lane in the queue, throwing out a sheddable request if need be,
// or returns why r may not wait.
func (g *Gate) room(r *Request) *Refusal {
	c, q := &g.cfg, &g.queue
	why := g.holds(r)
	r.lane = lanePool
	if why == heldByWorkers && c.WorkerQueueDepth > 0 {
		places := 1
		if r.Places != nil {
			places = max(1, r.Places())
		}
		if q.parked[r.Key] < places*c.WorkerQueueDepth {
			r.lane = laneWorker
		}
	}
	full := r.lane == lanePool && q.lanes[lanePool] >= c.QueueDepth
	var victim *Request
	if full {
		victim = q.sheddable(r.Priority, lanePool)
	}
	switch {
	case full && victim == nil && why == heldByTenant:
		return refusal(reasonTenant, g.meanWait)
	case full && victim == nil && c.QueueDepth == 0 && (why != heldByWorkers || c.WorkerQueueDepth == 0):
		return refusal(reasonShed, shortRetry)
	case full && victim == nil:
		return refusal(reasonQueueFull, g.meanWait)
	case r.slot != nil && r.lane == lanePool && r.slot.queued >= share(c.QueueDepth, c.TenantSharePct) && (victim == nil || victim.slot != r.slot):
		return refusal(reasonTenant, g.meanWait)
	case c.QueueBytes > 0 && q.bytes+r.Bytes > c.QueueBytes && (victim == nil || q.bytes-victim.Bytes+r.Bytes > c.QueueBytes):
		return refusal(reasonMemory, shortRetry)
	}
	if victim != nil {
		g.dequeue(victim)
		g.end(victim, reasonQueueFull, refusal(reasonQueueFull, g.meanWait))
	}
	return nil
}

// holder is what a waiting request waits for.
type holder uint8

const (
	heldByCeiling holder = iota
	heldByTenant
	heldByWorkers
)

func (g *Gate) holds(r *Request) holder {
	switch {
	case !g.fits(r):
		return heldByCeiling
	case g.overShare(r):
		return heldByTenant
	}
	return heldByWorkers
}

// fits reports whether the ceiling has room for r. A request of more units than
// a ceiling that was lowered goes when nothing else runs: it would never go else.
func (g *Gate) fits(r *Request) bool {
	return r.holding || r.Units == 0 || g.limit == 0 || g.used+r.Units <= g.limit || g.used == 0 || g.Mode() == Off
}

// overShare reports whether r's tenant has all that one may.
func (g *Gate) overShare(r *Request) bool {
	if r.slot == nil || r.holding || g.limit == 0 || g.cfg.TenantSharePct == 0 {
		return false
	}
	return r.slot.used > 0 && r.slot.used+r.Units > share(g.limit, g.cfg.TenantSharePct)
}

// dispatch admits those who wait, in order, as far as there is room. The ceiling
// holds back everyone behind the first that does not fit, full workers hold back
// those of the same key, and a tenant's share its own requests.
func (g *Gate) dispatch(now time.Time) {
	for r := g.queue.first(); r != nil; {
		if len(g.blocked) > 0 && g.allBlocked() {
			break
		}
		next := g.queue.after(r)
		switch {
		case !g.fits(r):
			if g.queue.lanes[laneNone] == 0 {
				g.freed = 0
				return
			}
			next = g.nextHolding(r) // these take nothing more of the ceiling
		case g.blocked[r.Key], g.overShare(r):
		default:
			g.try(now, r)
		}
		r = next
	}
	g.freed = 0
}

// nextHolding returns the first behind r that takes nothing of the ceiling.
func (g *Gate) nextHolding(r *Request) *Request {
	for r = g.queue.after(r); r != nil && !r.holding && r.Units > 0; r = g.queue.after(r) {
	}
	return r
}

func (g *Gate) allBlocked() bool {
	if len(g.blocked) < len(g.queue.keys) {
		return false
	}
	for key := range g.queue.keys {
		if !g.blocked[key] {
			return false
		}
	}
	return true
}

// try asks for r's worker.
func (g *Gate) try(now time.Time, r *Request) {
	if r.ghost {
		if r.overCap {
			if g.freed == 0 {
				g.blocked[r.Key] = true
				return
			}
			g.freed--
		}
		g.dequeue(r)
		g.take(r)
		return
	}
	err := g.pick(now, r)
	switch {
	case errors.Is(err, ErrFull):
		g.blocked[r.Key] = true
		return
	case err == nil, errors.Is(err, ErrOverCap):
		g.grant(now, r)
	default:
		parked := !r.deadline.IsZero()
		g.dequeue(r)
		if err = g.failed(err); parked && errors.Is(err, ErrNoCapacity) {
			err = refusal(reasonNoCapacity, shortRetry)
		}
		g.end(r, reasonNone, err)
	}
}

// failed counts why a pick failed.
func (g *Gate) failed(err error) error {
	if errors.Is(err, ErrNoCapacity) {
		g.metrics.decide(reasonNoCapacity)
	}
	return err
}

// pick calls r.Pick. A panic is kept for r's own goroutine.
func (g *Gate) pick(now time.Time, r *Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.panicked = fmt.Errorf("pick: %v\n%s", p, debug.Stack())
			err = errPanicked
		}
	}()
	return r.Pick(now)
}

var errPanicked = errors.New("the pick panicked")

// grant ends r's wait well.
func (g *Gate) grant(now time.Time, r *Request) {
	g.dequeue(r)
	if r.holding {
		r.state = active
	} else {
		g.opened(now, r)
		g.take(r)
	}
	if !r.deadline.IsZero() && r.done != nil {
		g.waited(now, r)
		if !r.holding {
			g.metrics.decide(reasonAdmitted)
		}
		r.done <- struct{}{}
	}
	r.holding = false
}

// waited notes how long r was in the queue.
func (g *Gate) waited(now time.Time, r *Request) {
	d := max(0, now.Sub(r.arrived))
	r.queued += d
	g.metrics.wait.Observe(d.Seconds())
	if g.meanWait == 0 {
		g.meanWait = d
	}
	g.meanWait += (d - g.meanWait) / 8
}

// end ends r's wait badly.
func (g *Gate) end(r *Request, why reason, err error) {
	if r.ghost {
		r.state = ended
		g.metrics.decide(reasonWouldShed)
		g.unslot(r)
		return
	}
	if why != reasonNone {
		g.metrics.decide(why)
	}
	r.err = err
	if r.holding {
		r.state, r.holding = active, false
	} else {
		r.state = ended
		g.unslot(r)
	}
	if r.done != nil {
		r.done <- struct{}{}
	}
}

// enqueue puts r into the queue.
func (g *Gate) enqueue(r *Request) {
	r.state = waiting
	g.queue.add(r)
	g.waiters.Add(1)
	if !r.ghost {
		return
	}
	g.ghosts++
	if !r.deadline.IsZero() && r.deadline.Before(g.ghostEnd) {
		g.ghostEnd = r.deadline
	}
}

func (g *Gate) dequeue(r *Request) {
	g.queue.remove(r)
	g.waiters.Add(-1)
	if r.ghost {
		g.ghosts--
	}
}

// take counts r against the ceiling.
func (g *Gate) take(r *Request) {
	r.state = active
	g.used += r.Units
	if r.slot != nil {
		r.slot.used += r.Units
	}
}

// opened links r into the list of the open ones.
func (g *Gate) opened(now time.Time, r *Request) {
	r.open, r.admitted = true, now
	g.requests++
	g.open += r.Units
	if r.older = g.newest; r.older != nil {
		r.older.newer = r
	} else {
		g.oldest = r
	}
	r.newer, g.newest = nil, r
}

func (g *Gate) closed(r *Request) {
	r.open = false
	g.requests--
	if g.open -= r.Units; g.open < 0 {
		g.open = 0
		g.metrics.anomaly(anomalyUnderflow)
	}
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		g.oldest = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		g.newest = r.older
	}
	r.older, r.newer = nil, nil
}

func (g *Gate) slot(r *Request) {
	if g.cfg.TenantSharePct == 0 || r.Units == 0 {
		return
	}
	slot, full := g.tenants.take(r.Tenant)
	if r.slot = slot; full {
		g.metrics.anomaly(anomalyTenants)
	}
}

func (g *Gate) unslot(r *Request) {
	if r.slot != nil {
		g.tenants.give(r.slot)
		r.slot = nil
	}
}
