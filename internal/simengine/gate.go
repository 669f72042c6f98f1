package simengine

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// gate is the engine's listener. It can close the port and open it again, and
// strikes connections with the faults that are not HTTP's to see.
type gate struct {
	addr   string
	faults *faults

	mu     sync.Mutex
	ln     net.Listener // nil while the port is closed
	change chan struct{}
	closed bool
	parked map[net.Conn]struct{} // accepted, never read
	idle   map[net.Conn]struct{} // kept alive between requests
}

func openGate(ctx context.Context, addr string, f *faults) (*gate, error) {
	g := &gate{
		addr: addr, faults: f, change: make(chan struct{}),
		parked: make(map[net.Conn]struct{}), idle: make(map[net.Conn]struct{}),
	}
	if err := g.open(ctx); err != nil {
		return nil, err
	}
	g.addr = g.ln.Addr().String() // the port stays the same when it opens again
	return g, nil
}

// open listens. It does nothing when the port is open or the gate is closed for good.
func (g *gate) open(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln != nil || g.closed {
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", g.addr)
	if err != nil {
		return err
	}
	g.ln = ln
	g.changed()
	return nil
}

func (g *gate) changed() {
	close(g.change)
	g.change = make(chan struct{})
}

// shut closes the port, and connections that wait for a next request: a client
// that kept one would not notice the refusal.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln != nil {
		_ = g.ln.Close()
		g.ln = nil
		g.changed()
	}
	for c := range g.idle {
		resetConn(c)
	}
	clear(g.idle)
}

// release lets go of the connections that hang.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.parked {
		resetConn(c)
	}
	clear(g.parked)
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		ln, change, closed := g.ln, g.change, g.closed
		g.mu.Unlock()
		switch {
		case closed:
			return nil, net.ErrClosed
		case ln == nil:
			<-change
			continue
		}
		c, err := ln.Accept()
		if err != nil {
			g.mu.Lock()
			ours := g.ln != ln || g.closed
			g.mu.Unlock()
			if ours {
				continue
			}
			return nil, err
		}
		switch f := g.faults.draw(time.Now(), true); f.mode {
		case faultReset, faultRefuse:
			resetConn(c)
		case faultHangAccept:
			g.park(c)
		default:
			return c, nil
		}
	}
}

func (g *gate) park(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parked[c] = struct{}{}
}

// track is an http.Server's ConnState hook.
func (g *gate) track(c net.Conn, state http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if state == http.StateIdle {
		g.idle[c] = struct{}{}
		return
	}
	delete(g.idle, c)
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.release()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	defer g.changed()
	if g.ln == nil {
		return nil
	}
	return g.ln.Close()
}

// Addr implements net.Listener.
func (g *gate) Addr() net.Addr {
	addr, err := net.ResolveTCPAddr("tcp", g.addr)
	if err != nil {
		return &net.TCPAddr{}
	}
	return addr
}

// resetConn ends c with a RST.
func resetConn(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// drainThenReset ends c with a RST once the peer's kernel has what was written
// (a reset discards what has not left), waiting a second at most.
func drainThenReset(ctx context.Context, c net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for unsent(c) > 0 {
		select {
		case <-ctx.Done():
			resetConn(c)
			return
		case <-tick.C:
		}
	}
	resetConn(c)
}

// unsent returns how many written bytes the peer has not acknowledged.
func unsent(c net.Conn) int {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Control(func(fd uintptr) {
		n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
	})
	return n
}

// hijack takes the connection of a request away from net/http.
func hijack(w http.ResponseWriter) (net.Conn, error) {
	c, _, err := http.NewResponseController(w).Hijack()
	return c, err
}

// untilClosed reads from c until the peer closes it or ctx is done; it reports
// whether the peer did. The connection is closed on return.
func untilClosed(ctx context.Context, c net.Conn) bool {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	_, _ = io.Copy(io.Discard, c)
	own := !stop()
	_ = c.Close()
	return !own
}
