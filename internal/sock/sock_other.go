//go:build unix && !linux

package sock

import (
	"errors"
	"syscall"
)

const quick = false

// Read reads from a socket that does not block. It returns 0 at its end, and
// syscall.EAGAIN where there is nothing to read.
func Read(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

// Quiet reports whether there is neither anything to read from a socket nor its end.
func Quiet(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return errors.Is(err, syscall.EAGAIN)
}

func write(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
