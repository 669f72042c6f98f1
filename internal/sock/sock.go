//go:build unix

// Package sock reads and writes TCP connections by system calls of which the Go
// scheduler is not told. The sockets do not block, so there is nothing to tell: a call
// takes some microseconds. If it is told, its monitor thread takes the processor away
// from a goroutine that the kernel interrupts inside of such a call, which a proxy on a
// busy machine meets in a large part of its calls, and wakes every 20 µs to look for
// more.
//
// Where a connection is no TCP, or the system is not Linux, everything goes by net.Conn.
//
// # Concurrency
//
// One goroutine may read a [Conn] while another writes it, and any may set deadlines
// or close it, as with net.Conn; but two may not read, nor write, at once.
package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Conn is a connection with calls of its own. Make it with [New].
type Conn struct {
	net.Conn
	raw  syscall.RawConn
	in   transfer
	out  transfer
	take func(fd uintptr) bool // in and out, as functions, made once
	give func(fd uintptr) bool
}

// transfer is one call of Read or Write.
type transfer struct {
	p   []byte
	n   int
	err error
}

// New returns c with calls of its own, or c itself where it can have none.
func New(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok || !quick {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	s := &Conn{Conn: c, raw: raw}
	s.take, s.give = s.reading, s.writing
	return s
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in = transfer{p: p}
	err := c.raw.Read(c.take)
	n, failed := c.in.n, c.in.err
	c.in.p = nil
	switch {
	case err != nil:
		return 0, err
	case failed != nil:
		return 0, c.fault("read", failed)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *Conn) reading(fd uintptr) bool {
	c.in.n, c.in.err = Read(fd, c.in.p)
	return !errors.Is(c.in.err, syscall.EAGAIN)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.out = transfer{p: p}
	err := c.raw.Write(c.give)
	n, failed := c.out.n, c.out.err
	c.out.p = nil
	switch {
	case err != nil:
		return n, err
	case failed != nil:
		return n, c.fault("write", failed)
	}
	return n, nil
}

func (c *Conn) writing(fd uintptr) bool {
	t := &c.out
	for t.n < len(t.p) {
		n, err := Write(fd, t.p[t.n:])
		if err != nil {
			if errors.Is(err, syscall.EAGAIN) {
				return false
			}
			t.err = err
			return true
		}
		t.n += n
	}
	return true
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// fault is an error as package net tells it.
func (c *Conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, err)}
}
