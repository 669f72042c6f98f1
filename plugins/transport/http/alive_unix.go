//go:build unix

package http

import (
	"errors"
	"io"
	"os"
	"syscall"

	"pointsman/forward"
	"pointsman/internal/sock"
)

// socket is what is done with a connection below net.Conn, prepared once so that
// nothing is allocated for it. The zero value is of a connection that is none.
type socket struct {
	raw  syscall.RawConn
	peek func(fd uintptr) bool
	take func(fd uintptr) bool
	poll func(fd uintptr) bool // take, but that it does not wait
	ask  func(fd uintptr) bool

	msg   []byte // what ask is to write
	asked bool   // it has run
	sent  int    // of msg
	fault error  // why not all
	told  *forward.Progress

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
	s.poll = func(fd uintptr) bool {
		c.take(fd)
		return true
	}
	s.ask = func(fd uintptr) bool {
		if s.asked {
			return c.take(fd)
		}
		s.asked = true
		return !c.send(fd) // a read would be too early
	}
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
	c.giveBack()
	return c.receive(c.socket.take)
}

// poll is await when something is there, and else reports false.
func (c *conn) poll() (bool, error) {
	c.giveBack()
	err := c.receive(c.socket.poll)
	return !errors.Is(err, syscall.EAGAIN), err
}

// ask writes msg, tells when it is sent, and waits for the first bytes behind it, which
// fill then finds. The poller watches from before the write on, so that nothing is read
// in vain meanwhile, and nothing is missed. Its error is of the write, errDead when the
// worker had closed the connection before.
func (c *conn) ask(msg []byte, told *forward.Progress) error {
	s := &c.socket
	c.giveBack()
	s.msg, s.told, s.asked, s.quiet, s.sent, s.fault = msg, told, false, false, 0, nil
	err := c.receive(s.ask)
	s.msg, s.told = nil, nil
	switch {
	case !s.asked:
		return err
	case !s.quiet:
		return errDead
	case s.fault != nil:
		return os.NewSyscallError("write", s.fault)
	case s.sent < len(msg): // there was no room for the rest, which waits for it
		if _, err = c.Write(msg[s.sent:]); err == nil {
			told.Reach(forward.StageDispatched)
		}
		return err
	}
	c.broken = err
	return nil
}

// send is ask's write; true when all is written.
func (c *conn) send(fd uintptr) bool {
	s := &c.socket
	if s.quiet = sock.Quiet(fd); !s.quiet {
		return false
	}
	if s.sent, s.fault = sock.Write(fd, s.msg); errors.Is(s.fault, syscall.EAGAIN) {
		s.fault = nil
	}
	if s.fault != nil || s.sent < len(s.msg) {
		return false
	}
	s.told.Reach(forward.StageDispatched)
	return true
}

// receive reads into the empty buffer by a prepared call.
func (c *conn) receive(call func(fd uintptr) bool) error {
	s := &c.socket
	s.n, s.err = 0, nil
	if err := s.raw.Read(call); err != nil {
		return err
	}
	c.w = s.n
	switch {
	case errors.Is(s.err, syscall.EAGAIN):
		return syscall.EAGAIN // as it is: most polls end so
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
