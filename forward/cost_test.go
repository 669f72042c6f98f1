package forward_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"

	httptransport "pointsman/plugins/transport/http"
)

// Answers of a worker that an allocation-free client and worker exchange, so that
// all that is allocated is the forwarder's.
var (
	costUnary = []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 02 Jan 2006 15:04:05 GMT\r\nContent-Length: 13\r\n\r\n{\"id\":\"chat\"}")
	costEvent = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n"
)

// costStream is the same for a stream of n events and [DONE].
func costStream(n int) []byte {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nDate: Mon, 02 Jan 2006 15:04:05 GMT\r\nTransfer-Encoding: chunked\r\n\r\n")
	for range n {
		b.WriteString(strconv.FormatInt(int64(len(costEvent)), 16) + "\r\n" + costEvent + "\r\n")
	}
	b.WriteString("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
	return b.Bytes()
}

// costRig is a client, a forwarder in direct mode with the gate that the program
// gives it, and a worker, on loopback sockets.
type costRig struct {
	client  net.Conn
	request []byte
	buf     []byte
	last    []byte // the answer's end
}

func newCostRig(tb testing.TB, answer []byte, stream bool) *costRig {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(tb, err)
	tb.Cleanup(func() { lis.Close() })
	go costWorker(lis, answer)

	addr := lis.Addr().String()
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: addr, URL: "http://" + addr, Host: host, Port: n, Model: model, Engine: fleet.VLLM, BlockSize: 16, Status: fleet.Active}})
	p, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	fatal(tb, err)
	tr, err := httptransport.New(httptransport.DefaultConfig())
	fatal(tb, err)
	tb.Cleanup(tr.Close)
	preparer := prompt.NewPreparer(prompt.Config{}, nil)
	cfg := forward.DefaultConfig()
	cfg.Mode, cfg.DrainDelay = forward.Direct, 0
	srv, err := forward.New(cfg, forward.Deps{
		Picker: p, Store: store, Log: slog.New(slog.DiscardHandler), Gate: admission.NewGate(admission.DefaultConfig()),
		Preparer:   func() *prompt.Preparer { return preparer },
		Transports: map[string]forward.Transport{"http": tr},
	})
	fatal(tb, err)
	fatal(tb, srv.Register(prometheus.NewRegistry()))
	front, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(tb, err)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, front) }()
	tb.Cleanup(func() { cancel(); fatal(tb, <-ended) })

	body, last := chatBody, answer[len(answer)-2:]
	if stream {
		body, last = streamBody, []byte("\r\n0\r\n\r\n")
	}
	rig := &costRig{last: last, buf: make([]byte, 64<<10)}
	rig.request = []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Worker-Instance-Id: " + addr +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	rig.client, err = net.Dial("tcp", front.Addr().String())
	fatal(tb, err)
	tb.Cleanup(func() { rig.client.Close() })
	return rig
}

// costWorker answers each request with the same bytes.
func costWorker(lis net.Listener, answer []byte) {
	for {
		c, err := lis.Accept()
		if err != nil {
			return
		}
		go costAnswer(c, answer)
	}
}

func costAnswer(c net.Conn, answer []byte) {
	defer c.Close()
	buf := make([]byte, 8<<10)
	for n := 0; ; {
		more, err := c.Read(buf[n:])
		if err != nil {
			return
		}
		if n += more; !requestEnds(buf[:n]) {
			continue
		}
		if n = 0; writeAll(c, answer) != nil {
			return
		}
	}
}

func writeAll(w io.Writer, p []byte) error { _, err := w.Write(p); return err }

// requestEnds reports whether b is a whole request with a Content-Length.
func requestEnds(b []byte) bool {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	_, after, ok := bytes.Cut(b, []byte("\r\nContent-Length: "))
	if end < 0 || !ok {
		return false
	}
	length := 0
	for _, d := range after {
		if d < '0' || d > '9' {
			break
		}
		length = 10*length + int(d-'0')
	}
	return len(b) >= end+4+length
}

// exchange sends one request and reads its answer.
func (r *costRig) exchange(tb testing.TB) {
	tb.Helper()
	if _, err := r.client.Write(r.request); err != nil {
		tb.Fatal(err)
	}
	for n := 0; ; {
		more, err := r.client.Read(r.buf[n:])
		if err != nil {
			tb.Fatal(err)
		}
		if n += more; bytes.HasSuffix(r.buf[:n], r.last) {
			if !bytes.HasPrefix(r.buf, []byte("HTTP/1.1 200")) {
				tb.Fatalf("%s", r.buf[:n])
			}
			return
		}
	}
}

// BenchmarkServe measures one request over sockets through all of the forwarder,
// net/http's server included.
func BenchmarkServe(b *testing.B) {
	for name, answer := range map[string][]byte{"unary": costUnary, "stream": costStream(100)} {
		b.Run(name, func(b *testing.B) {
			rig := newCostRig(b, answer, name == "stream")
			for range 100 {
				rig.exchange(b)
			}
			b.ReportAllocs()
			for b.Loop() {
				rig.exchange(b)
			}
		})
	}
}

func TestARequestCostsFewAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector pools lose some of what they are given")
	}
	for name, answer := range map[string][]byte{"unary": costUnary, "stream": costStream(100)} {
		t.Run(name, func(t *testing.T) {
			rig := newCostRig(t, answer, name == "stream")
			for range 5000 { // until the ring of records is full, whose memory is used again
				rig.exchange(t)
			}
			const most = 50 // 47 and 49 as measured; net/http's server makes half of them
			if n := testing.AllocsPerRun(500, func() { rig.exchange(t) }); n > most {
				t.Errorf("%v allocations, want %d at most", n, most)
			}
		})
	}
}
