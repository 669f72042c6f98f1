package extproc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pointsman/prompt/audit"
)

// service describes the gRPC service by hand: the generated one would bring the
// generated message types with it.
func (s *Server) service() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: ServiceName,
		Streams: []grpc.StreamDesc{{
			StreamName:    "Process",
			Handler:       func(_ any, stream grpc.ServerStream) error { return s.process(stream) },
			ServerStreams: true,
			ClientStreams: true,
		}},
		Metadata: "envoy/service/ext_proc/v3/external_processor.proto",
	}
}

// conversation is the memory of one stream.
type conversation struct {
	msg   message
	x     exchange
	tail  audit.Tail
	ahead *ahead // nil while nothing is read in advance
}

// ahead is a message that is received while the one before it is worked on. Its
// memory is its own: the stream may be over before it has come.
type ahead struct {
	msg  message
	err  error
	done chan struct{}
}

// watch receives in advance, for a request that waits: a gateway that has closed
// its side of the stream, but not reset it, is seen in no other way.
func (c *conversation) watch(stream grpc.ServerStream, cancel context.CancelCauseFunc) {
	if c.ahead != nil {
		return
	}
	a := &ahead{done: make(chan struct{})}
	c.ahead = a
	go func() {
		defer close(a.done)
		if a.err = stream.RecvMsg(&a.msg); a.err != nil {
			cancel(errStreamEnded)
		}
	}()
}

// receive returns the stream's next message in c.msg.
func (c *conversation) receive(stream grpc.ServerStream) error {
	a := c.ahead
	if a == nil {
		return stream.RecvMsg(&c.msg)
	}
	<-a.done
	c.ahead = nil
	c.msg = a.msg
	return a.err
}

func (s *Server) acquire() *conversation {
	c, ok := s.streams.Get().(*conversation)
	if !ok {
		c = &conversation{}
		c.x.s, c.x.tail, c.x.body.pool = s, &c.tail, s.pool
	}
	c.x.start()
	s.metrics.open.Add(1)
	return c
}

// release ends c's exchange and keeps its memory for another stream, unless a
// bug shows up even here.
func (s *Server) release(ctx context.Context, c *conversation) {
	defer s.metrics.open.Add(-1)
	defer func() {
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.log.LogAttrs(ctx, slog.LevelError, "stream ended by a bug",
				slog.Any("error", p), slog.String("stack", string(debug.Stack())))
			return
		}
		s.streams.Put(c)
	}()
	c.msg.free()
	c.ahead = nil // it ends with the stream
	c.x.end()
}

// errCrowded ends streams beyond all that may be open.
var errCrowded = status.Error(codes.ResourceExhausted, "too many streams are open")

// crowded reports whether so many streams are open that another is not worth an
// answer that a client could read. Streams that send no headers are never refused
// with one: the room above the limit is theirs.
func (s *Server) crowded() bool {
	limit := int64(s.cfg.Load().MaxInFlight)
	return limit > 0 && s.metrics.open.Load() >= limit+max(8, limit/4)
}

// process serves one stream, that is one HTTP request. It returns nil, but where
// streams are too many to be answered: a gateway takes an error for a failure of its
// filter and answers 500, and it ends every stream with a reset, which reads here as
// a cancellation.
func (s *Server) process(stream grpc.ServerStream) error {
	ctx := stream.Context()
	if s.crowded() {
		s.metrics.crowded.Inc()
		return errCrowded
	}
	c := s.acquire()
	defer s.release(ctx, c)
	if s.deps.Gate != nil {
		c.x.watch = func(cancel context.CancelCauseFunc) { c.watch(stream, cancel) }
	}
	for {
		if err := c.receive(stream); err != nil {
			s.ended(ctx, err)
			return nil
		}
		goesOn := c.x.on(ctx, &c.msg)
		c.msg.free()
		if err := s.send(stream, &c.x); err != nil {
			s.ended(ctx, err)
			return nil
		}
		if !goesOn {
			return nil
		}
	}
}

func (s *Server) send(stream grpc.ServerStream, x *exchange) error {
	for i := range x.out {
		if err := stream.SendMsg(&x.out[i]); err != nil {
			return err // end frees the rest
		}
	}
	x.out = x.out[:0]
	return nil
}

// ended logs why a stream broke, if it did.
func (s *Server) ended(ctx context.Context, err error) {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "ext-proc stream broken", slog.Any("error", err))
}
