package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/forward"
	"pointsman/internal/broker"
	"pointsman/wire"
)

// errLost ends the exchanges of a connection that has ended.
var errLost = fmt.Errorf("the connection to the NATS broker broke: %w", forward.ErrBlameless)

// link is one connection to the broker and the exchanges on it. It does not
// reconnect: what was published to it in between would be missing unnoticed.
type link struct {
	t      *Transport
	nc     *nats.Conn
	sub    *nats.Subscription
	prefix string        // of this connection's inboxes, with the dot
	closed chan struct{} // closed when the connection has ended
	gather time.Time     // until when a worker that is not subscribed may be on its way back; zero for no such time

	mu      sync.Mutex
	live    map[string]*exchange // by the last part of the inbox
	past    map[string]ended     // exchanges that ended lately
	order   []string             // keys of past, oldest first
	dropped int                  // messages that the client library has thrown away
	over    bool
}

// ended is what is kept of an exchange, whose storage acknowledgment may come
// behind its answer.
type ended struct {
	worker  string
	certain bool // the request was given up
}

// mostPast bounds the exchanges that are remembered.
const mostPast = 1024

// dial connects to the broker.
func (t *Transport) dial(ctx context.Context) (*link, error) {
	l := &link{
		t: t, closed: make(chan struct{}), live: map[string]*exchange{}, past: map[string]ended{},
		prefix: t.cfg.Broker.InboxPrefix + "." + rand.Text() + ".",
	}
	var err error
	l.nc, err = t.cfg.Broker.Dial(ctx, "pointsman-router-req", max(t.cfg.ConnectWait, 100*time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(l.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { l.fault(ctx, err) }))
	if err != nil {
		return nil, err
	}
	if l.sub, err = l.nc.Subscribe(l.prefix+"*", l.take); err == nil {
		err = errors.Join(
			l.sub.SetPendingLimits(1<<20, int(t.cfg.TotalBuffer)),
			l.nc.FlushTimeout(max(t.cfg.ConnectWait, time.Second)),
		)
	}
	if err != nil {
		l.nc.Close()
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	return l, nil
}

// take hands a message to its exchange. It runs on the subscription's goroutine
// and never waits.
func (l *link) take(m *nats.Msg) {
	r := wire.ParseReply(m.Header, m.Data)
	key := m.Subject[len(l.prefix):]
	l.mu.Lock()
	x := l.live[key]
	l.mu.Unlock()
	if r.Final() && l.gaps() { // before the frame could complete an answer with a hole
		l.lose(errGap)
		return
	}
	if x == nil || !x.push(&r) {
		l.late(key, &r)
	}
}

// late handles a message for an exchange that has ended.
func (l *link) late(key string, r *wire.Reply) {
	switch {
	case r.Kind == wire.ReplyData || r.Final():
		l.t.metrics.late.Inc()
	case r.Kind == wire.ReplyStored && r.Stored != 0:
		l.mu.Lock()
		was, known := l.past[key]
		l.mu.Unlock()
		if known {
			l.t.chores.forgetMessage(l.t, was.worker, r.Stored, was.certain)
		}
	}
}

// gaps reports whether the client library has thrown messages away since it was
// last asked.
func (l *link) gaps() bool {
	n, err := l.sub.Dropped()
	if err != nil {
		return false // the subscription has ended; so will its exchanges
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	more := n > l.dropped
	l.dropped = n
	return more
}

// fault is told of what went wrong beside the calls.
func (l *link) fault(ctx context.Context, err error) {
	switch {
	case errors.Is(err, nats.ErrSlowConsumer):
		if l.gaps() {
			l.lose(errGap)
		}
	case errors.Is(err, nats.ErrPermissionViolation):
		l.deny(err)
	}
	broker.LogFault(ctx, l.t.log, err)
}

// deny ends the exchanges whose request the broker did not let through.
func (l *link) deny(err error) {
	for _, x := range l.all() {
		if strings.Contains(err.Error(), `"`+x.subject+`"`) {
			x.fail(errDenied)
		}
	}
}

// open registers an exchange; false when the connection has ended.
func (l *link) open(x *exchange) bool {
	x.key = rand.Text()
	x.inbox = l.prefix + x.key
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.live[x.key] = x
	return true
}

// forget takes an exchange out, and keeps what a late storage acknowledgment
// needs.
func (l *link) forget(x *exchange, was ended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, x.key)
	if len(l.order) >= mostPast {
		delete(l.past, l.order[0])
		l.order = l.order[1:]
	}
	l.past[x.key] = was
	l.order = append(l.order, x.key)
}

func (l *link) all() []*exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*exchange, 0, len(l.live))
	for _, x := range l.live {
		out = append(out, x)
	}
	return out
}

// lose ends every exchange with err.
func (l *link) lose(err error) {
	for _, x := range l.all() {
		x.fail(err)
	}
}

// end closes the connection, when it is not closed, and ends its exchanges.
func (l *link) end() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.nc.Close()
	<-l.closed
	l.lose(errLost)
}
