// Package picker chooses the worker for one request and reserves it.
//
// One pick runs in five steps: candidates (the workers of the model that are
// active, not tried yet, within the gateway's subset and not left out by the
// breaker), columns (what the index and the load ledger know of each, read
// once), cost (every scorer of the policy adds to it), choice (the lowest cost;
// see [Picker.Pick] for ties) and reservation: the load, the permit and a
// prediction of the chosen worker's cache are taken in the same step, so that
// the next pick sees them. The EPP and the forwarder's auto mode call the same
// picker. [Decision.Done] gives everything back.
//
// A model with prefill and decode workers is served by pairs: both legs are priced
// in one pick, over the protocols that both of some pair speak, and reserved
// together ([Decision].Prefill). [Decision.PrefillDone] gives the prefill leg back
// early and tells its circuit how it went.
//
// Costs are in tokens. On a fleet of one block size the ranking of policy
// kv-aware is Infera's formula (kv_event_aware.py); where pages differ in size,
// tokens compare and blocks do not (Infera defect P1).
//
// # Concurrency
//
// All methods are safe for concurrent use. One mutex guards the ledger and the
// memory that a pick works in: picks are done one after the other, which is what
// makes "select and reserve" one step. A pick of 200 candidates and 256 blocks
// holds it for some 10 µs and does not allocate. The table of candidates is
// rebuilt when the fleet's snapshot is another one: by [Picker.Run], or by the
// next pick, whichever comes first.
package picker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
)

// Reasons why a pick has no worker. They are wrapped: use [errors.Is].
var (
	// ErrNoModel means that no worker, in whatever state, serves the model: 404.
	ErrNoModel = errors.New("no worker serves this model")
	// ErrNoWorker means that the model is known but no worker of it is usable: 503.
	ErrNoWorker = errors.New("no active worker")
	// ErrNoPair means that a model has prefill and decode workers but none that
	// could serve a request together: 503. It comes as a [*PairError], and is an
	// ErrNoWorker too.
	ErrNoPair = errors.New("no prefill/decode pair")
	// ErrNoEndpoint means that the gateway's subset leaves no worker: 503.
	ErrNoEndpoint = errors.New("no worker within the given subset")
	// ErrFull means that every worker that could serve the request has as many in
	// flight as [Caps] allow: wait for [Picker.OnRelease], or 429.
	ErrFull = errors.New("every worker is at its cap")
)

// Retention is how long the client wants its prompt cached.
type Retention uint8

// What a client may ask for (Infera cache_control.py).
const (
	RetentionUnset Retention = iota
	RetentionNone            // asked for explicitly: overlap weight x 0.1
	RetentionShort
	RetentionLong // overlap weight x 2
)

// String returns the label value: unset, none, short or long.
func (r Retention) String() string {
	switch r {
	case RetentionNone:
		return "none"
	case RetentionShort:
		return "short"
	case RetentionLong:
		return "long"
	case RetentionUnset:
	}
	return "unset"
}

// Labels that the picker gives a decision in place of the request's own reason.
const (
	ReasonNoMatch  = "no_match"  // blocks were known, and no candidate holds the first
	ReasonNoEvents = "no_events" // blocks were known, and no candidate's cache is
)

// Request is what a pick has to know. The picker keeps no part of it: slices and
// strings may be views into a buffer that is reused after the call.
type Request struct {
	ID       string
	Model    string
	AnyModel bool // GET and unknown paths: an unknown or empty Model means every worker

	Tokens     int              // prompt length in tokens, estimated when Approx; 0 unknown
	Blocks     []kvindex.Blocks // one per size of [Picker.BlockSizes]; when Approx, one list for all workers
	Approx     bool             // Blocks are of bytes: they fit every worker's block size
	Reason     string           // label: exact, approx, short_prompt, no_tokens, ...; a constant, not a view
	Retention  Retention
	NoPair     bool     // the request cannot be split: mixed workers only
	AnyRole    bool     // not a generation: where no mixed worker is, one of another role will do
	Alone      bool     // for [Picker.Direct]: the named decode worker is to compute the prompt itself
	Multimodal bool     // text cannot be compared: only Images steer
	Images     []uint64 // hashes of the image references
	ByLoad     bool     // ignore the cache
	Unary      bool     // not streamed: its first token comes with its last, and tells nothing of the prefill
	Session    string   // key of the conversation, its tenant included; "" for none: see [Config].SessionAffinity

	Fallbacks int  // how many workers beside the chosen one to name, should it not be reached; 0 none
	Running   bool // for [Picker.Direct]: the worker has the request already, so that no cap counts
	Canary    bool // for [Picker.Direct]: it is the probe of a pair that [Picker.CanaryDue] has named, and no request that counts

	Tried     []string // worker IDs that failed already
	Subset    []string // allowed endpoints, host:port or host; see HasSubset
	HasSubset bool     // a Subset was given, be it empty
}

// Picker chooses workers. Make it with [New].
type Picker struct {
	cfg      Config
	policy   *policy
	shadow   *policy // nil for none
	store    *fleet.Store
	index    *kvindex.Index
	breakers *breaker.Set
	metrics  *metrics

	tab     atomic.Pointer[table] // written under mu
	release atomic.Pointer[func()]

	meanExternal External // of the targets with fresh reports, as last seen; guarded by mu

	mu        sync.Mutex
	stale     bool               // the table is of another Config
	health    Health             // nil for none
	targets   map[string]*target // by key: those of the fleet, and departed ones with requests in flight
	hosts     map[string]*host   // by worker ID, as many
	sessions  sessions
	rand      *rand.Rand
	shade     *rand.Rand // the shadow's: it must not change what rand gives the picks
	turn      uint64     // picks so far
	scale     float64    // what target.recent is to be multiplied with
	refreshed time.Time  // when block sizes and modes were last read
	sel       selection  // the pick being done; of a pair, the decode leg
	pre       selection  // the prefill leg of the pair being picked
	classes   []class    // memory of a pair's pick
	blocked   []breaker.Pair
	due       []breaker.Pair // memory of CanaryDue
	pairFull  bool           // no pair is left because of caps
	nodes     nodePool
	records   recordPool
	ring      ring
	trails    trails
	memories  memories
}

// New returns a picker over the given fleet, index and circuits. It exports its
// metrics once [Picker.Register] is called.
func New(cfg Config, store *fleet.Store, index *kvindex.Index, breakers *breaker.Set) (*Picker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("picker: %w", err)
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64() //nolint:gosec // as in newRand
	}
	p := &Picker{
		store: store, index: index, breakers: breakers,
		metrics:  newMetrics(),
		targets:  make(map[string]*target),
		hosts:    make(map[string]*host),
		rand:     newRand(seed),
		shade:    newRand(^seed),
		scale:    1,
		sessions: newSessions(maxSessions),
		ring:     ring{slots: make([]trace, cfg.ExplainRing)},
	}
	p.mu.Lock()
	p.configure(cfg)
	p.sync()
	p.mu.Unlock()
	return p, nil
}

// SetConfig replaces the tuning for the picks to come. ExplainRing and Seed stay as
// they are. An invalid cfg changes nothing.
func (p *Picker) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("picker: %w", err)
	}
	p.mu.Lock()
	cfg.ExplainRing, cfg.Seed = p.cfg.ExplainRing, p.cfg.Seed
	p.configure(cfg)
	p.stale = true
	p.sync()
	p.mu.Unlock()
	p.released()
	return nil
}

// configure takes cfg, which is valid, with mu held.
func (p *Picker) configure(cfg Config) {
	if cfg.Latency == (Latency{}) {
		cfg.Latency = DefaultLatency()
	}
	p.cfg = cfg
	p.policy, _ = policyOf(cfg.Policy)
	p.shadow = nil
	if cfg.Shadow != "" {
		p.shadow, _ = policyOf(cfg.Shadow)
	}
	for _, s := range [...]*selection{&p.sel, &p.pre} {
		s.caps, s.latency, s.turns, s.second = &p.cfg.Caps, &p.cfg.Latency, &p.turn, p.shadow
		s.trails = &p.trails
	}
}

// Health is what a prober knows of the fleet. Healthy is asked some times a second
// for each worker, by one goroutine at a time, and must not block.
type Health interface {
	Healthy(workerID string) bool
}

// SetHealth makes the picker leave out the workers that h holds for unhealthy, if
// it leaves any; nil asks nobody. It is to be called before the first pick.
func (p *Picker) SetHealth(h Health) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health, p.refreshed = h, time.Time{}
}

// OnRelease makes the picker call f whenever there may be room that was not there
// before: a request has ended, the fleet or the tuning has changed, and once a
// second for what time alone changes ([Picker.Run]). f is called without a lock
// held and should return soon.
func (p *Picker) OnRelease(f func()) { p.release.Store(&f) }

func (p *Picker) released() {
	if f := p.release.Load(); f != nil {
		(*f)()
	}
}

// newRand is where equal costs are spread from.
func newRand(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // nobody gains by guessing it
}

// Run keeps the table in step with the fleet and forgets departed workers, until
// ctx is done. Picks are right without it: it does the same when no pick comes.
func (p *Picker) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		changed := p.store.Changed()
		p.Refresh(time.Now())
		p.released()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
	}
}

// Refresh brings the table in step with the fleet, and reads the block sizes and
// modes that the index has learned.
func (p *Picker) Refresh(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sync()
	p.refresh(now)
}

// BlockSizes appends the distinct block sizes of the active workers that serve
// model, in ascending order; of all workers when model is "". A size learned
// from a worker's events counts before the registered one; a worker whose size
// is unknown adds none.
func (p *Picker) BlockSizes(model string, dst []int) []int {
	tab := p.tab.Load()
	if tab.snap != p.store.Snapshot() { // a new Config makes a table at once
		p.mu.Lock()
		tab = p.sync()
		p.mu.Unlock()
	}
	pl := tab.all
	if model != "" {
		if pl, _ = tab.poolOf(model); pl == nil {
			return dst
		}
	}
	return append(dst, *pl.sizes.Load()...)
}
