package admission

import (
	"context"
	"errors"
	"fmt"
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

// Drain ends the admission: newcomers are refused with gateway_draining, and
// those that wait with admission_drained. What runs goes on.
func (g *Gate) Drain() {
	g.mu.Lock()
	defer g.unlock()
	g.draining = true
	for r := g.queue.first(); r != nil; {
		next := g.queue.after(r)
		if !r.holding && !r.ghost {
			g.dequeue(r)
			g.end(r, reasonDrained, refusal(reasonDrained, drainRetry))
		}
		r = next
	}
}
