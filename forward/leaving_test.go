package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// netHTTPWatches does what net/http does behind a request's body.
func netHTTPWatches(t *testing.T, c *guardedConn) {
	t.Helper()
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
