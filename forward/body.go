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
	var armed time.Time
	start := time.Now()
	for {
		b := *buf
		if len(b) == cap(b) {
			if !s.bodies.Take(int64(cap(b))) {
				return admission.ErrExhausted
			}
			grown := make([]byte, len(b), 2*cap(b))
			copy(grown, b)
			b = grown
			*buf = b
		}
		deadline := start.Add(bodyGrace + time.Duration(int64(len(b))/limit.rate)*time.Second)
		if !limit.here && deadline.Sub(armed) > bodyGrace/4 {
			_ = rc.SetReadDeadline(deadline) // not supported by the writers of some tests only
			armed = deadline
		}
		n, err := src.Read(b[len(b):cap(b)])
		*buf = b[:len(b)+n]
		if int64(len(*buf)) > limit.size {
			return prompt.ErrTooLarge
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			if !limit.here {
				_ = rc.SetReadDeadline(time.Time{})
			}
			return nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errSlowBody
		}
		return errBrokenBody
	}
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
