package extproc

import (
	"bytes"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

func TestCodecLeavesOtherTypesToTheProtobufLibrary(t *testing.T) {
	c := newCodec(poisoned())
	if c.Name() != "proto" {
		t.Errorf("the codec's name is %q; Envoy asks for application/grpc, which is proto", c.Name())
	}
	in := &healthpb.HealthCheckRequest{Service: "readiness"}
	data, err := c.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out healthpb.HealthCheckRequest
	if err := c.Unmarshal(data, &out); err != nil || !proto.Equal(in, &out) {
		t.Errorf("got %v, %v", &out, err)
	}
	if _, err := c.Marshal(struct{}{}); err == nil {
		t.Error("a type that is no message is marshalled")
	}
}

// fragments cuts b into pooled buffers, as HTTP/2 frames do.
func fragments(pool *bufferPool, b []byte, size int) mem.BufferSlice {
	var data mem.BufferSlice
	for len(b) > 0 {
		n := min(size, len(b))
		data = append(data, mem.Copy(b[:n], pool))
		b = b[n:]
	}
	return data
}

func TestCodecKeepsTheReceivedBytesAliveUntilTheMessageIsFreed(t *testing.T) {
	body := strings.Repeat("0123456789", 5000)
	wire := mustMarshal(t, requestBody(body, true))
	for _, size := range []int{len(wire), 16384, 4096, 100} {
		pool := poisoned()
		c := newCodec(pool)
		data := fragments(pool, wire, size)
		var m message
		if err := c.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		data.Free() // as grpc does right after
		if !bytes.Equal(m.body, []byte(body)) || !m.eos {
			t.Errorf("in fragments of %d: the body is not what was received", size)
		}
		m.free()
	}
}

func TestCodecHandsOutAnAnswerOnce(t *testing.T) {
	a := testAssembler()
	answer := a.route(answerRequestHeaders, &route{destination: []byte("h:1"), worker: "w"})
	c := newCodec(a.pool)
	data, err := c.Marshal(&answer)
	if err != nil || data.Len() == 0 {
		t.Fatalf("%d bytes, %v", data.Len(), err)
	}
	data.Free()
	answer.data.Free() // whoever cleans up after a failed send: must not free twice
	if again, err := c.Marshal(&answer); err != nil || again.Len() != 0 {
		t.Errorf("a second time: %d bytes, %v", again.Len(), err)
	}
}
