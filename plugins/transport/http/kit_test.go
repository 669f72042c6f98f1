package http

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	nethttp "net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pointsman/fleet"
	"pointsman/forward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// received is one request as a scripted worker saw it.
type received struct {
	head *nethttp.Request
	body []byte
	conn int // number of the connection it came on, from 1
}

// scripted is a worker on a loopback socket whose answers are raw bytes.
type scripted struct {
	t      *testing.T
	lis    net.Listener
	answer func(c net.Conn, r received) (keep bool)
	gone   chan struct{} // gets one value for each connection that the client closed

	mu    sync.Mutex
	got   []received
	conns []net.Conn
	wg    sync.WaitGroup
}

func newScripted(t *testing.T, answer func(c net.Conn, r received) (keep bool)) *scripted {
	t.Helper()
	return scriptedOn(t, "127.0.0.1:0", answer)
}

func scriptedOn(t *testing.T, addr string, answer func(c net.Conn, r received) (keep bool)) *scripted {
	t.Helper()
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("cannot listen on %s: %v", addr, err)
	}
	s := &scripted{t: t, lis: lis, answer: answer, gone: make(chan struct{}, 100)}
	s.wg.Add(1)
	go s.accept()
	t.Cleanup(s.close)
	return s
}

func (s *scripted) accept() {
	defer s.wg.Done()
	for {
		c, err := s.lis.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		n := len(s.conns)
		s.mu.Unlock()
		s.wg.Add(1)
		go s.serve(c, n)
	}
}

func (s *scripted) serve(c net.Conn, n int) {
	defer s.wg.Done()
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		head, err := nethttp.ReadRequest(r)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) { // end or reset: the client's doing
				s.gone <- struct{}{}
			}
			return
		}
		body, err := io.ReadAll(head.Body)
		if err != nil {
			return
		}
		got := received{head: head, body: body, conn: n}
		s.mu.Lock()
		s.got = append(s.got, got)
		s.mu.Unlock()
		if !s.answer(c, got) {
			return
		}
	}
}

func (s *scripted) close() {
	s.lis.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *scripted) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]received(nil), s.got...)
}

func (s *scripted) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *scripted) worker() *fleet.Worker { return workerAt(s.lis.Addr()) }

func workerAt(addr net.Addr) *fleet.Worker {
	host, port, _ := net.SplitHostPort(addr.String())
	n, _ := strconv.Atoi(port)
	return &fleet.Worker{ID: addr.String(), URL: "http://" + addr.String(), Host: host, Port: n, Transport: "http", DPRank: -1}
}

// say returns a script that sends raw and keeps the connection or not.
func say(raw string, keep bool) func(net.Conn, received) bool {
	return func(c net.Conn, _ received) bool {
		_, _ = io.WriteString(c, raw)
		return keep
	}
}

func newTransport(t *testing.T, change func(*Config)) *Transport {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

// oracle returns a transport that does everything through net/http's client.
func oracle(t *testing.T) *Transport {
	t.Helper()
	cfg := DefaultConfig()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tr.std = newStd(cfg, &tr.dials)
	t.Cleanup(tr.Close)
	return tr
}

func post(body string) *forward.Request {
	return &forward.Request{
		ID: "r1", Method: "POST", Target: "/v1/chat/completions?x=1", Body: []byte(body),
		Header: nethttp.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer k"}},
	}
}

// result is what came of one exchange.
type result struct {
	status    int
	body      string
	length    int64
	delimited bool
	trailer   string
	class     string // of the error: "" for none
	err       error
	resp      *forward.Response
}

func do(t *testing.T, tr *Transport, w *fleet.Worker, req *forward.Request) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := tr.Do(ctx, w, req)
	if err != nil {
		return result{err: err, class: class(err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	res := result{
		status: resp.Status, body: string(body), length: resp.Length, delimited: resp.CloseDelimited,
		err: err, class: class(err), resp: resp,
	}
	if err == nil && resp.Trailer != nil {
		var buf bytes.Buffer
		_ = resp.Trailer().Write(&buf)
		res.trailer = buf.String()
	}
	return res
}

// class names an error by what forward decides on.
func class(err error) string {
	var failed *forward.Error
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &failed):
		return "untyped: " + err.Error()
	case failed.Stage == forward.StageBody && errors.Is(err, forward.ErrTruncated):
		return "truncated"
	}
	return failed.Stage.String()
}
