package forward

import (
	"context"
	"net"
)

// connKey is the context key of a client's connection.
type connKey struct{}

// withConn is a server's ConnContext: it keeps the connection for its requests, which
// end with ctx.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if guarded, ok := c.(*guardedConn); ok {
		guarded.within(ctx)
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the connection that a request came by; nil for one of somebody
// else's server.
func connOf(ctx context.Context) *guardedConn {
	c, _ := ctx.Value(connKey{}).(*guardedConn)
	return c
}

// gathering returns the connection that gathers what a stream writes, if the body of
// x's response goes to it in chunks, for it tells no length; nil for others. Behind each
// chunk that net/http has written its line end is still in net/http's own buffer, so
// that another write always follows, by a flush or at the response's end: what was
// gathered cannot stay behind.
func (x *exchange) gathering() *guardedConn {
	if !x.r.ProtoAtLeast(1, 1) {
		return nil
	}
	return x.client
}

// gather makes the connection keep what is written while it is on; the first write
// behind that sends all. net/http fills its 4 KB buffer, writes it, then the rest of
// a burst of events, then the chunk's line end: three segments, each of which wakes
// the client, where one will do. A nil connection does nothing.
func (c *guardedConn) gather(on bool) {
	if c != nil {
		c.gathering = on
	}
}

// Write implements net.Conn.
func (c *guardedConn) Write(p []byte) (int, error) {
	if c.kept == nil {
		if !c.gathering || len(p) > smallBuffer {
			return c.send(p)
		}
		c.kept = c.bufs.get(smallBuffer)
	}
	if len(*c.kept)+len(p) > cap(*c.kept) { // too large to be worth a copy
		if err := c.sendKept(); err != nil {
			return 0, err
		}
		return c.send(p)
	}
	*c.kept = append(*c.kept, p...)
	if c.gathering {
		return len(p), nil
	}
	if err := c.sendKept(); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *guardedConn) sendKept() error {
	_, err := c.send(*c.kept)
	c.bufs.put(c.kept)
	c.kept = nil
	return err
}
