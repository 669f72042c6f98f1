package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"

	"pointsman/fleet"
	"pointsman/forward"
)

// std sends requests through net/http's client.
type std struct{ tr *nethttp.Transport }

func newStd(cfg Config, dial *dialing) *std {
	protocols := new(nethttp.Protocols)
	protocols.SetHTTP1(cfg.Protocol == HTTP1)
	protocols.SetHTTP2(cfg.Protocol == H2C)
	protocols.SetUnencryptedHTTP2(cfg.Protocol == H2C)
	return &std{tr: &nethttp.Transport{
		DialContext:            dial.plain,
		DialTLSContext:         dial.secure,
		DisableCompression:     true,
		DisableKeepAlives:      cfg.IdleTimeout == 0,
		MaxIdleConnsPerHost:    cfg.MaxIdle,
		IdleConnTimeout:        cfg.IdleTimeout,
		MaxResponseHeaderBytes: maxHead,
		ForceAttemptHTTP2:      cfg.Protocol == H2C,
		Protocols:              protocols,
		HTTP2:                  &nethttp.HTTP2Config{SendPingTimeout: cfg.KeepAlive},
	}}
}

func (s *std) do(ctx context.Context, w *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	reached := progress{told: req.Progress}
	key := keyOf(w)
	scheme := "http://"
	if key.tls {
		scheme = "https://"
	}
	src := &source{data: req.Body}
	defer src.own()
	ctx = withLimit(ctx, req.ConnectTimeout)
	hr, err := nethttp.NewRequestWithContext(httptrace.WithClientTrace(ctx, reached.trace()), req.Method, scheme+key.addr+req.Target, nil)
	if err != nil {
		return nil, &forward.Error{Stage: forward.StageWrite, Err: fmt.Errorf("%w: %w", errRequest, err)}
	}
	hr.Header = req.Header.Clone()
	if hr.Header == nil {
		hr.Header = make(nethttp.Header)
	}
	if hr.Header["User-Agent"] == nil {
		hr.Header["User-Agent"] = nil // net/http would send its own
	}
	if len(req.Body) > 0 {
		hr.Body, hr.ContentLength = src, int64(len(req.Body))
	}
	resp, err := s.tr.RoundTrip(hr) //nolint:bodyclose // the response's reader does
	if err != nil {
		return nil, &forward.Error{Stage: reached.stage(), Err: stdCause(ctx, err)}
	}
	resp.Header.Del("Content-Length")
	length := resp.ContentLength
	bare := req.Method == nethttp.MethodHead || resp.StatusCode == nethttp.StatusNoContent || resp.StatusCode == nethttp.StatusNotModified
	if bare && length == 0 {
		length = -1
	}
	return &forward.Response{
		Status:         resp.StatusCode,
		Header:         resp.Header,
		Length:         length,
		CloseDelimited: resp.ProtoMajor == 1 && resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && !bare,
		Body:           &stdBody{ctx: ctx, src: resp.Body},
		Trailer:        func() nethttp.Header { return resp.Trailer },
	}, nil
}

// stdCause returns err with the reason of ctx's end, and marks what is wrong
// with the worker's bytes. net/http has no error value for most of that.
func stdCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	text := err.Error()
	if strings.Contains(text, "malformed") || strings.Contains(text, "server response headers exceeded") ||
		strings.Contains(text, "bad Content-Length") || strings.Contains(text, "Transfer-Encoding") ||
		strings.Contains(text, "transfer encoding") || strings.Contains(text, "1xx") {
		return fmt.Errorf("%w: %w", forward.ErrProtocol, err)
	}
	return err
}

// progress notes how far a request got. net/http calls the hooks from its own
// goroutines.
type progress struct {
	told                       *forward.Progress
	connected, wrote, answered atomic.Bool
}

func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { p.told.Reach(forward.StageDial) },
		GotConn: func(httptrace.GotConnInfo) {
			p.connected.Store(true)
			p.told.Reach(forward.StageWrite)
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				p.wrote.Store(true)
				p.told.Reach(forward.StageDispatched)
			}
		},
		GotFirstResponseByte: func() { p.answered.Store(true) },
	}
}

func (p *progress) stage() forward.Stage {
	switch {
	case p.answered.Load():
		return forward.StageHead
	case p.wrote.Load():
		return forward.StageDispatched
	case p.connected.Load():
		return forward.StageWrite
	}
	return forward.StageDial
}

// source is a request body that the caller may take back: net/http may read it
// after RoundTrip has returned.
type source struct {
	mu   sync.Mutex
	data []byte
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.data)
	s.data = s.data[n:]
	return n, nil
}

// Close implements io.Closer; there is nothing to close.
func (s *source) Close() error { return nil }

// own copies what has not been read.
func (s *source) own() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append([]byte(nil), s.data...)
}

// stdBody gives a body of net/http the errors of forward.Response.
type stdBody struct {
	ctx context.Context //nolint:containedctx // its life is the exchange's
	src io.ReadCloser
}

func (b *stdBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p)
	if err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return n, err
	}
	if cause := context.Cause(b.ctx); cause != nil {
		err = fmt.Errorf("%w (%w)", cause, err)
	} else {
		err = fmt.Errorf("%w: %w", forward.ErrTruncated, err)
	}
	return n, &forward.Error{Stage: forward.StageBody, Err: err}
}

func (b *stdBody) Close() error { return b.src.Close() }
