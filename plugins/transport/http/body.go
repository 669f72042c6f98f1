package http

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"

	"pointsman/forward"
)

// body reads a response body and gives the connection back at its end.
type body struct {
	x       *exchange
	framing framing
	left    int64 // bytes of the body or chunk not read
	keep    bool  // the connection may be used again after the end
	inChunk bool  // within a chunk's data, or before the CR LF behind it
	done    bool  // the connection is not ours any more
	err     error // what Read returns from now on; nil while there is something to read
	trailer nethttp.Header
}

// Read returns what is at hand, at least one byte.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	var n int
	var err error
	switch b.framing {
	case framedByChunks:
		n, err = b.readChunks(p)
	case framedByLength:
		n, err = b.readData(p, &b.left)
		if err == nil && b.left == 0 {
			err = io.EOF
		}
	default:
		left := int64(len(p))
		n, err = b.readData(p, &left)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.end()
	default:
		b.fail(err)
	}
	return n, b.err
}

// readData reads at most *left bytes of data: from the buffer if it has any,
// else from the connection.
func (b *body) readData(p []byte, left *int64) (int, error) {
	c := b.x.c
	p = p[:min(int64(len(p)), *left)]
	if c.r == c.w {
		if len(p) >= readBuffer && int64(len(p)) < *left && c.broken == nil { // all that comes is data: no need to copy it twice
			n, err := c.Read(p)
			*left -= int64(n)
			if n > 0 {
				err = nil
			}
			return n, unexpected(err)
		}
		if err := c.fill(readBuffer); err != nil {
			return 0, unexpected(err)
		}
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	*left -= int64(n)
	return n, nil
}

// Waits implements forward.Waiter.
func (b *body) Waits() bool {
	if b.err != nil || b.done {
		return false
	}
	have := b.x.c.buf[b.x.c.r:b.x.c.w]
	// Behind a chunk its end is at hand, as a rule. More than that is Read's to judge.
	return len(have) == 0 || b.framing == framedByChunks && b.inChunk && b.left == 0 && string(have) == "\r\n"
}

// Wait implements forward.Waiter: it waits for more bytes. They may be too few for
// Read; and what fails here is for Read to tell.
func (b *body) Wait() {
	b.empty()
	b.x.c.broken = b.x.c.fill(readBuffer)
}

// Poll implements forward.Waiter; a connection under TLS cannot tell.
func (b *body) Poll() bool {
	c := b.x.c
	switch {
	case !b.Waits():
		return true
	case !c.bare(), c.broken != nil:
		return false
	}
	b.empty()
	c.r, c.w = 0, 0
	some, err := c.poll()
	if some {
		c.broken = err
	}
	return some
}

// empty takes the end of a chunk out of the buffer, which it would keep.
func (b *body) empty() {
	if c := b.x.c; c.r < c.w {
		c.r, b.inChunk = c.w, false
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readChunks decodes all chunks that are in the buffer, and waits only while
// it has nothing to return.
func (b *body) readChunks(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if n > 0 && !b.ready() {
			return n, nil
		}
		if b.left == 0 {
			if err := b.nextChunk(); err != nil {
				return n, err
			}
			continue
		}
		m, err := b.readData(p[n:], &b.left)
		n += m
		if err != nil {
			return n, err
		}
	}
	// The end of the body is told together with its last bytes, if it is there.
	for b.left == 0 && b.ready() {
		if err := b.nextChunk(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// ready reports whether the next step needs no byte that is not in the buffer.
func (b *body) ready() bool {
	c := b.x.c
	have := c.buf[c.r:c.w]
	if b.left > 0 {
		return len(have) > 0
	}
	if b.inChunk {
		if len(have) < 2 {
			return false
		}
		have = have[2:]
	}
	end := bytes.IndexByte(have, '\n')
	if end < 0 {
		return false
	}
	if have[0] == '0' { // perhaps the last chunk: its trailers must be there too
		return bytes.HasSuffix(have[:end+1], []byte("\r\n")) && bytes.Contains(have[end-1:], []byte("\r\n\r\n"))
	}
	return true
}

// nextChunk reads up to the data of the next chunk; io.EOF means that there is
// none, and the trailers have been read.
func (b *body) nextChunk() error {
	if b.inChunk {
		line, err := b.line(2)
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return malformed("chunk end")
		}
		b.inChunk = false
	}
	line, err := b.line(maxChunkLine)
	if err != nil {
		return err
	}
	if b.left, err = parseChunkLine(line); err != nil {
		return err
	}
	if b.left > 0 {
		b.inChunk = true
		return nil
	}
	return b.readTrailers()
}

// line returns the next line of at most limit bytes, without its CR LF.
func (b *body) line(limit int) ([]byte, error) {
	c := b.x.c
	for seen := 0; ; {
		have := c.buf[c.r:c.w]
		if i := bytes.IndexByte(have[seen:], '\n'); i >= 0 {
			end := seen + i
			if end+1 > limit || end == 0 || have[end-1] != '\r' {
				return nil, malformed("chunk line")
			}
			c.r += end + 1
			return have[:end-1], nil
		}
		seen = len(have)
		if seen >= limit {
			return nil, malformed("chunk line")
		}
		if err := c.fill(readBuffer); err != nil {
			return nil, unexpected(err)
		}
	}
}

// readTrailers reads the trailers behind the last chunk, and returns io.EOF.
func (b *body) readTrailers() error {
	var text []byte
	for {
		line, err := b.line(maxChunkLine)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		text = append(append(text, line...), "\r\n"...)
		if len(text) > maxHead {
			return errHeadSize
		}
	}
	if len(text) > 0 {
		var told fields // framing has no place here, and is left out of the header
		if err := told.parse(string(text)); err != nil {
			return err
		}
		delete(told.header, "Trailer") // RFC 9110 6.5.1
		b.trailer = told.header
	}
	return io.EOF
}

func (b *body) trailers() nethttp.Header { return b.trailer }

// end gives the connection back: it is kept when it is clean.
func (b *body) end() {
	b.err = io.EOF
	if b.done {
		return
	}
	b.done = true
	c := b.x.c
	if !b.x.ending.Stop() || !b.keep || c.r != c.w { // bytes behind the body belong to nothing we asked for
		c.close()
		return
	}
	b.x.t.pool.put(c)
}

// fail closes the connection and makes err the body's error.
func (b *body) fail(err error) {
	switch {
	case isMalformed(err):
		err = fmt.Errorf("%w: %w", forward.ErrTruncated, err)
	case b.x.ctx.Err() != nil:
		err = b.x.cause(err)
	default:
		err = fmt.Errorf("%w: %w", forward.ErrTruncated, err)
	}
	b.err = &forward.Error{Stage: forward.StageBody, Err: err}
	b.release()
}

// Close closes the connection unless the body has been read to its end.
func (b *body) Close() error {
	if b.err == nil {
		b.err = &forward.Error{Stage: forward.StageBody, Err: errClosed}
	}
	b.release()
	return nil
}

func (b *body) release() {
	if b.done {
		return
	}
	b.done = true
	b.x.ending.Stop()
	b.x.c.close()
}

var errClosed = errors.New("body is closed")
