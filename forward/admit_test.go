package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"pointsman/admission"
	"pointsman/prompt"
)

func TestBodiesAreReadWholeOrRefused(t *testing.T) {
	const limit = 100 << 10
	tests := []struct {
		name  string
		size  int   // of the body
		says  int64 // the announced length; -1 for none
		every int   // bytes per read; 0 for all
		want  error
	}{
		{name: "none", size: 0, says: 0},
		{name: "announced", size: 1000, says: 1000},
		{name: "announced, in small pieces", size: 1000, says: 1000, every: 1},
		{name: "not announced", size: 1000, says: -1},
		{name: "not announced and empty", size: 0, says: -1},
		{name: "not announced, larger than the first buffer", size: smallBuffer*3 + 7, says: -1, every: 1000},
		{name: "exactly the buffer", size: smallBuffer, says: -1},
		{name: "exactly the limit", size: limit, says: limit},
		{name: "exactly the limit, not announced", size: limit, says: -1},
		{name: "announced above the limit", size: 10, says: limit + 1, want: prompt.ErrTooLarge},
		{name: "above the limit, not announced", size: limit + 1, says: -1, want: prompt.ErrTooLarge},
	}
	s := &Server{bodies: admission.NewBudget(0)}
	for _, tc := range tests {
		body := bytes.Repeat([]byte("x"), tc.size)
		var src io.Reader = bytes.NewReader(body)
		if tc.every > 0 {
			src = iotest.OneByteReader(src)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.NopCloser(src))
		r.ContentLength = tc.says
		got, err := s.readBody(http.NewResponseController(httptest.NewRecorder()), r, bodyLimit{limit, 1 << 10, false})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
			continue
		}
		if tc.want != nil {
			continue
		}
		if tc.says == 0 {
			if got != nil {
				t.Errorf("%s: a buffer for no body", tc.name)
			}
			continue
		}
		if !bytes.Equal(*got, body) {
			t.Errorf("%s: %d bytes of %d", tc.name, len(*got), len(body))
		}
		s.bufs.put(got)
	}
}

func TestALargeAnnouncementAloneTakesLittleMemory(t *testing.T) {
	s := &Server{bodies: admission.NewBudget(0)}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.NopCloser(strings.NewReader("{}")))
	r.ContentLength = 32 << 20
	got, err := s.readBody(http.NewResponseController(httptest.NewRecorder()), r, bodyLimit{DefaultConfig().MaxBody, 1 << 10, false})
	if err != nil || cap(*got) > 2*trustLength {
		t.Errorf("2 bytes of 32 MiB took %d, error %v", cap(*got), err)
	}
}

func TestABrokenBodyIsTheClients(t *testing.T) {
	s := &Server{bodies: admission.NewBudget(0)}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.NopCloser(io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF))))
	r.ContentLength = 10
	if _, err := s.readBody(http.NewResponseController(httptest.NewRecorder()), r, bodyLimit{DefaultConfig().MaxBody, 1 << 10, false}); !errors.Is(err, errBrokenBody) || Status(err) != 400 {
		t.Errorf("error %v", err)
	}
}

func TestWhichRequestHeadersStay(t *testing.T) {
	tests := []struct {
		in   http.Header
		want string // names that go on
	}{
		{http.Header{"Accept": {"a"}, "X-A": {"1", "2"}}, "Accept X-A"},
		{http.Header{"Connection": {"X-A, keep-alive", "x-b"}, "X-A": {"1"}, "X-B": {"1"}, "X-C": {"1"}}, "X-C"},
		{http.Header{"Connection": {"authorization"}, "Authorization": {"k"}}, ""},
		{http.Header{"Transfer-Encoding": {"chunked"}, "Content-Length": {"1"}, "Host": {"h"}, "Expect": {"x"}, "Upgrade": {"h2c"}, "Http2-Settings": {"x"}}, ""},
		{http.Header{"X-Infera-Anything": {"1"}, "X-Data-Parallel-Host-Port": {"e"}, "X-Gateway-Destination-Endpoint-Served": {"e"}}, ""},
		{http.Header{"X-Request-Id": {"r"}, "X-Inferable": {"1"}, "Traceparent": {"t"}}, "Traceparent X-Inferable X-Request-Id"},
	}
	for _, tc := range tests {
		before := len(tc.in)
		got := outgoing(tc.in)
		for name := range strings.FieldsSeq(tc.want) {
			if len(got[name]) != len(tc.in[name]) || len(got[name]) == 0 {
				t.Errorf("%v: %s is %v", tc.in, name, got[name])
			}
		}
		if len(got) != len(strings.Fields(tc.want)) || len(tc.in) != before {
			t.Errorf("%v: %v, want %s", tc.in, got, tc.want)
		}
	}
}

func TestWhichResponseHeadersStay(t *testing.T) {
	dst := http.Header{"X-Ours": {"1"}}
	copyResponse(dst, http.Header{
		"Content-Type": {"a"}, "Retry-After": {"1"}, "X-Request-Id": {"r"},
		"Connection": {"x-hop"}, "X-Hop": {"1"}, "Keep-Alive": {"1"}, "Trailer": {"X"}, "Content-Length": {"5"},
		"X-Infera-Request-Id": {"theirs"}, "Upgrade": {"x"}, "Proxy-Authenticate": {"x"},
	})
	if len(dst) != 4 || dst.Get("Content-Type") != "a" || dst.Get("Retry-After") != "1" || dst.Get("X-Request-Id") != "r" || dst.Get("X-Ours") != "1" {
		t.Errorf("%v", dst)
	}
}

func TestWhichPathsMayRunTwice(t *testing.T) {
	tests := []struct {
		method, path string
		want         bool
	}{
		{"POST", "/v1/chat/completions", true},
		{"POST", "/v1/completions", true},
		{"POST", "/v1/messages", true},
		{"POST", "/v1/responses", true},
		{"POST", "/v1/embeddings", true},
		{"POST", "/tokenize", true},
		{"GET", "/anything", true},
		{"HEAD", "/anything", true},
		{"POST", "/v1/load_lora_adapter", false},
		{"POST", "/update_weights", false},
		{"DELETE", "/v1/responses/r1", false},
		{"PUT", "/x", false},
	}
	for _, tc := range tests {
		r := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil)
		x := &exchange{r: r, kind: kindOf(r)}
		if got := x.repeatable(); got != tc.want {
			t.Errorf("%s %s: %v", tc.method, tc.path, got)
		}
	}
}
