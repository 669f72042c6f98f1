package forward

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// deadlines are a connection's, set only as far as they count. net/http sets that of
// reads seven times in a request, mostly with no read in between, and each time costs
// the runtime a lock and a timer. So a read may begin under an earlier deadline than is
// wanted: when that comes, the wanted one is set, and the read goes on.
type deadlines struct {
	mu      sync.Mutex
	reading bool
	wanted  time.Time // for reads
	read    time.Time // the one in force

	write time.Time // the one in force; the writing goroutine's
}

// SetReadDeadline implements net.Conn: it counts from the next read on, and for one
// that waits at once.
func (c *guardedConn) SetReadDeadline(t time.Time) error {
	d := &c.deadlines
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = t
	if d.reading {
		return d.apply(c.Conn)
	}
	return nil
}

// SetDeadline implements net.Conn.
func (c *guardedConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetWriteDeadline implements net.Conn. It lasts until the next write, which has its
// own: see send. To have none, as net/http wishes behind each request, is no more than
// that.
func (c *guardedConn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && c.limit > 0 {
		return nil
	}
	c.deadlines.write = t
	return c.Conn.SetWriteDeadline(t)
}

// from reads from c, the connection, until the deadline that is wanted.
func (d *deadlines) from(c net.Conn, p []byte) (n int, err error) {
	d.begin(c)
	for goesOn := true; goesOn; {
		n, err = c.Read(p)
		goesOn = d.end(c, err)
	}
	return n, err
}

func (d *deadlines) begin(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reading = true
	if !d.read.IsZero() && !d.read.Equal(d.wanted) && time.Until(d.read) <= 0 {
		_ = d.set(c)
		return
	}
	_ = d.apply(c) // the read fails of what it fails of
}

// end reports whether a read goes on that has failed with err: of a deadline that is not
// wanted any more.
func (d *deadlines) end(c net.Conn, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !d.read.Equal(d.wanted) {
		return d.set(c) == nil
	}
	d.reading = false
	return false
}

// apply sets the deadline that is wanted if it comes before the one in force.
func (d *deadlines) apply(c net.Conn) error {
	if d.wanted.IsZero() || !d.read.IsZero() && !d.wanted.Before(d.read) {
		return nil
	}
	return d.set(c)
}

func (d *deadlines) set(c net.Conn) error {
	d.read = d.wanted
	return c.SetReadDeadline(d.wanted)
}

// send writes to the client, which has the connection's limit to take it, at most a
// quarter less. Whoever writes: an answer that net/http makes by itself must not fail
// of the deadline that a request before it has left.
func (c *guardedConn) send(p []byte) (int, error) {
	if c.limit > 0 {
		if now := time.Now(); c.deadlines.write.Sub(now) < c.limit*3/4 {
			_ = c.SetWriteDeadline(now.Add(c.limit)) // the write fails of what it fails of
		}
	} else if !c.deadlines.write.IsZero() {
		_ = c.SetWriteDeadline(time.Time{}) // of the time when there was a limit
	}
	return c.Conn.Write(p)
}
