package http

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"pointsman/forward"
	"pointsman/internal/testkit"
)

// barePair is pair where connections can be used below net.Conn.
func barePair(t *testing.T) (ours *conn, theirs *net.TCPConn) {
	t.Helper()
	if ours, theirs = pair(t); !ours.bare() {
		if runtime.GOOS == "linux" {
			t.Fatal("a TCP connection cannot be used below net.Conn")
		}
		t.Skip("nothing can be done below net.Conn on this system")
	}
	return ours, theirs
}

func TestPollReadsWhatHasComeAndDoesNotWait(t *testing.T) {
	ours, theirs := barePair(t)
	b := &body{x: &exchange{c: ours, ctx: t.Context()}, framing: framedByChunks}
	if b.Poll() {
		t.Error("something has come out of nothing")
	}
	p := make([]byte, 64)
	for _, piece := range []string{"5\r\nhello\r\n", "3\r\nyou\r\n"} {
		io.WriteString(theirs, piece)
		testkit.Until(t, "a chunk to come", b.Poll)
		if !b.Poll() {
			t.Error("what is at hand is not seen")
		}
		if n, err := b.Read(p); err != nil || string(p[:n]) != piece[3:len(piece)-2] {
			t.Errorf("%q, %v", p[:n], err)
		}
	}
	theirs.CloseWrite()
	testkit.Until(t, "the end to come", b.Poll)
	if n, err := b.Read(p); n != 0 || !errors.Is(err, forward.ErrTruncated) {
		t.Errorf("the end: %d bytes, %v", n, err)
	}
	if b.Poll() != !b.Waits() {
		t.Error("behind the end Poll says something else than Waits")
	}
}

func TestAskWritesOnceAndWaitsForTheAnswer(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "larger than sockets hold": 32 << 20} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := barePair(t)
			msg := bytes.Repeat([]byte("0123456789"), size/10)
			var worker sync.WaitGroup
			worker.Go(func() {
				got := make([]byte, len(msg))
				if _, err := io.ReadFull(theirs, got); err != nil || !bytes.Equal(got, msg) {
					t.Errorf("the message is another one, %v", err)
				}
				io.WriteString(theirs, "answer")
			})
			if err := ours.ask(msg, nil); err != nil {
				t.Fatal(err)
			}
			if ours.r == ours.w { // sent in several pieces: the answer is read as any other
				if err := ours.fill(readBuffer); err != nil {
					t.Fatal(err)
				}
			}
			if got := ours.buf[ours.r:ours.w]; string(got) != "answer" {
				t.Errorf("%q", got)
			}
			worker.Wait()
		})
	}
}

func TestADeadConnectionIsNotAsked(t *testing.T) {
	for name, kill := range map[string]func(*net.TCPConn){
		"closed":        func(c *net.TCPConn) { c.Close() },
		"half closed":   func(c *net.TCPConn) { c.CloseWrite() },
		"reset":         func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"unasked bytes": func(c *net.TCPConn) { io.WriteString(c, "HTTP/1.1 408 Timeout\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := barePair(t)
			kill(theirs)
			testkit.Until(t, "the connection seen as dead", func() bool { return !ours.alive() })
			if err := ours.ask([]byte("x"), nil); !errors.Is(err, errDead) {
				t.Errorf("%v, want %v", err, errDead)
			}
		})
	}
	ours, _ := barePair(t)
	ours.close()
	if err := ours.ask([]byte("x"), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed by us: %v", err)
	}
}

func TestEndsBehindAMessageAreThoseOfItsAnswer(t *testing.T) {
	ours, theirs := barePair(t)
	var worker sync.WaitGroup
	worker.Go(func() {
		io.ReadFull(theirs, make([]byte, 1))
		theirs.Close()
	})
	if err := ours.ask([]byte("x"), nil); err != nil {
		t.Errorf("the message was sent, and yet: %v", err)
	}
	if err := ours.fill(readBuffer); !errors.Is(err, io.EOF) {
		t.Errorf("its answer: %v, want the end", err)
	}
	worker.Wait()
}

func TestDeadKeptConnectionsArePassedOverForALivingOne(t *testing.T) {
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	w := newScripted(t, say(answer, true))
	tr := newTransport(t, nil)
	key := keyOf(w.worker())
	if got := do(t, tr, w.worker(), post("{}")); got.err != nil {
		t.Fatal(got.err)
	}
	living := tr.pool.pop(key)
	tr.pool.push(living)
	for range 3 {
		dead, theirs := barePair(t)
		dead.key = key
		theirs.Close()
		testkit.Until(t, "the connection seen as dead", func() bool { return !dead.alive() })
		tr.pool.push(dead)
	}
	if got := do(t, tr, w.worker(), post("{}")); got.err != nil {
		t.Fatal(got.err)
	}
	for _, r := range w.requests() {
		if r.conn != 1 {
			t.Errorf("a request came on connection %d", r.conn)
		}
	}
}
