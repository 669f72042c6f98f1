package trust

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxSeen is how many tickets are remembered: a ticket is good for a minute at
// most, so that 1000 requests per second of one forwarder fit.
const maxSeen = 64 << 10

// maxUses is how often one ticket may be used while each use has failed: a
// gateway repeats a request as often as its route's policy says.
const maxUses = 8

// Tickets checks tickets, each for one answer: a ticket by which a request has
// been served, or is being served, is good for no other. A gateway that repeats a
// request after a failure sends the same ticket again, and may. Make it with
// [NewTickets].
type Tickets struct {
	keys *Keys

	mu   sync.Mutex
	seen map[ticketID]*use
	past []spent // in the order of first use; those before head are gone
	head int

	results   *prometheus.CounterVec
	forgotten prometheus.Counter
}

// ticketID is the first half of a MAC, which is enough to know it again.
type ticketID [sha256.Size / 2]byte

type use struct {
	times  int
	open   bool // a request goes by it now
	served bool
}

type spent struct {
	id    ticketID
	until int64 // unix seconds after which the ticket is too old anyway
}

// Results of a check, as a metric's label.
const (
	resultOK        = "ok"
	resultMissing   = "missing"
	resultMalformed = "malformed"
	resultForged    = "forged"
	resultSkew      = "skew"
	resultReplayed  = "replayed"
)

// NewTickets returns a checker of tickets that keys have made.
func NewTickets(keys *Keys) *Tickets {
	t := &Tickets{
		keys: keys, seen: make(map[ticketID]*use),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pointsman_route_tickets_total",
			Help: "Tickets of routing headers that were checked, by result.",
		}, []string{"result"}),
		forgotten: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pointsman_route_tickets_forgotten_total",
			Help: "Used tickets that were forgotten before they were too old, for there were too many: these could be used again.",
		}),
	}
	for _, result := range []string{resultOK, resultMissing, resultMalformed, resultForged, resultSkew, resultReplayed} {
		t.results.WithLabelValues(result)
	}
	return t
}

// Register puts the checker's metrics on reg.
func (t *Tickets) Register(reg prometheus.Registerer) error {
	if err := reg.Register(t.results); err != nil {
		return err
	}
	return reg.Register(t.forgotten)
}

// Use is a ticket that a request goes by. The zero Use is none.
type Use struct {
	t  *Tickets
	id ticketID
}

// Check says whether header is a good ticket for r at now. If so, call Done of the
// Use when the request has ended.
func (t *Tickets) Check(now time.Time, header string, r *Route) (Use, error) {
	sum, ts, err := t.keys.verify(now, header, r)
	if err == nil {
		id := ticketID(sum[:])
		if t.claim(now.Unix(), id, ts+int64(Skew/time.Second)) {
			t.results.WithLabelValues(resultOK).Inc()
			return Use{t, id}, nil
		}
		err = ErrReplayed
	}
	t.results.WithLabelValues(resultOf(err)).Inc()
	return Use{}, err
}

func resultOf(err error) string {
	switch {
	case errors.Is(err, ErrNoTicket):
		return resultMissing
	case errors.Is(err, ErrMalformed):
		return resultMalformed
	case errors.Is(err, ErrSkew):
		return resultSkew
	case errors.Is(err, ErrReplayed):
		return resultReplayed
	}
	return resultForged
}

// claim takes a use of a ticket, if there is one left.
func (t *Tickets) claim(now int64, id ticketID, until int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	u := t.seen[id]
	if u == nil {
		u = new(use)
		t.seen[id] = u
		t.past = append(t.past, spent{id, until})
	}
	if u.open || u.served || u.times >= maxUses {
		return false
	}
	u.open = true
	u.times++
	return true
}

// expire forgets tickets that are too old by now, and the oldest when there are
// too many.
func (t *Tickets) expire(now int64) {
	for t.head < len(t.past) && (t.past[t.head].until < now || len(t.past)-t.head >= maxSeen) {
		if t.past[t.head].until >= now {
			t.forgotten.Inc()
		}
		delete(t.seen, t.past[t.head].id)
		t.head++
	}
	if t.head > maxSeen || t.head == len(t.past) {
		t.past = append(t.past[:0], t.past[t.head:]...)
		t.head = 0
	}
}

// Done says that the request has ended; served, that it was answered, or that a
// worker may have begun to: then the ticket is used up.
func (u Use) Done(served bool) {
	if u.t == nil {
		return
	}
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	if e := u.t.seen[u.id]; e != nil {
		e.open, e.served = false, e.served || served
	}
}
