//go:build unix

package http

import (
	"errors"
	"syscall"
)

// liveness is what alive keeps between its calls, so that it does not allocate.
type liveness struct {
	raw   syscall.RawConn
	peek  func(fd uintptr) bool
	quiet bool // nothing to read, and no end, when peek last ran
}

// alive reports whether an unused connection can carry another request: the
// worker has neither closed it nor sent anything. It costs one system call and
// does not block.
func (c *conn) alive() bool {
	l := &c.live
	if l.raw == nil {
		sc, ok := c.raw.(syscall.Conn)
		if !ok {
			return true
		}
		raw, err := sc.SyscallConn()
		if err != nil {
			return false
		}
		l.raw = raw
		l.peek = func(fd uintptr) bool {
			var b [1]byte
			_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			l.quiet = errors.Is(err, syscall.EAGAIN)
			return true
		}
	}
	l.quiet = false
	return l.raw.Read(l.peek) == nil && l.quiet
}
