//nolint:gosec // G115: integers of other widths are what this file is about
package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// This is the client half of ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) with
// the NULL mechanism, for the two socket types that are needed. The library
// zmq4 is not used for it: its dial waits without limit for a peer that accepts
// and never speaks, it allocates whatever length a frame's header claims (and
// panics above the largest slice), and its reader outlives Close while a message
// waits to be taken.

// socketType is what the client says it is.
type socketType string

const (
	sub    socketType = "SUB"
	dealer socketType = "DEALER"
)

// serves reports whether a peer of the given type is the other half of t.
func (t socketType) serves(peer string) bool {
	if t == sub {
		return peer == "PUB" || peer == "XPUB"
	}
	return peer == "ROUTER" || peer == "REP" || peer == "DEALER"
}

var (
	errProtocol = errors.New("not a ZeroMQ peer of the kind expected")
	errTooLarge = errors.New("message larger than the limit")
)

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	greetingSize = 64
	maxCommand   = 4096 // bytes; real ones have some tens
	maxFrames    = 16   // of a message; real ones have three
	writeTimeout = 5 * time.Second
	readBuffer   = 16 << 10
	growth       = 1 << 20 // most that is allocated ahead of bytes received
)

// conn is a connection after its handshake. One goroutine reads and writes.
type conn struct {
	net.Conn
	r     *bufio.Reader
	limit int
	stop  func() bool // ends the watch on the context
}

// dial connects to host:port. The connection closes when ctx is done.
func dial(ctx context.Context, addr string, kind socketType, timeout time.Duration, limit int) (*conn, error) {
	d := net.Dialer{
		Timeout: timeout,
		// A publisher may be silent for hours, so only the kernel can tell that
		// its machine is gone: after 15 + 3 x 5 s.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, r: newReader(raw), limit: limit}
	c.stop = context.AfterFunc(ctx, func() { _ = raw.Close() })
	if err := c.handshake(kind, timeout); err != nil {
		c.close()
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	return c, nil
}

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, readBuffer) }

func (c *conn) close() {
	c.stop()
	_ = c.Close()
}

func (c *conn) handshake(kind socketType, timeout time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	hello := make([]byte, greetingSize)
	hello[0], hello[9], hello[10] = 0xff, 0x7f, 3
	copy(hello[12:], "NULL")
	if _, err := c.Write(hello); err != nil {
		return err
	}
	var peer [greetingSize]byte
	if _, err := io.ReadFull(c.r, peer[:]); err != nil {
		return err
	}
	if peer[0] != 0xff || peer[9]&1 != 1 || peer[10] < 3 {
		return errProtocol
	}
	if mechanism := bytes.TrimRight(peer[12:32], "\x00"); string(mechanism) != "NULL" {
		return fmt.Errorf("%w: it wants the security mechanism %q", errProtocol, mechanism)
	}
	ready := property([]byte("\x05READY"), "Socket-Type", string(kind))
	if kind == dealer {
		ready = property(ready, "Identity", "")
	}
	if err := c.frame(flagCommand, ready); err != nil {
		return err
	}
	if err := c.peerReady(kind); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

func property(dst []byte, name, value string) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...)
}

func (c *conn) peerReady(kind socketType) error {
	flags, size, err := c.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return errProtocol
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	name, rest := cutCounted(body)
	switch string(name) {
	case "READY":
	case "ERROR":
		reason, _ := cutCounted(rest)
		return fmt.Errorf("%w: it says %q", errProtocol, reason)
	default:
		return errProtocol
	}
	for len(rest) > 0 {
		var key []byte
		if key, rest = cutCounted(rest); key == nil || len(rest) < 4 {
			return errProtocol
		}
		n := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(n) > uint64(len(rest)) {
			return errProtocol
		}
		if value := rest[:n]; bytes.EqualFold(key, []byte("Socket-Type")) {
			if !kind.serves(string(value)) {
				return fmt.Errorf("%w: a %s socket", errProtocol, value)
			}
			return nil
		}
		rest = rest[n:]
	}
	return errProtocol
}

// cutCounted returns the string that its first byte counts, nil for none.
func cutCounted(b []byte) (head, rest []byte) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, nil
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:]
}

// subscribe asks a publisher for all topics that begin with topic.
func (c *conn) subscribe(topic string) error { return c.send(append([]byte{1}, topic...)) }

// send writes one message.
func (c *conn) send(frames ...[]byte) error {
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		if err := c.frame(flags, f); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) frame(flags byte, body []byte) error {
	head := make([]byte, 0, 9+len(body))
	if len(body) > 255 {
		head = binary.BigEndian.AppendUint64(append(head, flags|flagLong), uint64(len(body)))
	} else {
		head = append(head, flags, byte(len(body)))
	}
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.Write(append(head, body...))
	return err
}

func (c *conn) header() (flags byte, size uint64, err error) {
	var b [8]byte
	if flags, err = c.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&flagLong == 0 {
		var n byte
		n, err = c.r.ReadByte()
		return flags, uint64(n), err
	}
	_, err = io.ReadFull(c.r, b[:])
	return flags, binary.BigEndian.Uint64(b[:]), err
}

// await blocks until a message begins.
func (c *conn) await() error {
	_, err := c.r.Peek(1)
	return err
}

// receive reads one message into m.
func (c *conn) receive(m *message) error {
	m.reset()
	for {
		flags, size, err := c.header()
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			if err := c.command(size); err != nil {
				return err
			}
			continue
		}
		if size > uint64(c.limit-len(m.bytes)) || len(m.ends) == maxFrames {
			return errTooLarge
		}
		if err := m.read(c.r, int(size)); err != nil {
			return err
		}
		if flags&flagMore == 0 {
			return nil
		}
	}
}

// command answers a PING and passes over anything else.
func (c *conn) command(size uint64) error {
	if size > maxCommand {
		return errProtocol
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	const ttl = 2 // bytes between PING and what is to be sent back
	if name, rest := cutCounted(body); string(name) == "PING" && len(rest) >= ttl {
		return c.frame(flagCommand, append([]byte("\x04PONG"), rest[ttl:]...))
	}
	return nil
}

// message is the frames of one message in one buffer.
type message struct {
	bytes []byte
	ends  []int
}

func (m *message) reset() { m.bytes, m.ends = m.bytes[:0], m.ends[:0] }

// frame returns the i-th frame, of the last one counted back for i below 0.
func (m *message) frame(i int) []byte {
	if i < 0 {
		i += len(m.ends)
	}
	start := 0
	if i > 0 {
		start = m.ends[i-1]
	}
	return m.bytes[start:m.ends[i]]
}

// read appends a frame of n bytes. The buffer grows with what has arrived.
func (m *message) read(r io.Reader, n int) error {
	for n > 0 {
		step := min(n, growth)
		at := len(m.bytes)
		m.bytes = append(m.bytes, make([]byte, step)...)
		if _, err := io.ReadFull(r, m.bytes[at:]); err != nil {
			return err
		}
		n -= step
	}
	m.ends = append(m.ends, len(m.bytes))
	return nil
}
