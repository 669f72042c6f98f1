//go:build unix

package http

import (
	"errors"
	"syscall"
)

// alive reports whether an unused connection can carry another request: the
// worker has neither closed it nor sent anything. It costs one system call and
// does not block.
func (c *conn) alive() bool {
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, peeked := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = errors.Is(peeked, syscall.EAGAIN)
		return true
	})
	return err == nil && alive
}
