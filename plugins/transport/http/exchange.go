package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strconv"

	"golang.org/x/net/http/httpguts"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/sock"
)

// oneWrite is the size up to which a body is copied behind the head, so that
// both go out in one segment; a larger one is written from where it is.
const oneWrite = 8 << 10

// errRequest says that a request cannot be written as HTTP.
var errRequest = errors.New("request cannot be sent")

// errDead says that the worker had closed a kept connection before it was used.
var errDead = errors.New("the connection was closed while it was not in use")

// exchange sends req on a kept or new connection and reads the response's head.
// A kept connection that is dead is passed over. One that fails before the request was fully written is replaced
// once by a new one: the worker cannot have run an incomplete request, and had
// most likely closed the connection before.
func (t *Transport) exchange(ctx context.Context, w *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	key := keyOf(w)
	lent, ok := t.heads.Get().(*[]byte)
	if !ok {
		lent = new([]byte)
	}
	defer t.heads.Put(lent)
	head, err := appendHead((*lent)[:0], key.addr, req)
	if err != nil {
		return nil, &forward.Error{Stage: forward.StageWrite, Err: err}
	}
	body := req.Body
	if len(body) <= oneWrite {
		head, body = append(head, body...), nil
	}
	*lent = head
	out := message{head: head, body: body, method: req.Method, progress: req.Progress}
	for c := t.kept(key, req, out); c != nil; c = t.kept(key, req, out) {
		resp, kept := t.on(ctx, c, out)
		if kept == nil || !unsent(kept) || ctx.Err() != nil {
			return resp, kept
		}
		if !errors.Is(kept, errDead) {
			break
		}
	}
	req.Progress.Reach(forward.StageDial)
	c, err := t.dial(ctx, key, req.ConnectTimeout)
	if err != nil {
		return nil, &forward.Error{Stage: forward.StageDial, Err: err}
	}
	return t.on(ctx, c, out)
}

// kept returns an unused connection for req, nil when a new one has to be dialed.
func (t *Transport) kept(key poolKey, req *forward.Request, out message) *conn {
	if req.Fresh {
		return nil
	}
	return t.pool.get(key, out.small())
}

// unsent reports whether err came before the request was fully written.
func unsent(err error) bool {
	var failed *forward.Error
	return errors.As(err, &failed) && failed.Stage == forward.StageWrite
}

// message is a request ready to be written.
type message struct {
	head, body []byte // a small body is already behind the head
	method     string
	progress   *forward.Progress
}

// small reports whether the message is in one piece.
func (m message) small() bool { return len(m.body) == 0 }

// on performs one exchange on c and takes c over.
func (t *Transport) on(ctx context.Context, c *conn, out message) (*forward.Response, error) {
	x := &exchange{t: t, c: c, ctx: ctx}
	x.ending.Await(ctx, c.closing)
	resp, err := x.run(out)
	if err != nil {
		x.ending.Stop()
		c.close()
		return nil, err
	}
	return resp, nil
}

// exchange is one request and its response on one connection.
type exchange struct {
	t      *Transport
	c      *conn
	ctx    context.Context //nolint:containedctx // its life is the exchange's
	ending forward.Ending  // of ctx, which closes c
	body   body
	resp   forward.Response
}

func (x *exchange) run(out message) (*forward.Response, error) {
	out.progress.Reach(forward.StageWrite)
	werr := x.write(out)
	if errors.Is(werr, errDead) {
		return nil, &forward.Error{Stage: forward.StageWrite, Err: werr}
	}
	res, err := x.head(out.method)
	if werr != nil && (err != nil || res.status < 400) {
		// A worker may refuse a request before it has read all of it; then its
		// answer counts. Anything else is the failed write's.
		return nil, &forward.Error{Stage: forward.StageWrite, Err: x.cause(werr)}
	}
	if err != nil {
		return nil, err
	}
	x.body = body{x: x, framing: res.framing, left: res.length, keep: res.keep && werr == nil}
	if res.framing == framedByLength && res.length == 0 || res.framing == noBody {
		x.body.end()
	}
	x.resp = forward.Response{
		Status:         res.status,
		Header:         res.header,
		Length:         res.announced(),
		CloseDelimited: res.framing == framedByClose,
		Body:           &x.body,
	}
	if res.framing == framedByChunks {
		x.resp.Trailer = x.body.trailers
	}
	return &x.resp, nil
}

// write sends the message with as few system calls as it can, and tells when it is sent.
func (x *exchange) write(out message) error {
	if out.small() && x.c.bare() {
		return x.c.ask(out.head, out.progress)
	}
	err := x.writeAll(out)
	if err == nil {
		out.progress.Reach(forward.StageDispatched)
	}
	return err
}

func (x *exchange) writeAll(out message) error {
	if out.small() {
		_, err := x.c.Write(out.head)
		return err
	}
	pieces := net.Buffers{out.head, out.body}
	to := x.c.Conn
	if own, ok := to.(*sock.Conn); ok {
		to = own.Conn // which writes all pieces in one call
	}
	_, err := pieces.WriteTo(to)
	return err
}

// head reads responses until one is final.
func (x *exchange) head(method string) (response, error) {
	const most = 8 // informational responses; more is a fault
	for range most {
		raw, err := x.readHead()
		if err != nil {
			return response{}, err
		}
		res, err := parseHead(raw, method)
		if err != nil {
			return response{}, &forward.Error{Stage: forward.StageHead, Err: err}
		}
		if res.status >= 200 {
			return res, nil
		}
		if res.status == nethttp.StatusSwitchingProtocols {
			return response{}, &forward.Error{Stage: forward.StageHead, Err: malformed("unrequested upgrade")}
		}
	}
	return response{}, &forward.Error{Stage: forward.StageHead, Err: malformed("too many informational responses")}
}

// readHead returns a response's head, its last blank line included. The bytes
// are valid until the next read from the connection.
func (x *exchange) readHead() ([]byte, error) {
	c := x.c
	seen := 0
	for {
		if end := headEnd(c.buf[c.r:c.w], seen); end > 0 {
			raw := c.buf[c.r : c.r+end]
			c.r += end
			return raw, nil
		}
		seen = c.w - c.r
		if err := c.fill(maxHead); err != nil {
			stage := forward.StageHead
			if c.w == c.r {
				stage = forward.StageDispatched
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, &forward.Error{Stage: stage, Err: x.cause(err)}
		}
	}
}

// cause returns why ctx was canceled if it was, else err.
func (x *exchange) cause(err error) error {
	if cause := context.Cause(x.ctx); cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// appendHead appends the request's head to dst.
func appendHead(dst []byte, host string, req *forward.Request) ([]byte, error) {
	if !validTarget(req.Target) || !httpguts.ValidHeaderFieldName(req.Method) {
		return dst, fmt.Errorf("%w: bad method or target", errRequest)
	}
	dst = append(dst, req.Method...)
	dst = append(dst, ' ')
	dst = append(dst, req.Target...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	dst = append(dst, "\r\n"...)
	for name, values := range req.Header {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return dst, fmt.Errorf("%w: bad header %q", errRequest, name)
			}
			dst = append(dst, name...)
			dst = append(dst, ": "...)
			dst = append(dst, value...)
			dst = append(dst, "\r\n"...)
		}
	}
	if len(req.Body) > 0 || req.Method == nethttp.MethodPost || req.Method == nethttp.MethodPut || req.Method == nethttp.MethodPatch {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(req.Body)), 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...), nil
}

// validTarget reports whether target is a path that stands in a request line as
// one word.
func validTarget(target string) bool {
	if target == "" || target[0] != '/' {
		return false
	}
	for i := range len(target) {
		if target[i] <= ' ' || target[i] == 0x7f {
			return false
		}
	}
	return true
}
