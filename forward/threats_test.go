package forward_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"pointsman/admission"
	"pointsman/internal/testkit"
)

// security S3: an ID names a worker of the fleet and is no address to dial, and the
// gateway's destination header is no input.
func TestWhatAClientNamesIsNotDialed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	var connects atomic.Int64
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			connects.Add(1)
			_ = c.Close()
		}
	}()
	victim := listener.Addr().String()
	w := newWorld(t, []script{good}, direct)
	for _, header := range []string{"X-Worker-Instance-Id", "X-Worker-Fallback-Ids", "X-Prefill-Instance-Id", "X-Gateway-Destination-Endpoint", "X-Prefiller-Host-Port"} {
		for _, value := range []string{victim, "http://" + victim} {
			got := w.do(call{body: chatBody, header: map[string]string{header: value}})
			if named := header == "X-Worker-Instance-Id"; named && (got.status != 503 || errorOf(t, got).Code != "stale_worker") {
				t.Errorf("%s: %s: status %d %s", header, value, got.status, got.body)
			}
		}
	}
	if n := connects.Load(); n != 0 {
		t.Errorf("%d connections to an address that a client named", n)
	}
}

// security S6: what HTTP/2 can put into a path or a header, and HTTP/1 can't, goes
// no further.
func TestNothingOfHTTP2EndsUpAsALineOfHTTP1(t *testing.T) {
	w := newWorld(t, []script{good})
	for name, fields := range map[string][]hpack.HeaderField{
		"a line end in the path":  {{Name: ":path", Value: "/v1/chat/completions HTTP/1.1\r\nX-Evil: 1"}},
		"a space in the path":     {{Name: ":path", Value: "/v1/chat/completions HTTP/1.1"}},
		"NUL in the path":         {{Name: ":path", Value: "/v1/chat/completions\x00"}},
		"a line end in a header":  {{Name: ":path", Value: "/v1/chat/completions"}, {Name: "x-a", Value: "b\r\nX-Evil: 1"}},
		"NUL in a header":         {{Name: ":path", Value: "/v1/chat/completions"}, {Name: "x-a", Value: "b\x00"}},
		"a header of HTTP/1":      {{Name: ":path", Value: "/v1/chat/completions"}, {Name: "transfer-encoding", Value: "chunked"}},
		"a name with a line end":  {{Name: ":path", Value: "/v1/chat/completions"}, {Name: "x-a\r\nx-evil", Value: "1"}},
		"a method with a space":   {{Name: ":method", Value: "POST / HTTP/1.1\r\nX-Evil: 1\r\n\r\nGET"}, {Name: ":path", Value: "/v1/chat/completions"}},
		"a length that is a list": {{Name: ":path", Value: "/v1/chat/completions"}, {Name: "content-length", Value: "5, 6"}},
	} {
		status, ended := w.http2(fields)
		if !ended && status/100 != 4 {
			t.Errorf("%s: status %d", name, status)
		}
	}
	if status, _ := w.http2([]hpack.HeaderField{{Name: ":path", Value: "/v1/chat/completions"}}); status != 200 {
		t.Errorf("a request with nothing wrong: status %d", status)
	}
	if got := w.engines[0].got(); len(got) != 1 {
		t.Errorf("%d deliveries, want that of the good one", len(got))
	}
}

// http2 sends a chat with these fields as they are, which no client library would,
// and returns its status; ended says that the server ended stream or connection.
func (w *world) http2(fields []hpack.HeaderField) (status int, ended bool) {
	w.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(w.t, err)
	defer c.Close()
	fatal(w.t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(c, http2.ClientPreface)
	fatal(w.t, err)
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fatal(w.t, framer.WriteSettings())
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	given := map[string]bool{}
	for _, f := range fields {
		given[f.Name] = true
	}
	all := fields
	for _, f := range []hpack.HeaderField{{Name: ":authority", Value: "x"}, {Name: ":scheme", Value: "http"}, {Name: ":method", Value: http.MethodPost}} {
		if !given[f.Name] {
			all = append([]hpack.HeaderField{f}, all...)
		}
	}
	for _, f := range all {
		fatal(w.t, enc.WriteField(f))
	}
	fatal(w.t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	_ = framer.WriteData(1, true, []byte(chatBody))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return 0, true
		}
		switch f := frame.(type) {
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0, true
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name == ":status" {
					n := 0
					for _, digit := range h.Value {
						n = 10*n + int(digit-'0')
					}
					return n, false
				}
			}
		}
	}
}

// security S18 at this door: choices count as units, and more of them than there is
// room for are refused.
func TestChoicesAskedForCountAsUnitsHere(t *testing.T) {
	b := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{b.script}, gated(&gate, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth = 100, 0 }))
	many := func(field, n string) reply {
		return w.do(call{path: "/v1/completions", body: `{"model":"m","prompt":"x","` + field + `":` + n + `}`})
	}
	for _, field := range []string{"n", "best_of"} {
		if got := many(field, "128"); got.status != http.StatusTooManyRequests {
			t.Errorf("%s 128 of 100: status %d", field, got.status)
		}
	}
	first := make(chan reply, 1)
	go func() { first <- many("n", "60") }()
	testkit.Until(t, "the first runs", func() bool { return b.open.Load() == 1 })
	if s := gate.Snapshot(); s.Units != 60 || s.Inflight != 1 {
		t.Errorf("%d units of %d requests, want 60 of 1", s.Units, s.Inflight)
	}
	if got := many("best_of", "60"); got.status != http.StatusTooManyRequests {
		t.Errorf("60 beside 60 of 100: status %d", got.status)
	}
	close(b.goOn)
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("the first: status %d", got.status)
	}
	if got := many("n", "60"); got.status != http.StatusOK {
		t.Errorf("60 of 100, alone: status %d", got.status)
	}
	if n := len(w.engines[0].got()); n != 2 {
		t.Errorf("%d deliveries, want 2", n)
	}
}
