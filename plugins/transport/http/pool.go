package http

import (
	"net"
	"sync"
	"time"
)

// pool keeps connections that are not in use, the most recent one on top.
type pool struct {
	cfg Config

	mu   sync.Mutex
	idle map[poolKey][]*conn
}

// get returns a kept connection to key, or nil. It seems alive, unless it can be seen as
// it is asked and unseen allows that.
func (p *pool) get(key poolKey, unseen bool) *conn {
	for {
		c := p.pop(key)
		if c == nil {
			return nil
		}
		if time.Since(c.since) < p.cfg.IdleTimeout && (unseen && c.bare() || c.alive()) {
			return c
		}
		c.close()
	}
}

func (p *pool) pop(key poolKey) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[key] = list[:len(list)-1] // an empty one is kept for the next put, until sweep
	return c
}

// put keeps c, whose last exchange left it clean.
func (p *pool) put(c *conn) {
	c.giveBack()
	if p.cfg.IdleTimeout == 0 || !p.push(c) {
		c.close()
	}
}

func (p *pool) push(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[c.key]) >= p.cfg.MaxIdle {
		return false
	}
	if p.idle == nil {
		p.idle = make(map[poolKey][]*conn)
	}
	c.since = time.Now()
	p.idle[c.key] = append(p.idle[c.key], c)
	return true
}

// sweep closes what has been unused since before now-IdleTimeout.
func (p *pool) sweep(now time.Time) {
	var old []*conn
	p.mu.Lock()
	for key, list := range p.idle {
		n := 0 // the oldest are at the bottom
		for n < len(list) && now.Sub(list[n].since) >= p.cfg.IdleTimeout {
			n++
		}
		old = append(old, list[:n]...)
		if n == len(list) {
			delete(p.idle, key)
		} else if n > 0 {
			p.idle[key] = append([]*conn(nil), list[n:]...)
		}
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (p *pool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, list := range idle {
		for _, c := range list {
			c.close()
		}
	}
}

// conn is a connection to a worker with its read buffer.
type conn struct {
	net.Conn
	raw   net.Conn // the TCP connection under TLS, else the same
	key   poolKey
	since time.Time // when it was last put into the pool

	socket  socket
	closing func() // the method close, made once

	bufs *sync.Pool // of *[]byte, lends buf
	lent *[]byte    // the memory of buf, unless that has grown
	buf  []byte     // buf[r:w] is read and not consumed; nil when nothing is
	r, w int

	broken error // what a read has failed with whose error nobody has seen: a system tells a reset once
}

// readBuffer is the size of a connection's read buffer: it holds a burst of
// events, and a usual head.
const readBuffer = 16 << 10

func newConn(nc, raw net.Conn, key poolKey, bufs *sync.Pool) *conn {
	c := &conn{Conn: nc, raw: raw, key: key, bufs: bufs}
	c.closing = c.close
	c.bind()
	return c
}

// borrow takes a buffer, unless there is one.
func (c *conn) borrow() {
	if c.buf != nil {
		return
	}
	lent, ok := c.bufs.Get().(*[]byte)
	if !ok {
		b := make([]byte, readBuffer)
		lent = &b
	}
	c.lent, c.buf = lent, *lent
}

// giveBack gives an empty buffer back.
func (c *conn) giveBack() {
	if c.buf != nil && c.r == c.w {
		c.bufs.Put(c.lent)
		c.lent, c.buf, c.r, c.w = nil, nil, 0, 0
	}
}

// close closes c; nothing can be done about its error.
func (c *conn) close() { _ = c.Close() }

// fill reads more bytes into the buffer, moving or growing it up to limit when
// it is full. It returns errHeadSize when limit is reached.
func (c *conn) fill(limit int) error {
	if c.broken != nil {
		return c.broken
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
		if c.bare() {
			return c.await()
		}
	}
	c.borrow()
	if c.w == len(c.buf) {
		switch {
		case c.r > 0:
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		case len(c.buf) >= limit:
			return errHeadSize
		default:
			grown := make([]byte, min(2*len(c.buf), limit))
			copy(grown, c.buf)
			c.buf = grown
		}
	}
	n, err := c.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return err
}
