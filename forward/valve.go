package forward

import (
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Valve bounds the client connections of a listener. At the bound it stops
// accepting: further ones wait in the kernel's backlog, without an answer, until
// one closes (contract max_total_inflight). It counts connections, not requests,
// and its users should give metrics and probes a port of their own. Make it with
// [NewValve].
type Valve struct {
	mu      sync.Mutex
	bound   int
	open    int
	changed chan struct{} // closed when there may be room
	blocked prometheus.Counter
	gauge   prometheus.GaugeFunc
	limit   prometheus.GaugeFunc
}

// NewValve returns a valve that lets bound connections be open; 0 is no bound.
func NewValve(bound int) *Valve {
	v := &Valve{bound: bound, changed: make(chan struct{})}
	v.blocked = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "infera_router_accept_blocked_total",
		Help: "How often accepting client connections was paused at the bound.",
	})
	v.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "infera_router_client_connections",
		Help: "Client connections open.",
	}, func() float64 { open, _ := v.state(); return float64(open) })
	v.limit = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "infera_router_accept_bound",
		Help: "Client connections at which accepting pauses; 0 for no bound.",
	}, func() float64 { _, bound := v.state(); return float64(bound) })
	return v
}

// Register puts the valve's metrics on reg.
func (v *Valve) Register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{v.blocked, v.gauge, v.limit} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (v *Valve) state() (open, bound int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open, v.bound
}

// wake lets Accept look again, with mu held.
func (v *Valve) wake() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// Listen returns lis with the valve before it; lis itself when there is no bound.
func (v *Valve) Listen(lis net.Listener) net.Listener {
	if _, bound := v.state(); bound == 0 {
		return lis
	}
	return &valveListener{Listener: lis, valve: v, closed: make(chan struct{})}
}

// take waits for room, and reports false when done is closed first.
func (v *Valve) take(done <-chan struct{}) bool {
	paused := false
	for {
		v.mu.Lock()
		if v.bound == 0 || v.open < v.bound {
			v.open++
			v.mu.Unlock()
			return true
		}
		changed := v.changed
		v.mu.Unlock()
		if !paused {
			paused = true
			v.blocked.Inc()
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

func (v *Valve) give() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open--
	v.wake()
}

type valveListener struct {
	net.Listener

	valve  *Valve
	once   sync.Once
	closed chan struct{}
}

// Accept waits for room before it takes a connection off the backlog.
func (l *valveListener) Accept() (net.Conn, error) {
	if !l.valve.take(l.closed) {
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		l.valve.give()
		return nil, err
	}
	return &valveConn{Conn: conn, valve: l.valve}, nil
}

// Close closes the listener and ends a paused Accept.
func (l *valveListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type valveConn struct {
	net.Conn

	valve *Valve
	once  sync.Once
}

// Close closes the connection and makes room for another.
func (c *valveConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.valve.give)
	return err
}
