package extproc

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestHeaders(eos bool, pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(pairs...), EndOfStream: eos},
	}}
}

func responseHeaders(eos bool, pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(pairs...), EndOfStream: eos},
	}}
}

func requestBody(body string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos},
	}}
}

func responseBody(body string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos},
	}}
}

func requestTrailers(pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(pairs...)},
	}}
}

func responseTrailers(pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(pairs...)},
	}}
}

func withModes(m *extprocv3.ProcessingRequest, request, response modev3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return m
}

// withMetadata puts {namespace: {key: value}} into m's metadata context.
func withMetadata(m *extprocv3.ProcessingRequest, namespace, key string, value any) *extprocv3.ProcessingRequest {
	s, err := structpb.NewStruct(map[string]any{key: value})
	if err != nil {
		panic(err)
	}
	if m.MetadataContext == nil {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	m.MetadataContext.FilterMetadata[namespace] = s
	return m
}

func mustMarshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// differences compares a view with what the protobuf library read from the same
// bytes, and returns what differs.
func differences(m *message, want *extprocv3.ProcessingRequest) []string {
	var diff []string
	note := func(same bool, what string) {
		if !same {
			diff = append(diff, what)
		}
	}
	var k kind
	var headers *corev3.HeaderMap
	var body []byte
	var eos bool
	switch r := want.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		k, headers, eos = kindRequestHeaders, r.RequestHeaders.GetHeaders(), r.RequestHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		k, headers, eos = kindResponseHeaders, r.ResponseHeaders.GetHeaders(), r.ResponseHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestBody:
		k, body, eos = kindRequestBody, r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseBody:
		k, body, eos = kindResponseBody, r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		k, headers = kindRequestTrailers, r.RequestTrailers.GetTrailers()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		k, headers = kindResponseTrailers, r.ResponseTrailers.GetTrailers()
	}
	note(m.kind == k, "kind")
	note(m.eos == eos, "end_of_stream")
	note(bytes.Equal(m.body, body), "body")
	if m.buf != nil && m.body != nil {
		note(bytes.Equal(m.buf.ReadOnlyData()[m.bodyAt:m.bodyAt+len(m.body)], body), "place of the body")
	}
	it := headerIter{rest: m.headers}
	for _, h := range headers.GetHeaders() {
		value := h.GetRawValue()
		if len(value) == 0 {
			value = []byte(h.GetValue())
		}
		if !it.next() || string(it.key) != h.GetKey() || !bytes.Equal(it.value, value) {
			note(false, "header "+h.GetKey())
			break
		}
	}
	note(!it.next() && it.err == nil, "number of headers")
	note(m.configured == (want.ProtocolConfig != nil), "protocol_config")
	note(m.requestMode == bodyMode(want.GetProtocolConfig().GetRequestBodyMode()), "request body mode")
	note(m.responseMode == bodyMode(want.GetProtocolConfig().GetResponseBodyMode()), "response body mode")
	note((m.metadata != nil) == (want.MetadataContext != nil), "metadata_context")
	for _, name := range []string{namespaceLB, namespaceSubset} {
		raw, found, err := lookup(m.metadata, name)
		s := want.GetMetadataContext().GetFilterMetadata()[name]
		note(err != nil || found == (s != nil), "metadata namespace")
		if found && s != nil {
			var got structpb.Struct
			note(proto.Unmarshal(raw, &got) == nil && proto.Equal(&got, s), "metadata contents")
		}
	}
	s := want.GetAttributes()[namespaceExtProc]
	note((m.attributes != nil) == (s != nil), "attributes")
	return diff
}

func seedMessages() []*extprocv3.ProcessingRequest {
	attributes, _ := structpb.NewStruct(map[string]any{attributeUpstream: "10.0.0.1:8000"})
	withAttributes := responseHeaders(false, ":status", "503")
	withAttributes.Attributes = map[string]*structpb.Struct{namespaceExtProc: attributes, "other": {}}
	inValue := requestHeaders(true)
	inValue.GetRequestHeaders().Headers = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":method", Value: "GET"}}}
	return []*extprocv3.ProcessingRequest{
		{},
		withModes(requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "content-length", "12"), modev3.ProcessingMode_FULL_DUPLEX_STREAMED, modev3.ProcessingMode_NONE),
		withMetadata(requestHeaders(true), namespaceSubset, HeaderSubset, []any{"10.0.0.1:8000", "10.0.0.2:8000"}),
		withMetadata(requestBody(`{"model":"m"}`, true), namespaceSubset, HeaderSubset, "10.0.0.1:8000,10.0.0.2"),
		requestBody("", true),
		requestTrailers("x-checksum", "1"),
		withMetadata(responseHeaders(false, ":status", "200"), namespaceLB, HeaderServed, "10.0.0.1:8000"),
		withAttributes,
		responseBody("data: {}\n\n", false),
		responseTrailers(),
		inValue,
	}
}

func TestAMessageIsReadAsTheProtobufLibraryReadsIt(t *testing.T) {
	for i, want := range seedMessages() {
		var m message
		m.read(mem.SliceBuffer(mustMarshal(t, want)))
		if m.err != nil {
			t.Errorf("message %d: %v", i, m.err)
			continue
		}
		if diff := differences(&m, want); diff != nil {
			t.Errorf("message %d differs in %v", i, diff)
		}
		m.free()
	}
}

// raw builds wire bytes field by field.
type raw []byte

func (r raw) bytes(num protowire.Number, b []byte) raw {
	return protowire.AppendBytes(protowire.AppendTag(r, num, protowire.BytesType), b)
}

func (r raw) varint(num protowire.Number, v uint64) raw {
	return protowire.AppendVarint(protowire.AppendTag(r, num, protowire.VarintType), v)
}

func TestUnusualEncodingsAreReadAsTheProtobufLibraryReadsThem(t *testing.T) {
	header := func(key, value string) []byte { return raw{}.bytes(1, []byte(key)).bytes(3, []byte(value)) }
	first := raw{}.bytes(1, header("a", "1"))
	second := raw{}.bytes(1, header("b", "2"))
	entry := func(key string, value []byte) []byte { return raw{}.bytes(1, []byte(key)).bytes(2, value) }
	group := protowire.AppendTag(nil, 77, protowire.StartGroupType)
	group = protowire.AppendVarint(protowire.AppendTag(group, 1, protowire.VarintType), 5)
	group = protowire.AppendTag(group, 77, protowire.EndGroupType)
	cases := map[string][]byte{
		"an unknown field before and after":                   raw{}.varint(200, 1).bytes(4, raw{}.bytes(1, []byte("x"))).bytes(201, []byte("y")),
		"a group":                                             raw(group).bytes(4, raw{}.bytes(1, []byte("x")).varint(2, 1)),
		"a known field of the wrong wire type":                raw{}.varint(4, 1).varint(8, 2).varint(9, 3).varint(11, 4),
		"an over-long varint":                                 append(append([]byte{0x22, 0x83, 0x80, 0x80, 0x00}, 0x0a, 0x01, 'x'), 0x58, 0x80, 0x80, 0x00),
		"two members of the oneof: the last counts":           raw{}.bytes(4, raw{}.bytes(1, []byte("x")).varint(2, 1)).bytes(5, raw{}.bytes(1, []byte("y"))),
		"a member, another, the first again":                  raw{}.bytes(4, raw{}.bytes(1, []byte("x")).varint(2, 1)).bytes(5, nil).bytes(4, nil),
		"one member twice: its fields are merged":             raw{}.bytes(4, raw{}.bytes(1, []byte("x"))).bytes(4, raw{}.varint(2, 1)),
		"headers in two messages":                             raw{}.bytes(2, raw{}.bytes(1, first)).bytes(2, raw{}.bytes(1, second).varint(3, 1)),
		"headers in two maps":                                 raw{}.bytes(2, raw{}.bytes(1, first).bytes(1, second)),
		"a body given twice":                                  raw{}.bytes(4, raw{}.bytes(1, []byte("x")).bytes(1, []byte("yz"))),
		"an end of stream taken back":                         raw{}.bytes(4, raw{}.varint(2, 1).varint(2, 0)),
		"metadata in two messages":                            raw{}.bytes(8, raw{}.bytes(1, entry(namespaceLB, nil))).bytes(8, raw{}.bytes(1, entry(namespaceSubset, nil))),
		"one namespace twice":                                 raw{}.bytes(8, raw{}.bytes(1, entry(namespaceLB, raw{}.bytes(1, entry("a", nil)))).bytes(1, entry(namespaceLB, nil))),
		"an attribute entry with two values":                  raw{}.bytes(9, raw(entry(namespaceExtProc, raw{}.bytes(1, entry("a", nil)))).bytes(2, raw{}.bytes(1, entry("b", nil)))),
		"a protocol config in two messages":                   raw{}.bytes(11, raw{}.varint(1, 4)).bytes(11, raw{}.varint(2, 1)),
		"a mode that does not fit 32 bits":                    raw{}.bytes(11, raw{}.varint(1, 1<<32|2)),
		"a header with a value and a raw value":               raw{}.bytes(2, raw{}.bytes(1, raw{}.bytes(1, raw{}.bytes(1, []byte("k")).bytes(2, []byte("v")).bytes(3, []byte("r"))))),
		"a trailers message with what ends a headers message": raw{}.bytes(6, raw{}.varint(3, 1)),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			var want extprocv3.ProcessingRequest
			if err := proto.Unmarshal(b, &want); err != nil {
				t.Fatalf("the case is not a valid message: %v", err)
			}
			var m message
			m.read(mem.SliceBuffer(b))
			if m.err != nil {
				t.Fatal(m.err)
			}
			if diff := differences(&m, &want); diff != nil {
				t.Errorf("differs in %v", diff)
			}
		})
	}
}

func TestBytesThatAreNoMessageAreAnError(t *testing.T) {
	whole := mustMarshal(t, requestBody("hello", true))
	cases := map[string][]byte{
		"truncated in a body":        whole[:len(whole)-4],
		"truncated in a tag":         {0x80},
		"field number 0":             {0x02, 0x00},
		"a length beyond the end":    {0x22, 0x7f, 0x00},
		"an 11-byte varint":          append([]byte{0x58}, bytes.Repeat([]byte{0xff}, 11)...),
		"an end of a group only":     protowire.AppendTag(nil, 77, protowire.EndGroupType),
		"a broken body inside":       {0x22, 0x02, 0x0a, 0x05},
		"a broken config inside":     {0x5a, 0x01, 0x08},
		"a broken attribute inside":  {0x4a, 0x01, 0x0a},
		"merged parts, one is wrong": raw{}.bytes(2, raw{}.bytes(1, nil).bytes(1, []byte{0x0a, 0x05})),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			var m message
			m.read(mem.SliceBuffer(b))
			if m.err == nil {
				t.Errorf("read as %v without an error", m.kind)
			}
			m.free()
		})
	}
}

// FuzzRequestView: whatever the protobuf library accepts, the view shows the
// same; on anything else it does not panic.
func FuzzRequestView(f *testing.F) {
	for _, m := range seedMessages() {
		f.Add(mustMarshal(f, m))
	}
	f.Add([]byte(raw{}.bytes(2, raw{}.bytes(1, nil)).bytes(2, raw{}.bytes(1, nil).varint(3, 1))))
	f.Add([]byte{0x22, 0x83, 0x80, 0x80, 0x00, 0x0a, 0x01, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		m.read(mem.SliceBuffer(bytes.Clone(b)))
		var want extprocv3.ProcessingRequest
		if proto.Unmarshal(b, &want) != nil {
			it := headerIter{rest: m.headers}
			for it.next() {
			}
			servedBy(&m)
			var s subset
			_ = s.observe(m.metadata)
			return
		}
		if m.err != nil {
			t.Fatalf("the protobuf library reads it, the view says: %v", m.err)
		}
		if diff := differences(&m, &want); diff != nil {
			t.Fatalf("differs in %v from %v", diff, &want)
		}
	})
}

func BenchmarkReadHeaders(b *testing.B) {
	msg := mustMarshal(b, requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", ":authority", "x",
		"content-type", "application/json", "x-request-id", "8f7d-1", "content-length", "1024", "user-agent", "openai"))
	b.ReportAllocs()
	for b.Loop() {
		var m message
		m.read(mem.SliceBuffer(msg))
		it := headerIter{rest: m.headers}
		for it.next() {
		}
	}
}
