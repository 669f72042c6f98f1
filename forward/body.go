package forward

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"pointsman/admission"
	"pointsman/prompt"
)

// Sizes of body buffers. They are not knobs: they trade memory for copies.
const (
	smallBuffer = 16 << 10
	trustLength = 1 << 20 // announced lengths above it are only believed as their bytes come
	keepBuffer  = 4 << 20 // larger buffers are left to the garbage collector
)

// bodyGrace is the time before Config.MinBodyRate counts (failover S8).
const bodyGrace = 30 * time.Second

// buffers lends byte slices by size class. The zero value is ready to use.
type buffers struct{ small, large sync.Pool }

// get returns a slice of length 0 with room for at least size bytes.
func (p *buffers) get(size int) *[]byte {
	pool := &p.small
	if size > smallBuffer {
		pool = &p.large
	}
	if b, ok := pool.Get().(*[]byte); ok {
		if cap(*b) >= size {
			*b = (*b)[:0]
			return b
		}
	}
	b := make([]byte, 0, max(size, smallBuffer))
	return &b
}

// put takes b back. It must not be used any more.
func (p *buffers) put(b *[]byte) {
	switch {
	case b == nil || cap(*b) > keepBuffer:
	case cap(*b) > smallBuffer:
		p.large.Put(b)
	default:
		p.small.Put(b)
	}
}

// bodyLimit is what a request's body must keep to.
type bodyLimit struct {
	size, rate int64 // Config.MaxBody and MinBodyRate
	here       bool  // all of it has come
}

// readBody reads the whole body of r into a buffer of s.bufs; nil when there is
// none. It reads on to the end of the body even when all announced bytes are
// there: only past the end does net/http watch for the client's disconnect.
func (s *Server) readBody(rc *http.ResponseController, r *http.Request, limit bodyLimit) (*[]byte, error) {
	if r.ContentLength == 0 || r.Body == nil {
		return nil, nil //nolint:nilnil // no body is a valid result, and common
	}
	if r.ContentLength > limit.size {
		return nil, prompt.ErrTooLarge
	}
	size := smallBuffer
	if r.ContentLength > 0 {
		size = int(min(r.ContentLength, trustLength)) + 1
	}
	buf := s.bufs.get(size)
	if !s.bodies.Take(int64(cap(*buf))) {
		s.bufs.put(buf)
		return nil, admission.ErrExhausted
	}
	if err := s.fill(rc, r.Body, buf, limit); err != nil {
		s.bodies.Give(int64(cap(*buf)))
		s.bufs.put(buf)
		return nil, err
	}
	return buf, nil
}

// fill reads src to its end into buf, whose capacity it grows as bytes come and
// the budget of bodies allows.
func (s *Server) fill(rc *http.ResponseController, src io.Reader, buf *[]byte, limit bodyLimit) error {
	var start, armed time.Time
	if !limit.here {
		start = time.Now()
	}
	size := 0
	var more pieces
	defer func() { s.bodies.Give(more.held()) }()
	for {
		free, err := s.room(buf, &more)
		if err != nil {
			return err
		}
		deadline := start.Add(bodyGrace + time.Duration(int64(size)/limit.rate)*time.Second)
		if !limit.here && deadline.Sub(armed) > bodyGrace/4 {
			_ = rc.SetReadDeadline(deadline) // not supported by the writers of some tests only
			armed = deadline
		}
		n, err := src.Read(free)
		size += n
		if int64(size) > limit.size {
			return prompt.ErrTooLarge
		}
		if more == nil {
			*buf = (*buf)[:size]
		} else {
			more.filled(n)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if !limit.here {
				_ = rc.SetReadDeadline(time.Time{})
			}
			return s.join(buf, more, size)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errSlowBody
		default:
			return errBrokenBody
		}
	}
}

// pieceSize is the size of pieces, and wholeSize up to which a buffer grows by being
// copied to another of twice its size: what a body has left behind at each step is
// as much again, which for the largest bodies would be too much.
const (
	pieceSize = 1 << 20
	wholeSize = 4 << 20
)

// pieces are what follows a body's first wholeSize bytes; all but the last are full.
type pieces [][]byte

func (p pieces) held() int64 { return int64(len(p)) * pieceSize }

// filled notes that n bytes have come into the last.
func (p pieces) filled(n int) {
	last := &p[len(p)-1]
	*last = (*last)[:len(*last)+n]
}

// room returns where the next bytes of a body go.
func (s *Server) room(buf *[]byte, more *pieces) ([]byte, error) {
	b := *buf
	if n := len(*more); n > 0 {
		if last := (*more)[n-1]; len(last) < cap(last) {
			return last[len(last):cap(last)], nil
		}
	} else if len(b) < cap(b) {
		return b[len(b):cap(b)], nil
	}
	if cap(b) < wholeSize {
		if !s.bodies.Take(int64(cap(b))) {
			return nil, admission.ErrExhausted
		}
		grown := make([]byte, len(b), 2*cap(b))
		copy(grown, b)
		*buf = grown
		return grown[len(b):cap(grown)], nil
	}
	if !s.bodies.Take(pieceSize) {
		return nil, admission.ErrExhausted
	}
	*more = append(*more, make([]byte, 0, pieceSize))
	last := (*more)[len(*more)-1]
	return last[:cap(last)], nil
}

// join puts the pieces behind what buf has.
func (s *Server) join(buf *[]byte, more pieces, size int) error {
	if more == nil {
		return nil
	}
	if !s.bodies.Take(int64(size - cap(*buf))) {
		return admission.ErrExhausted
	}
	whole := append(make([]byte, 0, size), *buf...)
	for _, p := range more {
		whole = append(whole, p...)
	}
	*buf = whole
	return nil
}

// lingering is how long a refused body is still taken in.
const lingering = 5 * time.Second

// linger sends what has been answered and reads on to the end of the body. To
// close the connection on unread bytes would reset it, and clients that send all
// before they read would never see the answer.
func linger(rc *http.ResponseController, r *http.Request) {
	if r.ProtoMajor != 1 || r.Header.Get("Expect") != "" { // HTTP/2 has a way to say it; the other sends nothing
		return
	}
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingering)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
}
