package testfleet

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy relays TCP connections to one address until it is told not to.
type Proxy struct {
	Address string // host:port to connect to

	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	resume chan struct{} // closed while bytes flow
	conns  map[net.Conn]struct{}
	closed bool
	taken  int
}

// StartProxy starts a proxy to target that ends with the test.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{Address: l.Addr().String(), target: target, listener: l, resume: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(p.resume)
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Freeze makes the proxy a black hole: connections stay open and new ones are
// taken, but no byte passes.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume = make(chan struct{})
}

// Thaw lets bytes flow again, the held ones included.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.resume)
}

// Cut closes all connections; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Taken returns how many connections the proxy has taken so far.
func (p *Proxy) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	select {
	case <-p.resume:
	default:
		close(p.resume)
	}
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.taken++
		p.mu.Unlock()
		p.wg.Go(func() { p.relay(in) })
	}
}

func (p *Proxy) relay(in net.Conn) {
	if !p.hold(in) {
		return
	}
	defer p.release(in)
	<-p.flowing()
	out, err := net.Dial("tcp", p.target) //nolint:noctx // closed by close
	if err != nil || !p.hold(out) {
		return
	}
	defer p.release(out)
	var both sync.WaitGroup
	both.Go(func() { p.pump(out, in) })
	both.Go(func() { p.pump(in, out) })
	both.Wait()
}

func (p *Proxy) pump(dst, src net.Conn) {
	defer dst.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		<-p.flowing()
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				_, _ = io.Copy(io.Discard, src)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) flowing() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resume
}

func (p *Proxy) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) release(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
