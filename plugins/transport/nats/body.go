package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"pointsman/forward"
	"pointsman/wire"
)

var errClosed = errors.New("body is closed")

// body reads the rest of a streamed answer.
type body struct {
	x    *exchange
	ctx  context.Context //nolint:containedctx // its life is the attempt's
	rest []byte          // of the frame taken last
	err  error           // what Read returns from now on

	once sync.Once
}

// Read returns what is at hand, at least one byte.
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n := b.drain(p)
	for n == 0 {
		if b.err != nil {
			return 0, b.err
		}
		r, err := b.x.next(b.ctx)
		b.take(r, err)
		n = b.drain(p)
	}
	for n < len(p) && b.err == nil { // what else has come
		r, ok, err := b.x.pop()
		if !ok && err == nil {
			break
		}
		b.take(r, err)
		n += b.drain(p[n:])
	}
	if len(b.rest) == 0 {
		return n, b.err // nil, or the end together with the last bytes
	}
	return n, nil
}

func (b *body) drain(p []byte) int {
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n
}

// take looks at a frame, or at the exchange's end.
func (b *body) take(r wire.Reply, err error) {
	switch {
	case err != nil && b.ctx.Err() != nil:
		b.end(&forward.Error{Stage: forward.StageBody, Err: context.Cause(b.ctx)}, err)
	case err != nil:
		b.cut(err)
	case r.Kind == wire.ReplyData:
		b.rest = r.Data
	case r.Kind == wire.ReplyDone && r.Status >= http.StatusBadRequest:
		b.cut(fmt.Errorf("the engine ended with status %d", r.Status))
	case r.Kind == wire.ReplyDone:
		b.end(io.EOF, nil)
	default:
		text := string(r.Data)
		err := fmt.Errorf("the worker reports %q", clip(text))
		if text == wire.NoticeDraining || text == wire.NoticeCancelled {
			err = fmt.Errorf("%w: %w", forward.ErrLeaving, err)
		}
		b.cut(err)
	}
}

// cut ends the body as broken off.
func (b *body) cut(err error) {
	b.end(&forward.Error{Stage: forward.StageBody, Err: fmt.Errorf("%w: %w", forward.ErrTruncated, err)}, err)
}

func (b *body) end(result, cause error) {
	b.err = result
	b.once.Do(func() { b.x.finish(cause) })
}

// Close gives up what has not been read, and tells the worker to stop.
func (b *body) Close() error {
	if b.err == nil {
		b.rest = nil
		b.end(&forward.Error{Stage: forward.StageBody, Err: errClosed}, errClosed)
	}
	return nil
}
