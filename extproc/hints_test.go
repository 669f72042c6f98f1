package extproc

import (
	"slices"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/structpb"
)

func view(tb testing.TB, m *extprocv3.ProcessingRequest) *message {
	tb.Helper()
	var v message
	v.read(mem.SliceBuffer(mustMarshal(tb, m)))
	if v.err != nil {
		tb.Fatal(v.err)
	}
	return &v
}

func TestSubsetIsReadInEveryEncoding(t *testing.T) {
	cases := []struct {
		name  string
		value any
		given bool
		want  []string
	}{
		{"a list", []any{"10.0.0.1:8000", "10.0.0.2:8000"}, true, []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
		{"a comma-separated string", "10.0.0.1:8000, 10.0.0.2:8000,", true, []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
		{"a list of comma-separated strings", []any{"10.0.0.1:8000,10.0.0.2", "[fd00::1]:8000"}, true, []string{"10.0.0.1:8000", "10.0.0.2", "[fd00::1]:8000"}},
		{"entries without a port", []any{"10.0.0.1"}, true, []string{"10.0.0.1"}},
		{"an empty list", []any{}, true, nil},
		{"an empty string", "", true, nil},
		{"a number, which no endpoint is", 5.0, true, nil},
		{"a list in a list, which nobody sends", []any{[]any{"10.0.0.1"}}, true, nil},
		{"null", nil, false, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var s subset
			m := view(t, withMetadata(requestHeaders(true), namespaceSubset, HeaderSubset, c.value))
			if err := s.observe(m.metadata); err != nil {
				t.Fatal(err)
			}
			if s.given != c.given || !slices.Equal(s.endpoints, c.want) {
				t.Errorf("given %t %q, want %t %q", s.given, s.endpoints, c.given, c.want)
			}
		})
	}
}

func TestTheLastSubsetThatIsNotEmptyCounts(t *testing.T) {
	var s subset
	for _, value := range []any{[]any{}, []any{"a:1"}, "b:2", "b:2", []any{}} {
		m := view(t, withMetadata(requestBody("x", false), namespaceSubset, HeaderSubset, value))
		if err := s.observe(m.metadata); err != nil {
			t.Fatal(err)
		}
	}
	if !s.given || !slices.Equal(s.endpoints, []string{"b:2"}) {
		t.Errorf("given %t %q, want b:2", s.given, s.endpoints)
	}
	s.reset()
	if s.given || s.endpoints != nil {
		t.Error("a reset subset still says something")
	}
}

func TestOtherMetadataIsNoSubset(t *testing.T) {
	var s subset
	for _, m := range []*extprocv3.ProcessingRequest{
		requestHeaders(true),
		withMetadata(requestHeaders(true), namespaceLB, HeaderSubset, "a:1"),
		withMetadata(requestHeaders(true), namespaceSubset, "x-other", "a:1"),
	} {
		if err := s.observe(view(t, m).metadata); err != nil || s.given {
			t.Errorf("%v: given %t, error %v", m, s.given, err)
		}
	}
}

func TestServedEndpointComesFromMetadataOrAttribute(t *testing.T) {
	attribute := func(m *extprocv3.ProcessingRequest, value any) *extprocv3.ProcessingRequest {
		s, err := structpb.NewStruct(map[string]any{attributeUpstream: value, "request.id": "r"})
		if err != nil {
			t.Fatal(err)
		}
		m.Attributes = map[string]*structpb.Struct{namespaceExtProc: s}
		return m
	}
	headers := func() *extprocv3.ProcessingRequest { return responseHeaders(false, ":status", "200") }
	cases := []struct {
		name string
		m    *extprocv3.ProcessingRequest
		want string
	}{
		{"neither", headers(), ""},
		{"metadata", withMetadata(headers(), namespaceLB, HeaderServed, "a:1"), "a:1"},
		{"attribute", attribute(headers(), "b:2"), "b:2"},
		{"metadata goes first", attribute(withMetadata(headers(), namespaceLB, HeaderServed, "a:1"), "b:2"), "a:1"},
		{"empty metadata", attribute(withMetadata(headers(), namespaceLB, HeaderServed, ""), "b:2"), "b:2"},
		{"a number", withMetadata(headers(), namespaceLB, HeaderServed, 1.0), ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := string(servedBy(view(t, c.m))); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
