package bench

import (
	"errors"
	"io"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// referenceServer is the least that an endpoint picker on plain grpc-go and
// go-control-plane can do: it holds the headers answer until the body is there,
// names a constant worker, and passes bodies on.
type referenceServer struct {
	extprocv3.UnimplementedExternalProcessorServer
}

const (
	referenceDestination = "10.0.0.1:8000"
	referenceChunk       = 62000
)

// Process serves one request's stream.
func (referenceServer) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	var body []byte
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		switch m := in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			var path string
			for _, h := range m.RequestHeaders.GetHeaders().GetHeaders() {
				if h.GetKey() == ":path" {
					path = string(h.GetRawValue())
				}
			}
			if path == "" {
				return status.Error(codes.InvalidArgument, "no path")
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			body = append(body, m.RequestBody.GetBody()...)
			if m.RequestBody.GetEndOfStream() {
				err = answerConstant(stream, body)
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			err = stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
				ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{}},
			}})
		case *extprocv3.ProcessingRequest_ResponseBody:
			err = stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
				ResponseBody: streamedBody(m.ResponseBody.GetBody(), m.ResponseBody.GetEndOfStream()),
			}})
		}
		if err != nil {
			return err
		}
	}
}

func answerConstant(stream extprocv3.ExternalProcessor_ProcessServer, body []byte) error {
	set := func(key, value string) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}
	}
	err := stream.Send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
				set("x-gateway-destination-endpoint", referenceDestination),
				set("x-worker-instance-id", "10.0.0.1:30000"),
				set("x-prefill-instance-id", "10.0.0.2:30000"),
			}}},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"envoy.lb": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				"x-gateway-destination-endpoint": structpb.NewStringValue(referenceDestination),
			}}),
		}},
	})
	for err == nil {
		n := min(len(body), referenceChunk)
		err = stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: streamedBody(body[:n], n == len(body)),
		}})
		if body = body[n:]; len(body) == 0 {
			break
		}
	}
	return err
}

func streamedBody(body []byte, eos bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body, EndOfStream: eos}},
	}}}
}
