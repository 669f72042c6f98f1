package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// netHTTPWatches does what net/http does behind a request, of which all has been read.
func netHTTPWatches(t *testing.T, c *guardedConn) {
	t.Helper()
	at := c.at
	c.at = atRequestLine
	defer func() { c.at = at }()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("net/http's watch gets %d bytes and %v", n, err)
	}
}

func TestARequestEndsWhenItsClientLeaves(t *testing.T) {
	for name, leaves := range map[string]time.Duration{"in the pause": time.Millisecond, "behind it": time.Second} {
		t.Run(name, func(t *testing.T) {
			inPipe(t, 0, func(c *guardedConn, _ *counted, other net.Conn) {
				start := time.Now()
				var l life
				c.serve(&l)
				netHTTPWatches(t, c)
				c.watch()
				time.AfterFunc(leaves, func() { other.Close() })
				<-l.Done()
				if !errors.Is(l.Err(), context.Canceled) || time.Since(start) != max(leaves, watchPause) {
					t.Errorf("%v after %v", l.Err(), time.Since(start))
				}
				c.release()
				if _, err := c.Read(make([]byte, 9)); !errors.Is(err, io.EOF) {
					t.Errorf("net/http, which knows nothing of it, reads: %v", err)
				}
			})
		})
	}
}

func TestRequestsThatAreServedSoonAreNotWatched(t *testing.T) {
	inPipe(t, 0, func(c *guardedConn, under *counted, other net.Conn) {
		start := time.Now()
		lives := make([]life, 3)
		for i := range lives { // requests one after another
			c.serve(&lives[i])
			netHTTPWatches(t, c)
			c.watch()
			c.release()
		}
		<-time.NewTimer(time.Second).C
		other.Close()
		synctest.Wait()
		for i := range lives {
			if err := lives[i].Err(); err != nil {
				t.Errorf("request %d, which was served before: %v", i, err)
			}
		}
		if under.reads > 0 || time.Since(start) != time.Second {
			t.Errorf("%d deadlines, %v", under.reads, time.Since(start))
		}
	})
}

func TestWhatFollowsAWatchedRequestIsRead(t *testing.T) {
	for name, comes := range map[string]time.Duration{"while it is watched": time.Second, "behind it": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inPipe(t, 0, func(c *guardedConn, _ *counted, other net.Conn) {
				for range 3 { // requests one after another
					var l life
					c.serve(&l)
					c.watch()
					wrote := time.AfterFunc(comes, func() { io.WriteString(other, "next") })
					<-time.NewTimer(2 * time.Second).C
					c.release()
					got := make([]byte, 4)
					if _, err := io.ReadFull(c, got); err != nil || string(got) != "next" || l.Err() != nil {
						t.Errorf("read %q, %v; the request: %v", got, err, l.Err())
					}
					wrote.Stop()
				}
			})
		})
	}
}

// What comes behind a request before it is served may be another one, which is read when
// net/http wants it; a watch that would read on would take its second byte.
func TestNoWatchReadsBehindAByteThatNobodyHasTaken(t *testing.T) {
	inPipe(t, 0, func(c *guardedConn, _ *counted, other net.Conn) {
		go io.WriteString(other, "next")
		for range 3 { // requests that net/http has in its buffer
			var l life
			c.serve(&l)
			c.watch()
			<-time.NewTimer(time.Second).C
			c.release()
			if l.Err() != nil {
				t.Error(l.Err())
			}
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "next" {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

func TestARequestEndsWithItsServer(t *testing.T) {
	stopped := errors.New("stopped")
	for name, early := range map[string]bool{"under way": false, "that comes behind it": true} {
		t.Run(name, func(t *testing.T) {
			inPipe(t, 0, func(c *guardedConn, _ *counted, _ net.Conn) {
				base, stop := context.WithCancelCause(context.Background())
				defer stop(nil)
				c.within(base)
				if early {
					stop(stopped)
					synctest.Wait()
				}
				var l life
				c.serve(&l)
				stop(stopped)
				if <-l.Done(); !errors.Is(l.Err(), stopped) {
					t.Errorf("ended by %v", l.Err())
				}
				c.release()
			})
		})
	}
	inPipe(t, 0, func(c *guardedConn, _ *counted, _ net.Conn) {
		base, stop := context.WithCancelCause(context.Background())
		c.within(base)
		var l life
		c.serve(&l)
		c.release()
		stop(stopped)
		synctest.Wait()
		if l.Err() != nil {
			t.Errorf("a request that was served before ends by %v", l.Err())
		}
	})
}

// The timer of a request that was served may begin the watch of the next one, but not
// while net/http still reads that.
func TestTheWatchWaitsForTheRequestsBody(t *testing.T) {
	inPipe(t, 0, func(c *guardedConn, _ *counted, other net.Conn) {
		var first, second life
		c.serve(&first)
		c.watch()
		c.release()
		c.serve(&second)
		<-time.NewTimer(time.Second).C
		go io.WriteString(other, "body")
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "body" {
			t.Errorf("net/http reads %q, %v", got, err)
		}
		c.release()
	})
}

func TestARequestsContextIsDoneWhenItIsServed(t *testing.T) {
	inPipe(t, 0, func(c *guardedConn, _ *counted, _ net.Conn) {
		x := &exchange{client: c}
		c.serve(&x.life)
		c.watch()
		made, cancel := context.WithCancel(&x.life)
		defer cancel()
		x.release()
		if <-made.Done(); !errors.Is(x.life.Err(), context.Canceled) {
			t.Errorf("ended by %v", x.life.Err())
		}
	})
}

// A request may be served before net/http's goroutine for its watch has its first turn,
// and the watch here may have its last one late. They do not read together, and the
// connection carries the next request.
func TestALateWatchOfNetHTTPReadsNothing(t *testing.T) {
	inPipe(t, 0, func(c *guardedConn, under *counted, other net.Conn) {
		slow := &slowEnd{Conn: under.Conn, goOn: make(chan struct{})}
		under.Conn = slow
		var l life
		c.serve(&l)
		c.watch()
		<-time.NewTimer(time.Second).C
		released := make(chan struct{})
		go func() {
			c.release()
			close(released)
		}()
		synctest.Wait() // its deadline is set, and the watch's read about to end
		netHTTPWatches(t, c)
		close(slow.goOn)
		<-released
		if slow.most != 1 || l.Err() != nil {
			t.Errorf("%d readers at once; the request: %v", slow.most, l.Err())
		}
		go io.WriteString(other, "next")
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "next" {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

// slowEnd counts who reads at once, and lets a read that a deadline has ended wait for its
// turn.
type slowEnd struct {
	net.Conn
	goOn          chan struct{}
	mu            sync.Mutex
	reading, most int
}

func (c *slowEnd) Read(p []byte) (int, error) {
	count := func(by int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reading += by
		c.most = max(c.most, c.reading)
	}
	count(1)
	defer count(-1)
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		<-c.goOn
	}
	return n, err
}

// net/http may want one byte of a body, when its buffer is nearly full, and it may watch
// where it has a part of the next request already.
func TestAReadOfOneByteThatMayBeOfABodyIsMade(t *testing.T) {
	for name, leaves := range map[string]bool{"a byte": false, "the client leaves": true} {
		t.Run(name, func(t *testing.T) {
			inPipe(t, 0, func(c *guardedConn, _ *counted, other net.Conn) {
				c.at = inTrailers
				var l life
				c.serve(&l)
				read := make(chan int, 1)
				go func() {
					n, _ := c.Read(make([]byte, 1))
					read <- n
				}()
				synctest.Wait()
				c.watch()
				<-time.NewTimer(time.Second).C // a watch of ours would have begun
				if leaves {
					other.Close()
				} else {
					io.WriteString(other, "x")
				}
				if n := <-read; (n == 0) != leaves || (l.Err() != nil) != leaves {
					t.Errorf("%d bytes read; the request: %v", n, l.Err())
				}
				c.release()
			})
		})
	}
}
