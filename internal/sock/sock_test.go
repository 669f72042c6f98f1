package sock_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"pointsman/internal/sock"
)

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (mine net.Conn, theirs *net.TCPConn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	dialed, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); got.Close() })
	return sock.New(dialed), got.(*net.TCPConn)
}

func TestMegabytesPassBothWaysAtOnce(t *testing.T) {
	mine, theirs := pair(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // more than sockets hold
	var both sync.WaitGroup
	send := func(c net.Conn, end func() error) {
		if n, err := c.Write(data); n != len(data) || err != nil {
			t.Errorf("%d bytes written, %v", n, err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	receive := func(c net.Conn) {
		if got, err := io.ReadAll(c); !bytes.Equal(got, data) || err != nil {
			t.Errorf("%d bytes read, %v", len(got), err)
		}
	}
	tcp, _ := mine.(*sock.Conn)
	if tcp == nil {
		if runtime.GOOS == "linux" {
			t.Fatal("a TCP connection has no calls of its own")
		}
		t.Skip("no calls of its own on this system")
	}
	both.Go(func() { send(mine, tcp.Conn.(*net.TCPConn).CloseWrite) })
	both.Go(func() { send(theirs, theirs.CloseWrite) })
	both.Go(func() { receive(mine) })
	both.Go(func() { receive(theirs) })
	both.Wait()
}

func TestAWaitEndsByDeadlineAndByClose(t *testing.T) {
	tests := []struct {
		name string
		end  func(net.Conn)
		want error
	}{
		{"a deadline that comes", func(c net.Conn) { c.SetDeadline(time.Now().Add(10 * time.Millisecond)) }, os.ErrDeadlineExceeded},
		{"a deadline that has passed", func(c net.Conn) { c.SetDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		{"a close", func(c net.Conn) { c.Close() }, net.ErrClosed},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			mine, _ := pair(t)
			var waits sync.WaitGroup
			waits.Go(func() {
				if n, err := mine.Read(make([]byte, 1)); n != 0 || !errors.Is(err, tc.want) {
					t.Errorf("a read ends with %d bytes, %v", n, err)
				}
			})
			waits.Go(func() {
				for { // until nothing fits any more
					if _, err := mine.Write(make([]byte, 1<<20)); err != nil {
						if !errors.Is(err, tc.want) {
							t.Errorf("a write ends with %v", err)
						}
						return
					}
				}
			})
			tc.end(mine)
			waits.Wait()
		})
	}
}

func TestEndsAndFaultsAreToldAsByPackageNet(t *testing.T) {
	mine, theirs := pair(t)
	theirs.CloseWrite()
	if n, err := mine.Read(make([]byte, 8)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the end: %d bytes, %v", n, err)
	}
	if n, err := mine.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d bytes, %v", n, err)
	}
	mine, theirs = pair(t)
	theirs.SetLinger(0)
	theirs.Close() // resets
	_, err := mine.Read(make([]byte, 8))
	var op *net.OpError
	if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Op != "read" {
		t.Errorf("a reset: %v", err)
	}
	if _, err = mine.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) || !errors.As(err, &op) || op.Op != "write" {
		t.Errorf("behind a reset: %v", err)
	}
}

func TestQuietTellsWhetherAnybodyHasSaidAnything(t *testing.T) {
	quiet := func(c net.Conn) (is bool) {
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err = raw.Read(func(fd uintptr) bool { is = sock.Quiet(fd); return true }); err != nil {
			t.Fatal(err)
		}
		return is
	}
	mine, theirs := pair(t)
	if !quiet(mine) {
		t.Error("an unused connection is not quiet")
	}
	theirs.Write([]byte("x"))
	if _, err := mine.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if !quiet(mine) {
		t.Error("a connection that was read is not quiet")
	}
	theirs.CloseWrite()
	io.Copy(io.Discard, mine) // until the end is there
	if quiet(mine) {
		t.Error("a connection that has ended is quiet")
	}
}

func TestOtherConnectionsAreLeftAlone(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if sock.New(a) != a {
		t.Error("a pipe is taken for a socket")
	}
}

func TestCallsAllocateNothing(t *testing.T) {
	mine, theirs := pair(t)
	buf := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		mine.Write(buf[:1])
		theirs.Read(buf)
		theirs.Write(buf[:1])
		mine.Read(buf)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
