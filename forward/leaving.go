package forward

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// watchPause is how long a request lasts before somebody watches whether its client
// leaves. Many answers are there by then, and a watch costs two waits of the poller and
// a goroutine: some 7 µs, a thirtieth of a stream of a hundred events. One that leaves
// earlier is seen then, within half of the 50 ms that an abort may take.
const watchPause = 25 * time.Millisecond

// leaving ends the request under way on a connection when its client leaves, and when
// the server's drain is over.
//
// net/http watches by a goroutine that reads one byte behind each request, and that it
// wakes and waits for when the request is served. That is let find nothing and end at
// once; a request that lasts longer than watchPause is watched for here, in the same
// way.
type leaving struct {
	closing func() error // why the server ends its requests; nil while it does not
	stop    func() bool  // of the watch for that

	mu       sync.Mutex
	served   *life       // of the request under way; nil for none, and for one that net/http watches
	armed    bool        // the request has been read
	theirs   bool        // net/http reads a byte, which may be its watch
	timer    *time.Timer // begins the watch; made for the first
	watching bool
	waited   bool // release waits for the watch's end
	over     chan struct{}

	early [1]byte // of what follows the request, which the watch has read
	has   bool    // early has not been read by net/http
}

// within makes the requests of c end when base does.
func (c *guardedConn) within(base context.Context) {
	c.leaving.closing = func() error { return context.Cause(base) }
	c.leaving.stop = context.AfterFunc(base, c.abort)
}

func (c *guardedConn) abort() {
	w := &c.leaving
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.served != nil {
		w.served.end(w.closing())
	}
}

// Close implements net.Conn.
func (c *guardedConn) Close() error {
	if c.leaving.stop != nil {
		c.leaving.stop()
	}
	return c.Conn.Close()
}

// serve makes l end when the client leaves or the server's context is done, until
// release. It must be called before the end of the request's body is read, and so only
// for one that has a body: net/http watches from there on.
func (c *guardedConn) serve(l *life) {
	w := &c.leaving
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served = l
	if w.closing == nil {
		return // of a connection of no server: a test's
	}
	if why := w.closing(); why != nil {
		l.end(why)
	}
}

// watch says that the request has been read: what comes now is the client's leaving, or
// another request. A nil connection does nothing.
func (c *guardedConn) watch() {
	if c == nil {
		return
	}
	w := &c.leaving
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.served == nil {
		return
	}
	w.armed = true
	if w.timer == nil {
		w.timer = time.AfterFunc(watchPause, c.await)
	} else {
		w.timer.Reset(watchPause)
	}
}

// skips reports whether net/http's read of one byte is its watch, for which there is no
// need. Where its buffer is nearly full, it is not; nor can it be told where a part of the
// next request is in there already. Such a read is made, and no watch beside it. whole
// says that what has been read is requests and nothing more.
func (w *leaving) skips(whole bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.served != nil && (w.armed || whole) {
		return true
	}
	w.theirs = true
	return false
}

// back is told how the read that was not skipped has ended.
func (w *leaving) back(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.theirs = false
	w.left(err)
}

// left ends the request if a read ended because its client has left, with mu held.
func (w *leaving) left(err error) {
	if err != nil && w.served != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.served.end(context.Canceled)
	}
}

// await is the timer's, and the watch. The timer is not stopped when a request is served
// before its time: the next one may be watched a little early.
func (c *guardedConn) await() {
	w := &c.leaving
	w.mu.Lock()
	if !w.armed || w.watching || w.theirs || w.has {
		w.mu.Unlock()
		return
	}
	w.watching = true
	w.mu.Unlock()
	n, err := c.deadlines.from(c.Conn, w.early[:])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watching, w.has = false, n > 0
	w.left(err)
	if w.waited {
		w.waited = false
		w.over <- struct{}{} // has room
	}
}

// release ends what serve has begun. net/http may read behind it, and not before: its
// watch, which may have its first turn only now, would be a second reader.
func (c *guardedConn) release() {
	w := &c.leaving
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.watching {
		w.waited = true
		if w.over == nil {
			w.over = make(chan struct{}, 1)
		}
		w.mu.Unlock()
		_ = c.SetReadDeadline(time.Unix(1, 0)) // long past; if it fails, so has the read
		<-w.over
		_ = c.SetReadDeadline(time.Time{})
		w.mu.Lock()
	}
	w.served, w.armed = nil, false
}

// release ends the request's context, as net/http does with its own, and the watch.
func (x *exchange) release() {
	x.client.release()
	x.life.end(nil)
}

// next reads what follows: first what the watch has read.
func (c *guardedConn) next(p []byte) (int, error) {
	if w := &c.leaving; w.has && len(p) > 0 { // no watch runs while net/http reads
		w.has = false
		return copy(p, w.early[:]), nil
	}
	return c.deadlines.from(c.Conn, p)
}
