package forward

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts how often deadlines are really set.
type counted struct {
	net.Conn
	reads, writes int
}

func (c *counted) SetReadDeadline(t time.Time) error {
	c.reads++
	return c.Conn.SetReadDeadline(t)
}

func (c *counted) SetWriteDeadline(t time.Time) error {
	c.writes++
	return c.Conn.SetWriteDeadline(t)
}

// inPipe runs f in a bubble with a guarded connection of the given limit for writes and
// its other end. What is read is no HTTP.
func inPipe(t *testing.T, limit time.Duration, f func(c *guardedConn, under *counted, other net.Conn)) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		mine, other := net.Pipe()
		defer mine.Close()
		defer other.Close()
		under := &counted{Conn: mine}
		f(&guardedConn{Conn: under, bufs: new(buffers), limit: limit, at: unguarded}, under, other)
	})
}

func TestADeadlineEndsAReadThatWaits(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"to come": time.Second, "passed": -time.Second} {
		t.Run(name, func(t *testing.T) {
			inPipe(t, 0, func(c *guardedConn, _ *counted, _ net.Conn) {
				start := time.Now()
				failed := make(chan error)
				go func() {
					_, err := c.Read(make([]byte, 1))
					failed <- err
				}()
				synctest.Wait()
				c.SetReadDeadline(start.Add(deadline))
				if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != max(deadline, 0) {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the next read: %v", err)
				}
			})
		})
	}
}

func TestDeadlinesThatNoReadMeetsAreNotSet(t *testing.T) {
	inPipe(t, 0, func(c *guardedConn, under *counted, other net.Conn) {
		go other.Write([]byte("ab"))
		for range 2 {
			c.SetReadDeadline(time.Now().Add(-time.Second))
			c.SetReadDeadline(time.Now().Add(time.Second))
			c.SetReadDeadline(time.Time{})
			if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		if under.reads != 0 {
			t.Errorf("deadlines were set %d times", under.reads)
		}
		c.SetReadDeadline(time.Now().Add(time.Second)) // the one that counts
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestALaterDeadlineIsSetWhenTheEarlierComes(t *testing.T) {
	for name, later := range map[string]time.Duration{"later": 3 * time.Second, "none": 0} {
		t.Run(name, func(t *testing.T) {
			inPipe(t, 0, func(c *guardedConn, under *counted, other net.Conn) {
				start := time.Now()
				read := func() error {
					_, err := c.Read(make([]byte, 1))
					return err
				}
				wanted := func(d time.Duration) {
					if d != 0 {
						c.SetReadDeadline(start.Add(d))
					} else {
						c.SetReadDeadline(time.Time{})
					}
				}
				go other.Write([]byte("a"))
				wanted(time.Second)
				if err := read(); err != nil {
					t.Fatal(err)
				}
				wanted(later)
				go func() {
					<-time.NewTimer(2 * time.Second).C
					other.Write([]byte("b"))
				}()
				if err := read(); err != nil || time.Since(start) != 2*time.Second || under.reads != 2 {
					t.Errorf("%v after %v, deadlines set %d times", err, time.Since(start), under.reads)
				}
				wanted(-time.Second) // as net/http ends its watch
				if err := read(); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("under a deadline that has passed: %v", err)
				}
				wanted(later)
				go other.Write([]byte("c"))
				if err := read(); err != nil || under.reads != 4 {
					t.Errorf("behind it: %v, deadlines set %d times", err, under.reads)
				}
				if later > 0 {
					if err := read(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != later {
						t.Errorf("the later one: %v after %v", err, time.Since(start))
					}
				}
			})
		})
	}
}

func TestEachWriteHasItsTime(t *testing.T) {
	const limit = time.Minute
	inPipe(t, limit, func(c *guardedConn, under *counted, other net.Conn) {
		write := func() error {
			_, err := c.Write([]byte("x"))
			return err
		}
		take := func() { go other.Read(make([]byte, 1)) }
		for range 10 { // requests one after another, behind each of which net/http lifts the deadline
			take()
			if err := write(); err != nil {
				t.Fatal(err)
			}
			c.SetWriteDeadline(time.Time{})
		}
		if under.writes != 1 {
			t.Errorf("the deadline was set %d times for ten writes at once", under.writes)
		}
		<-time.NewTimer(2 * limit).C // of the bubble: the connection is unused for longer than that
		take()
		if err := write(); err != nil {
			t.Errorf("the deadline of a former request: %v", err)
		}
		start := time.Now()
		if err := write(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) > limit || time.Since(start) < limit*3/4 {
			t.Errorf("a client that takes nothing: %v after %v", err, time.Since(start))
		}
	})
	inPipe(t, limit, func(c *guardedConn, _ *counted, other net.Conn) {
		go other.Read(make([]byte, 1))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		c.limit = 0 // by a reload
		go func() {
			<-time.NewTimer(2 * limit).C
			other.Read(make([]byte, 1))
		}()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Errorf("without a limit: %v", err)
		}
	})
}
