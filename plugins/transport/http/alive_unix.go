//go:build unix

package http

import (
	"errors"
	"io"
	"os"
	"syscall"

	"pointsman/internal/sock"
)

// socket is what is done with a connection below net.Conn, prepared once so that
// nothing is allocated for it. The zero value is of a connection that is none.
type socket struct {
	raw  syscall.RawConn
	peek func(fd uintptr) bool
	take func(fd uintptr) bool

	quiet bool  // nothing to read, and no end, when peek last ran
	n     int   // what take has read
	err   error // and what it failed with
}

// bind prepares c.socket.
func (c *conn) bind() {
	s := &c.socket
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	s.raw = raw
	s.peek = func(fd uintptr) bool {
		s.quiet = sock.Quiet(fd)
		return true
	}
	s.take = c.take
}

// alive reports whether an unused connection can carry another request: the
// worker has neither closed it nor sent anything. It costs one system call and
// does not block.
func (c *conn) alive() bool {
	s := &c.socket
	if s.raw == nil {
		return true
	}
	s.quiet = false
	return s.raw.Read(s.peek) == nil && s.quiet
}

// bare reports whether c can be read below net.Conn: TLS cannot.
func (c *conn) bare() bool { return c.socket.raw != nil && c.Conn == c.raw }

// await reads into the buffer, of which it needs none while nothing comes: most
// connections wait for most of the time.
func (c *conn) await() error {
	s := &c.socket
	c.giveBack()
	s.n, s.err = 0, nil
	if err := s.raw.Read(s.take); err != nil {
		return err
	}
	c.w = s.n
	switch {
	case s.err != nil:
		return os.NewSyscallError("read", s.err)
	case s.n == 0:
		return io.EOF
	}
	return nil
}

// take reads what is there; false when nothing is.
func (c *conn) take(fd uintptr) bool {
	s := &c.socket
	c.borrow()
	s.n, s.err = sock.Read(fd, c.buf)
	if errors.Is(s.err, syscall.EAGAIN) {
		c.giveBack()
		return false
	}
	return true
}
