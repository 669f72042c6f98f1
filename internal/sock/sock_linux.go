//go:build linux && !race

package sock

import (
	"syscall"
	"unsafe"
)

// quick says that there are calls of our own.
const quick = true

// Read reads from a socket that does not block. It returns 0 at its end, and
// syscall.EAGAIN where there is nothing to read. p must not be empty.
func Read(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_READ, fd, p) }

// Write writes as much of p as there is room for to a socket that does not block, or
// returns syscall.EAGAIN where there is none.
func Write(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_WRITE, fd, p) }

// Quiet reports whether there is neither anything to read from a socket nor its end.
func Quiet(fd uintptr) bool {
	var b [1]byte
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b[0])), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0) //nolint:gosec // one byte of a variable that lives
	return errno == syscall.EAGAIN
}

func call(number, fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))) //nolint:gosec // the bytes of p, which lives
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, syscall.EAGAIN
		default:
			return 0, errno
		}
	}
}
