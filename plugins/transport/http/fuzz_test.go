package http

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	nethttp "net/http"
	"sync"
	"testing"
	"time"

	"pointsman/forward"
)

// replay is a connection whose worker has already said everything.
type replay struct {
	io.Reader
	step int // most bytes per read
}

func (r *replay) Read(p []byte) (int, error)     { return r.Reader.Read(p[:min(len(p), r.step)]) }
func (*replay) Write(p []byte) (int, error)      { return len(p), nil }
func (*replay) Close() error                     { return nil }
func (*replay) LocalAddr() net.Addr              { return nil }
func (*replay) RemoteAddr() net.Addr             { return nil }
func (*replay) SetDeadline(time.Time) error      { return nil }
func (*replay) SetReadDeadline(time.Time) error  { return nil }
func (*replay) SetWriteDeadline(time.Time) error { return nil }

// read has the own client read raw as the response to a POST.
func read(raw []byte, step int) (status int, body []byte, err error) {
	cfg := DefaultConfig()
	t := &Transport{cfg: cfg, pool: pool{cfg: cfg}}
	nc := &replay{Reader: bytes.NewReader(raw), step: step}
	resp, err := t.on(context.Background(), newConn(nc, nc, poolKey{}, new(sync.Pool)), message{head: []byte("x"), method: "POST"})
	if err != nil {
		return 0, nil, err
	}
	body, err = io.ReadAll(resp.Body)
	return resp.Status, body, err
}

// FuzzResponse: whatever a worker sends ends in a response or a typed error, in
// the same one however the bytes are cut into segments; and what is accepted
// whole, net/http's reader accepts with the same status and body.
func FuzzResponse(f *testing.F) {
	for _, tc := range corpus {
		if !tc.head && len(tc.raw) < 4096 {
			f.Add([]byte(tc.raw), 7)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, step int) {
		status, body, err := read(raw, 1<<20)
		var typed *forward.Error
		if err != nil && !errors.As(err, &typed) {
			t.Fatalf("untyped error %v", err)
		}
		step = 1 + (step&0x7fffffff)%64
		status2, body2, err2 := read(raw, step)
		if status2 != status || !bytes.Equal(body2, body) || class(err2) != class(err) {
			t.Fatalf("in steps of %d: %d %q %v; at once: %d %q %v", step, status2, body2, err2, status, body, err)
		}
		if err != nil {
			return
		}
		in := bufio.NewReader(bytes.NewReader(raw))
		var resp *nethttp.Response
		for {
			resp, err = nethttp.ReadResponse(in, &nethttp.Request{Method: "POST"})
			if err != nil {
				t.Fatalf("accepted, but net/http says %v", err)
			}
			if resp.StatusCode >= 200 {
				break
			}
		}
		defer resp.Body.Close()
		want, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status || !bytes.Equal(want, body) {
			t.Fatalf("%d %q; net/http: %d %q %v", status, body, resp.StatusCode, want, err)
		}
	})
}
