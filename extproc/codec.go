package extproc

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec moves messages and answers without the protobuf library, and leaves
// every other type (health, reflection) to it.
type codec struct {
	pool  *bufferPool
	proto encoding.CodecV2
}

func newCodec(pool *bufferPool) *codec {
	return &codec{pool: pool, proto: encoding.GetCodecV2(proto.Name)}
}

// Name returns the content subtype that Envoy asks for.
func (c *codec) Name() string { return proto.Name }

// Marshal hands out an answer's buffers; grpc frees them.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		data := a.data
		a.data = nil
		return data, nil
	}
	return c.proto.Marshal(v)
}

// Unmarshal makes a message a view of data and keeps a reference. Bytes that are
// no ProcessingRequest are not an error here: the exchange answers them.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*message); ok {
		m.read(data.MaterializeToBuffer(c.pool))
		return nil
	}
	return c.proto.Unmarshal(data, v)
}
