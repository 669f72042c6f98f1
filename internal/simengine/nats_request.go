package simengine

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go"

	"pointsman/wire"
)

// readChunk is the most that Infera's HTTP client reads at once, and so the
// largest data frame of a streamed answer.
const readChunk = 64 << 10

// requestJob is one request from the broker.
type requestJob struct {
	inbox      string
	migratable bool
	handedBack bool // the router has been told; under requestServer.mu
	cancel     context.CancelCauseFunc
	numbered   bool

	mu   sync.Mutex
	next int // number of the next frame
}

// take runs a request in a goroutine of its own.
func (s *requestServer) take(ctx context.Context, nc *nats.Conn, m *nats.Msg) {
	inbox := m.Header.Get(wire.HeaderInbox)
	if inbox == "" {
		inbox = m.Reply
	}
	if inbox == "" {
		s.ack(m)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	j := &requestJob{inbox: inbox, cancel: cancel, numbered: s.cfg.Number}
	env, err := wire.DecodeEnvelope(m.Data)
	j.migratable = env.Migratable
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		cancel(nil)
		return
	}
	s.jobs[inbox] = j
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		defer cancel(nil)
		if err == nil {
			err = s.proxy(ctx, nc, j, &env)
		}
		s.finish(ctx, nc, j, err)
		s.ack(m)
	}()
}

// cancel ends the request whose inbox is the payload. One that is not known, or
// has ended, is ignored (infera.md §14.2).
func (s *requestServer) cancel(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[string(m.Data)]; j != nil {
		j.cancel(errCanceled)
	}
}

// finish forgets a request and says why it failed, if it did.
func (s *requestServer) finish(ctx context.Context, nc *nats.Conn, j *requestJob, err error) {
	s.mu.Lock()
	delete(s.jobs, j.inbox)
	told := j.handedBack
	s.mu.Unlock()
	cause := context.Cause(ctx)
	if err == nil || told || errors.Is(cause, errKilled) {
		return
	}
	if cause != nil {
		err = cause
	}
	_ = j.reply(nc, "error", []byte(exceptionText(err)), 0)
}

// ack acknowledges a message. Infera's client library does it on core messages
// too, where it publishes an empty message to the reply subject (N13).
func (s *requestServer) ack(m *nats.Msg) {
	if s.cfg.MaxPending > 0 {
		_ = m.Ack()
	} else if m.Reply != "" {
		_ = m.Respond(nil)
	}
}

// reply publishes a frame.
func (j *requestJob) reply(nc *nats.Conn, kind string, data []byte, status int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	h := nats.Header{wire.HeaderType: {kind}}
	if status != 0 {
		h[wire.HeaderStatus] = []string{strconv.Itoa(status)}
	}
	if j.numbered {
		h[wire.HeaderSeq] = []string{strconv.Itoa(j.next)}
	}
	j.next++
	return nc.PublishMsg(&nats.Msg{Subject: j.inbox, Header: h, Data: data})
}

// proxy posts the request to the engine and publishes its answer.
func (s *requestServer) proxy(ctx context.Context, nc *nats.Conn, j *requestJob, env *wire.Envelope) error {
	if s.cfg.MaxDuration > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, s.cfg.MaxDuration, errDuration)
		defer stop()
	}
	err := s.post(ctx, nc, j, env)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *requestServer) post(ctx context.Context, nc *nats.Conn, j *requestJob, env *wire.Envelope) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+env.Path, bytes.NewReader(env.Body))
	if err != nil {
		return err
	}
	// What Infera's client sends unless the envelope says otherwise.
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "*/*")
	req.Header.Set("Accept-Encoding", "gzip, deflate")
	for name, value := range env.Headers {
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if env.Stream {
		err = j.relay(nc, resp.Body)
	} else {
		err = j.whole(nc, resp)
	}
	if err != nil {
		return err
	}
	return j.reply(nc, "done", nil, resp.StatusCode)
}

// relay publishes the engine's bytes as they come.
func (j *requestJob) relay(nc *nats.Conn, from io.Reader) error {
	buf := make([]byte, readChunk)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if perr := j.reply(nc, "data", buf[:n], 0); perr != nil {
				return perr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// whole publishes the answer in one frame, decompressed; the broker's
// max_payload bounds it (N14).
func (j *requestJob) whole(nc *nats.Conn, resp *http.Response) error {
	body := io.Reader(resp.Body)
	var err error
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		body, err = gzip.NewReader(resp.Body)
	case "deflate":
		body, err = zlib.NewReader(resp.Body)
	}
	if err != nil {
		return err
	}
	all, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return j.reply(nc, "data", all, 0)
}

// exceptionText is what Infera's worker says of an error: the text of an
// exception of its HTTP client, which is empty for a read timeout.
func exceptionText(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, errCanceled), errors.Is(err, errDuration):
		return err.Error()
	case errors.Is(err, context.Canceled):
		return wire.NoticeCancelled
	case errors.Is(err, syscall.ECONNREFUSED):
		return "All connection attempts failed"
	case errors.As(err, &timeout) && timeout.Timeout():
		return ""
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "peer closed connection without sending complete message body (incomplete chunked read)"
	}
	return err.Error()
}
