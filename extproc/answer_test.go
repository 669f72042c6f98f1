package extproc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman/reports"
)

func decode(tb testing.TB, a answer) *extprocv3.ProcessingResponse {
	tb.Helper()
	b := a.data.Materialize()
	a.data.Free()
	var got extprocv3.ProcessingResponse
	if err := proto.Unmarshal(b, &got); err != nil {
		tb.Fatalf("the answer is no ProcessingResponse: %v", err)
	}
	if len(got.ProtoReflect().GetUnknown()) > 0 {
		tb.Fatalf("the answer has unknown fields: %x", b)
	}
	return &got
}

func testAssembler() *assembler { return newAssembler(new(bufferPool)) }

func setOption(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

func TestRouteAnswersEqualTheGeneratedTypes(t *testing.T) {
	control := []string{
		HeaderDestination, HeaderWorker, HeaderPrefill, HeaderRank, HeaderPrefillRank, HeaderPrefillSkip,
		HeaderFallback, HeaderTicket, reports.Header, "x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id", "x-dp-rank", "x-prefill-dp-rank",
		"x-prefiller-host-port", HeaderServed, HeaderSubset,
		HeaderFairness, HeaderObjective, HeaderRewrite,
	}
	cases := []struct {
		name  string
		route route
		set   []*corev3.HeaderValueOption
	}{
		{"nothing was picked: all are removed", route{}, nil},
		{
			"a mixed worker",
			route{destination: []byte("10.0.0.1:8000"), worker: "10.0.0.1:30000"},
			[]*corev3.HeaderValueOption{setOption(HeaderDestination, "10.0.0.1:8000"), setOption(HeaderWorker, "10.0.0.1:30000")},
		},
		{
			"a pair",
			route{destination: []byte("[fd00::1]:8000"), worker: "[fd00::1]:30000", prefill: strings.Repeat("p", 300)},
			[]*corev3.HeaderValueOption{
				setOption(HeaderDestination, "[fd00::1]:8000"), setOption(HeaderWorker, "[fd00::1]:30000"),
				setOption(HeaderPrefill, strings.Repeat("p", 300)),
			},
		},
		{
			"a rank",
			route{destination: []byte("h:1"), worker: "w", rank: []byte("7")},
			[]*corev3.HeaderValueOption{setOption(HeaderDestination, "h:1"), setOption(HeaderWorker, "w"), setOption(HeaderRank, "7")},
		},
		{
			"ranks of both legs",
			route{destination: []byte("h:1"), worker: "w", prefill: "p", rank: []byte("7"), prefillRank: []byte("12")},
			[]*corev3.HeaderValueOption{
				setOption(HeaderDestination, "h:1"), setOption(HeaderWorker, "w"), setOption(HeaderPrefill, "p"),
				setOption(HeaderRank, "7"), setOption(HeaderPrefillRank, "12"),
			},
		},
		{
			"two endpoints, signed, for a request without an ID",
			route{destination: []byte("h:1,i:2"), worker: "w", fallback: []byte("v"), ticket: []byte("v1,2,x"), id: "r"},
			[]*corev3.HeaderValueOption{
				setOption(HeaderDestination, "h:1,i:2"), setOption(HeaderWorker, "w"), setOption(HeaderFallback, "v"),
				setOption(HeaderTicket, "v1,2,x"), setOption(HeaderRequestID, "r"),
			},
		},
		{
			"with what the forwarder is to know of the pick",
			route{destination: []byte("h:1"), worker: "w", pick: []byte("epp;n=1")},
			[]*corev3.HeaderValueOption{setOption(HeaderDestination, "h:1"), setOption(HeaderWorker, "w"), setOption(reports.Header, "epp;n=1")},
		},
		{
			"a decode worker alone",
			route{destination: []byte("h:1"), worker: "w", alone: true},
			[]*corev3.HeaderValueOption{setOption(HeaderDestination, "h:1"), setOption(HeaderWorker, "w"), setOption(HeaderPrefillSkip, "true")},
		},
	}
	for _, c := range cases {
		for _, clearCache := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, clear_route_cache %t", c.name, clearCache), func(t *testing.T) {
				common := &extprocv3.CommonResponse{
					HeaderMutation:  &extprocv3.HeaderMutation{SetHeaders: c.set},
					ClearRouteCache: clearCache,
				}
				for _, name := range control {
					if !slices.ContainsFunc(c.set, func(o *corev3.HeaderValueOption) bool { return o.GetHeader().GetKey() == name }) {
						common.HeaderMutation.RemoveHeaders = append(common.HeaderMutation.RemoveHeaders, name)
					}
				}
				want := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
					RequestHeaders: &extprocv3.HeadersResponse{Response: common},
				}}
				if c.set != nil {
					lb, err := structpb.NewStruct(map[string]any{
						"envoy.lb": map[string]any{"x-gateway-destination-endpoint": string(c.route.destination)},
					})
					if err != nil {
						t.Fatal(err)
					}
					want.DynamicMetadata = lb
				}
				r := c.route
				r.reselect = clearCache
				got := decode(t, testAssembler().route(answerRequestHeaders, &r))
				if !proto.Equal(got, want) {
					t.Errorf("got  %v\nwant %v", got, want)
				}
			})
		}
	}
}

func TestPiecesEqualTheGeneratedTypes(t *testing.T) {
	const limit = 62000
	for _, size := range []int{0, 1, 127, 128, 1000, smallBody, smallBody + 1, limit, limit + 1, 3*limit + 5, 2 << 20} {
		for _, eos := range []bool{false, true} {
			for _, num := range []protowire.Number{answerRequestBody, answerResponseBody} {
				t.Run(fmt.Sprintf("%d bytes, end %t, field %d", size, eos, num), func(t *testing.T) {
					a := testAssembler()
					body := strings.Repeat("0123456789abcdef", size/16+2)[1 : size+1]
					handle := a.pool.Get(size + 7)
					copy((*handle)[3:], body)
					buf := mem.NewBuffer(handle, a.pool)
					answers := a.pieces(nil, num, buf, 3, 3+size, limit, eos)
					buf.Free()
					checkPieces(t, answers, num, body, limit, eos)
				})
			}
		}
	}
}

func checkPieces(t *testing.T, answers []answer, num protowire.Number, body string, limit int, eos bool) {
	t.Helper()
	var got strings.Builder
	for i, a := range answers {
		r := decode(t, a)
		response := r.GetRequestBody()
		if num == answerResponseBody {
			response = r.GetResponseBody()
		}
		piece := response.GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			t.Fatalf("piece %d is no streamed response: %v", i, r)
		}
		got.Write(piece.GetBody())
		if len(piece.GetBody()) > limit {
			t.Errorf("piece %d has %d bytes, more than %d", i, len(piece.GetBody()), limit)
		}
		if last := i == len(answers)-1; piece.GetEndOfStream() != (last && eos) {
			t.Errorf("piece %d of %d: end_of_stream %t", i, len(answers), piece.GetEndOfStream())
		}
	}
	if got.String() != body {
		t.Error("the pieces are not the body")
	}
	if body == "" && !eos && len(answers) != 0 {
		t.Error("an empty chunk in mid-stream is answered; nothing is to be passed on")
	}
	if eos && len(answers) == 0 {
		t.Error("the end of the stream is not answered")
	}
}

func TestPlainAnswersEqualTheGeneratedTypes(t *testing.T) {
	unchanged := &extprocv3.CommonResponse{}
	want := map[kind]*extprocv3.ProcessingResponse{
		kindRequestHeaders:   {Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: unchanged}}},
		kindResponseHeaders:  {Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: unchanged}}},
		kindRequestBody:      {Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: unchanged}}},
		kindResponseBody:     {Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: unchanged}}},
		kindRequestTrailers:  {Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}},
		kindResponseTrailers: {Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}},
	}
	a := testAssembler()
	for k, w := range want {
		for range 2 { // shared bytes must survive their sending
			if got := decode(t, a.same(k)); !proto.Equal(got, w) {
				t.Errorf("kind %d: got %v, want %v", k, got, w)
			}
		}
	}
}

func BenchmarkRouteAnswer(b *testing.B) {
	a := testAssembler()
	r := &route{destination: []byte("10.0.0.1:8000"), worker: "10.0.0.1:30000"}
	b.ReportAllocs()
	for b.Loop() {
		a.route(answerRequestHeaders, r).data.Free()
	}
}

func BenchmarkPiece(b *testing.B) {
	for _, size := range []int{150, 62000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			a := testAssembler()
			buf := mem.NewBuffer(a.pool.Get(size), a.pool)
			b.ReportAllocs()
			for b.Loop() {
				a.piece(answerResponseBody, buf, 0, size, false).data.Free()
			}
		})
	}
}
