package extproc

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/mem"
)

// script packs messages into one fuzz input, each behind its length.
func script(tb testing.TB, msgs ...*extprocv3.ProcessingRequest) []byte {
	tb.Helper()
	var out []byte
	for _, m := range msgs {
		b := mustMarshal(tb, m)
		out = append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	return out
}

// nextMessage unpacks what script packed; a length beyond the end takes the rest.
func nextMessage(b []byte) (msg, rest []byte) {
	n, used := binary.Uvarint(b)
	if used <= 0 {
		return nil, nil
	}
	b = b[used:]
	n = min(n, uint64(len(b)))
	return b[:n], b[n:]
}

// FuzzRequestConversation plays any sequence of messages, in any order, to one
// exchange: it never meets a bug, what it answers are ProcessingResponses, a
// body comes back as it went in, and nothing stays reserved.
func FuzzRequestConversation(f *testing.F) {
	body := chat("m", "a prompt that is long enough for a block or two of sixteen tokens each, at four bytes a token")
	f.Add(script(f, post(chatPath), requestBody(body, true), responseHeaders(false, ":status", "200"), responseBody("x", true)))
	f.Add(script(f, post(chatPath), requestBody(body[:9], false), requestBody(body[9:], false), requestTrailers()))
	f.Add(script(f, withModes(post(chatPath), buffered, streamed), requestBody(body, true), responseHeaders(false, ":status", "503"), responseBody("x", false), responseTrailers()))
	f.Add(script(f, withModes(post("/v1/embeddings"), streamed, none), requestBody("x", false), requestBody("", true), responseHeaders(true, ":status", "204")))
	f.Add(script(f, get("/v1/models"), withMetadata(responseHeaders(true, ":status", "200"), namespaceLB, HeaderServed, "10.0.0.1:8000")))
	f.Add(script(f, withMetadata(post(chatPath), namespaceSubset, HeaderSubset, []any{"10.0.0.1"}), responseBody("x", false), requestBody(body, true)))
	f.Fuzz(func(t *testing.T, b []byte) {
		// New rooms each time, for what a picker has learned would make the same
		// input take other ways.
		w := buildWorld(t, testConfig(), mixed(workerID, "m"), mixed("10.0.0.2:30000", "other"))
		c := w.server.acquire()
		held, sent, got := false, []byte{}, []byte{}
		for len(b) > 0 {
			var raw []byte
			raw, b = nextMessage(b)
			handle := w.server.pool.Get(max(len(raw), 1))
			copy(*handle, raw)
			*handle = (*handle)[:len(raw)]
			c.msg.read(mem.NewBuffer(handle, w.server.pool))
			if c.msg.kind == kindRequestBody && c.x.held {
				held, sent = true, append(sent, c.msg.body...)
			}
			goesOn := c.x.on(t.Context(), &c.msg)
			c.msg.free()
			for i := range c.x.out {
				got = append(got, decode(t, c.x.out[i]).GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
			}
			c.x.out = c.x.out[:0]
			if !goesOn {
				break
			}
			if held && !c.x.held {
				if !bytes.Equal(sent, got) {
					t.Fatalf("the body %q came back as %q", sent, got)
				}
				break
			}
		}
		w.server.release(t.Context(), c)
		if testutil.ToFloat64(w.server.metrics.panics) != 0 {
			t.Fatalf("a bug: %s", w.log)
		}
		if n := len(w.picker.Held(time.Now(), 0)); n != 0 {
			t.Fatalf("%d reservations are left", n)
		}
	})
}
