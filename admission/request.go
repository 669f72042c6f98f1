package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// What [Request.Pick] may report beside success. They may be wrapped.
var (
	// ErrFull means that every worker that could take the request is at its cap:
	// it goes on waiting.
	ErrFull = errors.New("every worker is at its cap")
	// ErrOverCap means that a worker was picked, and that a cap which is only
	// observed would have excluded it. The request is admitted.
	ErrOverCap = errors.New("picked above a worker's cap")
	// ErrNoCapacity means that there is no worker to wait for.
	ErrNoCapacity = errors.New("no healthy worker")
)

// Request is one request at a [Gate]. Its memory is the caller's: it must neither
// be copied nor used again between [Gate.Enter] and [Pass.Release].
type Request struct {
	Tenant   string // whose it is, from a header that was verified; "" for nobody's in particular
	Priority int    // higher first; below 0 is sheddable: the first to be thrown out of a full queue
	Bytes    int64  // memory of its body while it waits
	Units    int    // what it counts against the ceiling, such as its number of choices; 0 for one that another program has admitted

	// Key names the workers that it can go to. A request that finds them full
	// holds back those of the same key alone.
	Key string
	// Places returns how many workers Key stands for; nil is one. It bounds the
	// wait by Config.WorkerQueueDepth, and is called at most once.
	Places func() int

	// Pick picks and reserves a worker. It is called by whichever goroutine gives
	// capacity back, under the gate's lock: it must be quick and must not call
	// the gate, Wake excepted. Its memory must stay valid until Enter returns.
	Pick func(now time.Time) error

	// OnPark is called once by Enter, in its own goroutine, before the request
	// begins to wait; nil for nothing.
	OnPark func()

	gen        uint64 // grows with each Enter: a stale Pass finds it changed
	seq        uint64 // order of arrival
	band       *band
	prev, next *Request
	slot       *tenant
	state      state
	holding    bool // admitted already, and waiting for another worker
	ghost      bool // observed: it runs, and waits in name only
	overCap    bool // a ghost that waits for a worker
	open       bool // counts in Gate.open
	lane       lane
	arrived    time.Time
	admitted   time.Time
	patience   time.Duration // longest wait, of all its waits together
	deadline   time.Time     // of the present wait; zero until it has to wait
	queued     time.Duration // how long it has waited
	err        error
	panicked   any
	done       chan struct{}

	older, newer *Request // of those open
	reported     bool     // as leaked
}

// state is where a request is with the gate.
type state uint8

const (
	absent  state = iota
	waiting       // in the queue
	active        // its units count against the ceiling
	ended         // refused, gone, or (a ghost) would have been
)

// lane is which bound a waiting request counts against.
type lane uint8

const (
	laneNone   lane = iota // an admitted request that waits for another worker
	lanePool               // Config.QueueDepth
	laneWorker             // Config.WorkerQueueDepth
)

// Refusal is why a request is not admitted, as its client is to be told.
type Refusal struct {
	Status     int           // HTTP status: 429, 503 or 504
	Code       string        // machine-readable, of the contract
	Message    string        // for people
	RetryAfter time.Duration // whole seconds, at least 1
	Jitter     time.Duration // how far clients should spread their retries beyond RetryAfter
	Queued     time.Duration // how long it has waited

	reason reason
}

// Codes of refusals (contract 1.3b and 2C).
const (
	CodeCapacity    = "admission_capacity"      // 429: the ceiling is reached, and the queue is full or there is none
	CodeTenant      = "admission_tenant_share"  // 429: the tenant has its share
	CodeMemory      = "queue_memory"            // 429: the waiting bodies fill their memory
	CodeNoCapacity  = "admission_no_capacity"   // 503: the workers that it waited for are gone
	CodeDraining    = "gateway_draining"        // 503: this program takes nothing new
	CodeDrained     = "admission_drained"       // 503: it waited when the drain began
	CodeQueueTime   = "admission_queue_timeout" // 504: it waited for as long as it may
	drainRetry      = 5 * time.Second
	shortRetry      = time.Second
	longestRetry    = 30 * time.Second
	spreadOfRetries = 2 // Jitter is the retry time divided by it
)

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

// Seconds is RetryAfter for the header of that name.
func (r *Refusal) Seconds() int { return int(r.RetryAfter / time.Second) }

// RetryMillis is when to try again, for the header retry-after-ms: RetryAfter and
// a random part of Jitter, so that those who were refused together do not come
// back together.
func (r *Refusal) RetryMillis() int64 {
	return r.RetryAfter.Milliseconds() + rand.Int64N(r.Jitter.Milliseconds()+1) //nolint:gosec // no secret
}

func refusal(why reason, retry time.Duration) *Refusal {
	retry = min(longestRetry, max(shortRetry, (retry+time.Second-1).Truncate(time.Second)))
	r := &Refusal{reason: why, RetryAfter: retry, Jitter: retry / spreadOfRetries}
	switch why {
	case reasonTenant:
		r.Status, r.Code, r.Message = http.StatusTooManyRequests, CodeTenant, "this tenant has its share of the capacity in use; try again later"
	case reasonMemory:
		r.Status, r.Code, r.Message = http.StatusTooManyRequests, CodeMemory, "the bodies of waiting requests fill the memory set aside for them; try again later"
	case reasonNoCapacity:
		r.Status, r.Code, r.Message = http.StatusServiceUnavailable, CodeNoCapacity, "the workers that the request waited for are gone"
	case reasonDraining:
		r.Status, r.Code, r.Message = http.StatusServiceUnavailable, CodeDraining, "the gateway is shutting down"
	case reasonDrained:
		r.Status, r.Code, r.Message = http.StatusServiceUnavailable, CodeDrained, "the gateway is shutting down; the request has waited and was not run"
	case reasonQueueTimeout:
		r.Status, r.Code, r.Message = http.StatusGatewayTimeout, CodeQueueTime, "no capacity came free in time; the request was not run"
	case reasonQueueFull:
		r.Status, r.Code, r.Message = http.StatusTooManyRequests, CodeCapacity, "the queue is full; try again later"
	default:
		r.Status, r.Code, r.Message = http.StatusTooManyRequests, CodeCapacity, "the capacity is in use; try again later"
	}
	return r
}

// oversized refuses what no amount of waiting would let in.
func oversized(units, limit int) *Refusal {
	r := refusal(reasonShed, longestRetry)
	r.Message = fmt.Sprintf("the request asks for %d choices at once, and the ceiling is %d", units, limit)
	return r
}

// Pass is the admission of one request. It is a value: copy it freely. Release
// must be called in the end, on any copy. The zero Pass does nothing.
type Pass struct {
	g   *Gate
	r   *Request
	gen uint64
}

// Release gives back what the request took. Only the first call on any copy
// counts.
func (p Pass) Release() {
	if p.g != nil {
		p.g.release(p)
	}
}

// FirstToken tells the adaptive limit that a stream's first token came at now.
func (p Pass) FirstToken(now time.Time) {
	if p.g != nil {
		p.g.firstToken(p, now)
	}
}

// Again picks another worker for an admitted request, whose Pick is called. When
// all are full it waits, before those that came later, for what is left of the
// request's own time in the queue; the time that it ran is not counted. key is its
// [Request].Key from now on: other workers are left to it than at first, and it must
// not hold back those that can go where it cannot. Errors are those of
// [Gate.Enter]; the pass stays valid.
func (p Pass) Again(ctx context.Context, key string) error {
	if p.g == nil {
		return nil
	}
	return p.g.again(ctx, p, key)
}
