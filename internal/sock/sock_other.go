//go:build unix && (!linux || race)

package sock

import (
	"errors"
	"runtime"
	"syscall"
)

// quick says that there are calls of our own. Under the race detector these are the
// ordinary ones, which tell it what happens before what.
const quick = runtime.GOOS == "linux"

// Read reads from a socket that does not block. It returns 0 at its end, and
// syscall.EAGAIN where there is nothing to read.
func Read(fd uintptr, p []byte) (int, error) { return call(syscall.Read, fd, p) }

// Quiet reports whether there is neither anything to read from a socket nor its end.
func Quiet(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return errors.Is(err, syscall.EAGAIN)
}

// Write writes as much of p as there is room for to a socket that does not block, or
// returns syscall.EAGAIN where there is none.
func Write(fd uintptr, p []byte) (int, error) { return call(syscall.Write, fd, p) }

// call repeats a call that a signal has interrupted. One that fails says -1 bytes,
// which are none.
func call(do func(int, []byte) (int, error), fd uintptr, p []byte) (int, error) {
	for {
		n, err := do(int(fd), p)
		if !errors.Is(err, syscall.EINTR) {
			return max(n, 0), err
		}
	}
}
