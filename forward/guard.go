package forward

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"pointsman/internal/sock"
)

// errFraming is what net/http's server reads in place of a request whose end two
// readers could see in different places; it answers 400 and closes.
var errFraming = errors.New("ambiguous request framing")

// guardedListener accepts connections whose requests are held to RFC 9112 without
// the latitude that it allows recipients, and that net/http takes: Content-Length
// beside Transfer-Encoding, repeated lengths, line ends without CR, folded header
// lines, an absolute target beside another Host (failover S6). A proxy in front
// of us may have read such a request otherwise.
type guardedListener struct {
	net.Listener
	bufs  *buffers             // lends what gathers writes
	limit func() time.Duration // Config.WriteTimeout of the time
}

// Accept implements net.Listener.
func (l guardedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: sock.New(c), bufs: l.bufs, limit: l.limit()}, nil
}

// place is where in the stream of requests a connection is.
type place uint8

const (
	atRequestLine place = iota
	inHead
	inBody   // of left bytes
	atChunk  // before a chunk's size
	inChunk  // of left bytes
	chunkEnd // behind a chunk's data
	inTrailers
	unguarded // HTTP/2 frames
)

// guardedConn looks at what the server reads, and gathers what a stream writes. Only
// one goroutine reads at a time, and one writes.
type guardedConn struct {
	net.Conn
	deadlines deadlines
	leaving   leaving

	bufs      *buffers
	gathering bool
	kept      *[]byte       // written and not sent; nil for nothing
	limit     time.Duration // longest wait for the client to take a write; 0 for ever

	at   place
	left int64
	part []byte // of a line whose end has not come

	old              bool   // HTTP/1.0
	target, host     string // authority of an absolute target, and the Host header
	lengths, codings int
}

// Read implements net.Conn.
func (c *guardedConn) Read(p []byte) (int, error) {
	watch := len(p) == 1 // net/http's behind a request, as a rule
	if watch && c.leaving.skips(c.at == atRequestLine) {
		return 0, nil
	}
	n, err := c.next(p)
	if watch {
		c.leaving.back(err)
	}
	if c.at != unguarded && !c.look(p[:n]) {
		return 0, errFraming
	}
	return n, err
}

// hasBody reports whether all of the latest request has been read, so that there is
// nothing to wait for. Only the request's own goroutine may ask, before net/http
// watches for the client's leaving.
func (c *guardedConn) hasBody() bool { return c != nil && c.at == atRequestLine }

// maxLine is how long a line is at most that is waited for. It is longer than what
// net/http reads of a head, so that net/http is first to refuse it, and says why: 431.
const maxLine = maxHeaderBytes + 16<<10

// look follows p; false when it is not to be read.
func (c *guardedConn) look(p []byte) bool {
	for len(p) > 0 && c.at != unguarded {
		if c.at == inBody || c.at == inChunk {
			n := min(int64(len(p)), c.left)
			p = p[n:]
			if c.left -= n; c.left == 0 {
				c.at = c.behind()
			}
			continue
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			c.part = append(c.part, p...)
			return len(c.part) <= maxLine
		}
		line := p[:end+1]
		p = p[end+1:]
		if len(c.part) > 0 {
			c.part = append(c.part, line...)
			line = c.part
		}
		if len(line) < 2 || line[len(line)-2] != '\r' || !c.line(line[:len(line)-2]) {
			return false
		}
		c.part = c.part[:0]
	}
	return true
}

// behind returns what follows the data that has just ended.
func (c *guardedConn) behind() place {
	if c.at == inBody {
		return atRequestLine
	}
	return chunkEnd
}

// line takes a line without its CR LF.
func (c *guardedConn) line(b []byte) bool {
	if bytes.IndexByte(b, '\r') >= 0 || bytes.IndexByte(b, 0) >= 0 {
		return false
	}
	switch c.at {
	case atRequestLine:
		return c.requestLine(b)
	case inHead:
		if len(b) == 0 {
			return c.headEnd()
		}
		return c.header(b)
	case atChunk:
		return c.chunk(b)
	case chunkEnd:
		c.at = atChunk
		return len(b) == 0
	case inTrailers:
		if len(b) == 0 {
			c.at = atRequestLine
		}
		return len(b) == 0 || b[0] != ' ' && b[0] != '\t'
	case inBody, inChunk, unguarded:
	}
	return false
}

func (c *guardedConn) requestLine(b []byte) bool {
	if bytes.HasPrefix(b, []byte("PRI * HTTP/2")) {
		c.at, c.part = unguarded, nil
		return true
	}
	c.at, c.lengths, c.codings, c.left, c.target, c.host = inHead, 0, 0, 0, "", ""
	c.old = bytes.HasSuffix(b, []byte(" HTTP/1.0"))
	if _, rest, ok := bytes.Cut(b, []byte(" ")); ok && len(rest) > 0 && rest[0] != '/' {
		if _, authority, absolute := bytes.Cut(rest, []byte("://")); absolute {
			if end := bytes.IndexAny(authority, "/? "); end >= 0 {
				authority = authority[:end]
			}
			c.target = string(authority)
		}
	}
	return len(b) > 0
}

// header takes a header line. What is wrong with names and values in general is
// net/http's to say.
func (c *guardedConn) header(b []byte) bool {
	if b[0] == ' ' || b[0] == '\t' {
		return false
	}
	name, value, _ := bytes.Cut(b, []byte(":"))
	value = bytes.Trim(value, " \t")
	switch len(name) {
	case len("Host"):
		if bytes.EqualFold(name, []byte("Host")) {
			c.host = string(value)
		}
	case len("Content-Length"):
		if bytes.EqualFold(name, []byte("Content-Length")) {
			n, err := strconv.ParseUint(string(value), 10, 63) // digits only
			c.left = int64(n)
			c.lengths++
			return err == nil
		}
	case len("Transfer-Encoding"):
		if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
			c.codings++
			return !c.old && bytes.EqualFold(value, []byte("chunked"))
		}
	}
	return true
}

// headEnd decides how the body ends.
func (c *guardedConn) headEnd() bool {
	switch {
	case c.lengths+c.codings > 1, c.target != "" && !strings.EqualFold(c.target, c.host):
		return false
	case c.codings == 1:
		c.at = atChunk
	case c.left > 0:
		c.at = inBody
	default:
		c.at = atRequestLine
	}
	return true
}

// chunk takes a chunk's size line.
func (c *guardedConn) chunk(b []byte) bool {
	size, _, _ := bytes.Cut(b, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.TrimRight(size, " \t")), 16, 62)
	if err != nil {
		return false
	}
	c.left = int64(n)
	if c.at = inChunk; n == 0 {
		c.at = inTrailers
	}
	return true
}
