package nats

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"pointsman/forward"
	"pointsman/internal/broker"
)

func TestTheFirstBytesTellAStream(t *testing.T) {
	for _, tc := range []struct {
		text string
		want heldKind
	}{
		{"", heldUnknown},
		{"\n\r\n", heldUnknown},
		{"d", heldUnknown},
		{"data", heldUnknown},
		{"data:", heldEvents},
		{"data: {", heldEvents},
		{"\r\n\ndata:x", heldEvents},
		{"event: error\n", heldEvents},
		{"ev", heldUnknown},
		{"id:1", heldEvents},
		{"retry: 5", heldEvents},
		{": ping\n\n", heldEvents},
		{":", heldEvents},
		{"\xef", heldUnknown},
		{"\xef\xbb", heldUnknown},
		{"\xef\xbb\xbf", heldUnknown},
		{"\xef\xbb\xbfdata:", heldEvents},
		{"\xef\xbbdata:", heldOther},
		{"{", heldOther},
		{`{"error":`, heldOther},
		{"date:", heldOther},
		{"Internal Server Error", heldOther},
		{" data:", heldOther},
		{"\x1f\x8b", heldOther},
	} {
		if got := kindOf([]byte(tc.text)); got != tc.want {
			t.Errorf("kindOf(%q) = %d, want %d", tc.text, got, tc.want)
		}
	}
}

func FuzzKindDoesNotDependOnHowTheBytesAreCut(f *testing.F) {
	f.Add([]byte("\xef\xbb\xbf\r\ndata: x"), uint8(3))
	f.Add([]byte(`{"a":1}`), uint8(1))
	f.Add([]byte("event"), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		whole := kindOf(b)
		h := holder{limit: 1 << 20}
		n := int(step%16) + 1
		for i := 0; i < len(b); i += n {
			if !h.add(b[i:min(i+n, len(b))]) {
				t.Fatal("refused below the limit")
			}
			if k := h.kind(); k != heldUnknown && k != whole {
				t.Fatalf("%q is %d, and %q is %d", h.bytes(), k, b, whole)
			}
		}
		if string(h.bytes()) != string(b) || h.size != int64(len(b)) {
			t.Errorf("kept %q of %q", h.bytes(), b)
		}
	})
}

func TestAWholeAnswerIsDescribed(t *testing.T) {
	for _, tc := range []struct {
		body     string
		status   int
		want     int
		kind     string
		encoding string
	}{
		{`{"a":1}`, 200, 200, "application/json", ""},
		{` [1]`, 207, 207, "application/json", ""},
		{"Internal Server Error", 500, 500, "text/plain; charset=utf-8", ""},
		{"", 204, 204, "", ""},
		{"\x1f\x8bzz", 200, 200, "application/json", "gzip"},
		{zipped("{}"), 200, 200, "application/json", "gzip"},
		{zipped("data: a\n\n"), 200, 200, "text/event-stream", "gzip"},
		{`{"error":{"m":1}}`, 0, 502, "application/json", ""},
		{`{"id":1}`, 0, 200, "application/json", ""},
		{`oops`, 0, 502, "text/plain; charset=utf-8", ""},
	} {
		h := holder{limit: 1 << 20}
		h.add([]byte(tc.body))
		r := h.whole(tc.status)
		b, err := io.ReadAll(r.Body)
		if err != nil || string(b) != tc.body || r.Length != int64(len(tc.body)) || r.Status != tc.want ||
			r.Header.Get("Content-Type") != tc.kind || r.Header.Get("Content-Encoding") != tc.encoding {
			t.Errorf("%q, %d: status %d, %v, length %d, %q, %v; want %d, %q, %q", tc.body, tc.status, r.Status, r.Header, r.Length, b, err, tc.want, tc.kind, tc.encoding)
		}
	}
}

func TestWhatAWorkerReportsBeforeTheStatus(t *testing.T) {
	for _, tc := range []struct {
		text      string
		status    int
		stage     forward.Stage
		blameless bool
	}{
		{"infera: worker draining", 503, 0, false},
		{"request cancelled", 503, 0, false},
		{"request exceeded max duration", 504, 0, false},
		{"", 504, 0, false},
		{"timed out", 504, 0, false},
		{"All connection attempts failed", 0, forward.StageDial, false},
		{"[Errno 111] Connection refused", 0, forward.StageDial, false},
		{"nats: maximum payload exceeded", 0, forward.StageDispatched, true},
		{"peer closed connection without sending complete message body", 0, forward.StageDispatched, false},
		{strings.Repeat("x", 10_000), 0, forward.StageDispatched, false},
	} {
		resp, err := refusal(tc.text, false)
		if tc.status != 0 {
			if err != nil || resp.Status != tc.status || (resp.Status == http.StatusServiceUnavailable) != (resp.Header.Get("Retry-After") != "") {
				t.Errorf("%q: %+v, %v; want status %d", clip(tc.text), resp, err, tc.status)
			}
			continue
		}
		var failed *forward.Error
		if !errors.As(err, &failed) || failed.Stage != tc.stage || errors.Is(err, forward.ErrBlameless) != tc.blameless || len(err.Error()) > 600 {
			t.Errorf("%q: %+v, %v; want stage %s, blameless %v", clip(tc.text), resp, err, tc.stage, tc.blameless)
		}
	}
}

func TestAnAnswerAboveTheLimitIsNotKept(t *testing.T) {
	h := holder{limit: 10}
	if !h.add([]byte("12345")) || !h.add([]byte("67890")) || h.add([]byte("1")) {
		t.Error("the limit of 10 bytes does not hold")
	}
}

func TestConfigFaultsAreAllNamed(t *testing.T) {
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	c = Config{
		Broker: broker.Config{Server: "http://user:secret@h:1"}, IdleTimeout: -1, MaxDuration: -1, MaxPending: -1, ProbeInterval: -1, ConnectWait: -1,
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("no fault found")
	}
	for _, part := range []string{"want nats, tls", "idle timeout", "max duration", "max pending", "probe interval", "connect wait", "buffers"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("a password is in %v", err)
	}
}

func zipped(text string) string {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return out.String()
}
