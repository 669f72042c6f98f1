package nats

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/wire"
)

// Timing of the admission.
const (
	backlogAge  = 200 * time.Millisecond // for how long a backlog counts, as in Infera
	absentAge   = 5 * time.Second        // the same, of a worker without a consumer
	backlogWait = 500 * time.Millisecond // for an answer about it
	settleTime  = 500 * time.Millisecond // until an ended request has left the broker's count
)

// rooms bounds the requests that each worker has unanswered (N7). What this
// process has under way counts at once, so that no burst gets past the limit;
// what others have comes from the backlog of the worker's consumer, as in Infera,
// and nothing when that cannot be read.
type rooms struct {
	max int // 0 for no limit

	mu   sync.Mutex
	byID map[string]*room
}

// room is what is known of one worker.
type room struct {
	inside  int         // under way from here, the ones about to be published included
	sent    int         // of them, published
	ended   []time.Time // when the latest ended: the broker may still count them
	others  int         // under way from elsewhere, when last asked
	fresh   time.Time   // until when that counts
	asking  chan struct{}
	stream  bool // the worker takes its requests from the stream
	refused int  // requests that the stream refused
}

// place is one request's reservation. The zero value reserves nothing.
type place struct {
	all *rooms
	r   *room
	was *bool // published
}

// enter reserves a place at the worker; false when it has no room. A lookup may
// take backlogWait.
func (a *rooms) enter(ctx context.Context, l *link, id string) (place, bool) {
	if a.max <= 0 {
		return place{}, true
	}
	a.mu.Lock()
	r := a.byID[id]
	if r == nil {
		r = &room{}
		a.byID[id] = r
	}
	if r.inside >= a.max {
		a.mu.Unlock()
		return place{}, false
	}
	r.inside++
	ask := time.Now().After(r.fresh)
	wait := r.asking
	if ask && wait == nil {
		r.asking = make(chan struct{})
	}
	a.mu.Unlock()
	switch {
	case ask && wait == nil:
		a.refresh(ctx, l, id, r)
	case ask && wait != nil: // another request asks: its answer is this one's
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.inside+r.others > a.max {
		r.inside--
		return place{}, false
	}
	return place{all: a, r: r, was: new(bool)}, true
}

// refresh asks the broker for the worker's backlog.
func (a *rooms) refresh(ctx context.Context, l *link, id string, r *room) {
	a.mu.Lock()
	mine := r.sent
	a.mu.Unlock()
	total, err := backlog(ctx, l.nc, id)
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	close(r.asking)
	r.asking = nil
	r.stream = err == nil
	r.fresh = now.Add(backlogAge)
	if err != nil { // fail open, as Infera does
		r.others = 0
		if errors.Is(err, errNoConsumer) {
			r.fresh = now.Add(absentAge)
		}
		return
	}
	recent := 0
	for _, t := range r.ended {
		if now.Sub(t) < settleTime {
			recent++
		}
	}
	r.others = max(0, total-max(mine, r.sent)-recent)
}

// sent notes that the request was published.
func (p place) sent() {
	if p.all == nil {
		return
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	*p.was = true
	p.r.sent++
}

// refused notes that the stream did not take the request.
func (p place) refused() {
	if p.all == nil {
		return
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.r.refused++
}

// throttles reports whether the worker takes its requests from the stream.
func (p place) throttles() bool {
	if p.all == nil {
		return false
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	return p.r.stream
}

// leave gives the place back.
func (p place) leave() {
	if p.all == nil {
		return
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.r.inside--
	if !*p.was {
		return
	}
	p.r.sent--
	now := time.Now()
	keep := p.r.ended[:0]
	for _, t := range p.r.ended {
		if now.Sub(t) < settleTime {
			keep = append(keep, t)
		}
	}
	p.r.ended = append(keep, now)
}

// sweep forgets workers that nothing is under way to.
func (a *rooms) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, r := range a.byID {
		if r.inside == 0 && r.asking == nil && now.Sub(r.fresh) > time.Minute {
			delete(a.byID, id)
		}
	}
}

// errNoConsumer says that a worker takes its requests without the stream.
var errNoConsumer = errors.New("the worker has no consumer in the request stream")

// consumerInfo is what is used of JetStream's answer.
type consumerInfo struct {
	Error *struct {
		Code int `json:"code"`
	} `json:"error"`
	Pending    int `json:"num_pending"`
	AckPending int `json:"num_ack_pending"`
}

// backlog returns how many requests the worker's consumer has not finished
// (infera.md §3.6). Its error wraps [errNoConsumer] when there is none.
func backlog(ctx context.Context, nc *nats.Conn, id string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, backlogWait)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$JS.API.CONSUMER.INFO."+wire.RequestStream+"."+wire.Token(id), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return 0, errors.Join(errNoConsumer, err)
	}
	if err != nil {
		return 0, err
	}
	var info consumerInfo
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return 0, err
	}
	if info.Error != nil {
		return 0, errNoConsumer
	}
	return info.Pending + info.AckPending, nil
}
