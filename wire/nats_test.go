package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// natsMessage is one message of a captured request.
type natsMessage struct {
	Conversation string            `json:"conversation"`
	Subject      string            `json:"subject"`
	Reply        string            `json:"reply"`
	Headers      map[string]string `json:"headers"`
	Text         string            `json:"text"`
}

func (m *natsMessage) header() map[string][]string {
	if m.Headers == nil {
		return nil
	}
	h := map[string][]string{}
	for k, v := range m.Headers {
		h[k] = []string{v}
	}
	return h
}

func natsMessages(tb testing.TB) []natsMessage {
	tb.Helper()
	f, err := os.Open("testdata/nats_requests.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	var out []natsMessage
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var m natsMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			tb.Fatal(err)
		}
		out = append(out, m)
	}
	if len(out) == 0 {
		tb.Fatal("no captured messages")
	}
	return out
}

func TestSubjectsAreBuiltFromTheToken(t *testing.T) {
	for _, tc := range []struct{ id, request, cancel string }{
		{"127.0.0.1:25311", "infera.req.MTI3LjAuMC4xOjI1MzEx", "infera.cancel.MTI3LjAuMC4xOjI1MzEx"},
		{"10.0.0.1:30000", "infera.req.MTAuMC4wLjE6MzAwMDA", "infera.cancel.MTAuMC4wLjE6MzAwMDA"},
		{"a.>", "infera.req.YS4-", "infera.cancel.YS4-"},
	} {
		if got := RequestSubject(tc.id); got != tc.request {
			t.Errorf("RequestSubject(%q) = %q, want %q", tc.id, got, tc.request)
		}
		if got := CancelSubject(tc.id); got != tc.cancel {
			t.Errorf("CancelSubject(%q) = %q, want %q", tc.id, got, tc.cancel)
		}
	}
	for _, m := range natsMessages(t) {
		if strings.HasPrefix(m.Subject, "infera.") && !strings.Contains(m.Subject, Token(workerOf(m.Subject))) {
			t.Errorf("subject %s", m.Subject)
		}
	}
}

// workerOf undoes the captured subjects' token.
func workerOf(subject string) string {
	for _, id := range []string{
		"127.0.0.1:25311", "127.0.0.1:25312", "127.0.0.1:25313", "127.0.0.1:25314", "127.0.0.1:25321", "127.0.0.1:25322",
		"127.0.0.2:25331", "127.0.0.2:25332",
	} {
		if strings.HasSuffix(subject, "."+Token(id)) {
			return id
		}
	}
	return "unknown worker"
}

func TestCapturedEnvelopesAreReadAndWritten(t *testing.T) {
	n := 0
	for _, m := range natsMessages(t) {
		if !strings.HasPrefix(m.Subject, "infera.req.") {
			continue
		}
		n++
		e, err := DecodeEnvelope([]byte(m.Text))
		if err != nil {
			t.Errorf("%s: %v", m.Conversation, err)
			continue
		}
		if e.Path != "/v1/chat/completions" || e.Migratable || e.Stream != strings.Contains(m.Text, `"stream": true, "headers"`) {
			t.Errorf("%s: %+v", m.Conversation, e)
		}
		again, err := e.Append(nil)
		if err != nil {
			t.Errorf("%s: %v", m.Conversation, err)
		}
		if !sameJSON(t, again, []byte(strings.Replace(m.Text, `, "migratable": false`, "", 1))) { // which is the default
			t.Errorf("%s: written as %s, captured %s", m.Conversation, again, m.Text)
		}
	}
	if n < 7 {
		t.Errorf("%d captured requests, want 7 at least", n)
	}
}

func sameJSON(tb testing.TB, a, b []byte) bool {
	tb.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		tb.Errorf("%s: %v", a, err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		tb.Errorf("%s: %v", b, err)
	}
	return reflect.DeepEqual(x, y)
}

func TestEnvelopes(t *testing.T) {
	for _, tc := range []struct {
		name string
		e    Envelope
		want string
	}{
		{"nothing set", Envelope{Body: []byte(`{}`)}, `{"path":"","stream":false,"headers":null,"body":{}}`},
		{
			"everything set",
			Envelope{Path: "/v1/x?a=b", Stream: true, Headers: map[string]string{"X-B": "2", "X-A": `q"\` + "\n"}, Body: []byte(` {"a": 1} `), Migratable: true},
			`{"path":"/v1/x?a=b","stream":true,"headers":{"X-A":"q\"\\\n","X-B":"2"},"body": {"a": 1} ,"migratable":true}`,
		},
		{"a path beyond ASCII", Envelope{Path: "/é", Body: []byte(`{}`)}, `{"path":"/é","stream":false,"headers":null,"body":{}}`},
	} {
		got, err := tc.e.Append([]byte("x"))
		if err != nil || string(got) != "x"+tc.want {
			t.Errorf("%s: %s, %v; want %s", tc.name, got, err, tc.want)
		}
	}
}

func TestABodyCannotForgeTheEnvelope(t *testing.T) {
	for _, body := range []string{
		"", "null", "[]", `"x"`, "1", "{", `{"a":1}}`, `{}{}`, `{},"path":"/admin"`, `{"a":1},"migratable":true,"x":{}`, `{"a":}`, "\x00{}", `{'a':1}`,
	} {
		e := Envelope{Body: []byte(body)}
		if got, err := e.Append([]byte("x")); !errors.Is(err, ErrEnvelope) || string(got) != "x" {
			t.Errorf("body %q: %s, %v; want %v and nothing appended", body, got, err, ErrEnvelope)
		}
	}
}

func TestEnvelopesOfOthersAreRead(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       Envelope
		bad        bool
	}{
		{"nothing in it", `{}`, Envelope{Path: "/v1/chat/completions", Body: []byte("{}")}, false},
		{"unknown fields", `{"path":"/p","new":[1],"body":{"a":1}}`, Envelope{Path: "/p", Body: []byte(`{"a":1}`)}, false},
		{"a migratable stream", `{"stream":true,"migratable":true,"headers":{"A":"b"}}`, Envelope{Path: "/v1/chat/completions", Stream: true, Migratable: true, Headers: map[string]string{"A": "b"}, Body: []byte("{}")}, false},
		{"a body that is no object", `{"body":[1]}`, Envelope{}, true},
		{"no JSON", `path`, Envelope{}, true},
		{"a header that is no string", `{"headers":{"A":1}}`, Envelope{}, true},
	} {
		got, err := DecodeEnvelope([]byte(tc.text))
		if errors.Is(err, ErrEnvelope) != tc.bad || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, %v; want %+v", tc.name, got, err, tc.want)
		}
	}
}

func TestCapturedRepliesAreClassified(t *testing.T) {
	got := map[string]string{}
	for _, m := range natsMessages(t) {
		if strings.HasPrefix(m.Subject, "_INBOX.") {
			r := ParseReply(m.header(), []byte(m.Text))
			got[m.Conversation] += string("?.d.$!e0s-"[kindLetter(&r)])
		}
	}
	want := map[string]string{
		"core stream":       "ddddddddd$-",
		"core unary":        "d$-",
		"core canceled":     strings.Repeat("d", 15) + "!-",
		"core engine error": "d$-",
		"jetstream unary":   "sd$",
		"prefill":           "d$-",
		"decode":            "ddd$-",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// kindLetter is the place of a kind's letter in "?.d.$!e0s-".
func kindLetter(r *Reply) int {
	switch r.Kind {
	case ReplyData:
		return 2
	case ReplyDone:
		return 4
	case ReplyError:
		return 5
	case ReplyNoResponders:
		return 7
	case ReplyStored:
		return 8
	case ReplyEmpty:
		return 9
	case ReplyNotStored:
		return 6
	}
	return 0
}

func TestReplies(t *testing.T) {
	h := func(kv ...string) map[string][]string {
		out := map[string][]string{}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = []string{kv[i+1]}
		}
		return out
	}
	for _, tc := range []struct {
		name   string
		header map[string][]string
		data   string
		want   Reply
	}{
		{"data", h("rs-type", "data"), "x", Reply{Kind: ReplyData, Data: []byte("x"), Seq: -1}},
		{"numbered data", h("rs-type", "data", "rs-seq", "7"), "x", Reply{Kind: ReplyData, Data: []byte("x"), Seq: 7}},
		{"a number that is none", h("rs-type", "data", "rs-seq", "-7"), "x", Reply{Kind: ReplyData, Data: []byte("x"), Seq: -1}},
		{"data that looks like an acknowledgment", h("rs-type", "data"), `{"stream":"S","seq":1}`, Reply{Kind: ReplyData, Data: []byte(`{"stream":"S","seq":1}`), Seq: -1}},
		{"done", h("rs-type", "done", "rs-status", "429"), "", Reply{Kind: ReplyDone, Status: 429, Seq: -1}},
		{"done without status", h("rs-type", "done"), "", Reply{Kind: ReplyDone, Status: 200, Seq: -1}},
		{"done with an empty status", h("rs-type", "done", "rs-status", ""), "", Reply{Kind: ReplyDone, Status: 200, Seq: -1}},
		{"done with junk", h("rs-type", "done", "rs-status", "2OO"), "", Reply{Kind: ReplyDone, Seq: -1}},
		{"done with an interim status", h("rs-type", "done", "rs-status", "101"), "", Reply{Kind: ReplyDone, Seq: -1}},
		{"done with a status too large", h("rs-type", "done", "rs-status", "700"), "", Reply{Kind: ReplyDone, Seq: -1}},
		{"error", h("rs-type", "error"), "request cancelled", Reply{Kind: ReplyError, Data: []byte("request cancelled"), Seq: -1}},
		{"an unknown type", h("rs-type", "head"), "x", Reply{Kind: ReplyStray, Seq: -1}},
		{"no responders", h("Status", "503"), "", Reply{Kind: ReplyNoResponders, Seq: -1}},
		{"another status", h("Status", "100", "Description", "Idle Heartbeat"), "", Reply{Kind: ReplyEmpty, Seq: -1}},
		{"nothing", nil, "", Reply{Kind: ReplyEmpty, Seq: -1}},
		{"stored", nil, `{"stream":"INFERA_REQUESTS", "seq":2}`, Reply{Kind: ReplyStored, Stored: 2, Seq: -1}},
		{"stored elsewhere", nil, `{"stream":"AUDIT","seq":2,"domain":"d"}`, Reply{Kind: ReplyStored, Seq: -1}},
		{"not stored", nil, `{"type":"io.nats.jetstream.api.v1.pub_ack_response","error":{"code":503,"description":"x"}}`, Reply{Kind: ReplyNotStored, Seq: -1}},
		{"text", nil, "hello", Reply{Kind: ReplyStray, Seq: -1}},
		{"other JSON", nil, `{"stream":true,"seq":1}`, Reply{Kind: ReplyStray, Seq: -1}},
		{"an error that is a string", nil, `{"error":"x"}`, Reply{Kind: ReplyStray, Seq: -1}},
		{"a long object", nil, `{"stream":"S","seq":1,"x":"` + strings.Repeat("x", 5000) + `"}`, Reply{Kind: ReplyStray, Seq: -1}},
	} {
		if got := ParseReply(tc.header, []byte(tc.data)); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func FuzzParseReply(f *testing.F) {
	for _, m := range natsMessages(f) {
		f.Add(m.Headers["rs-type"], m.Headers["rs-status"], m.Headers["rs-seq"], []byte(m.Text))
	}
	f.Fuzz(func(t *testing.T, kind, status, seq string, data []byte) {
		h := map[string][]string{HeaderStatus: {status}, HeaderSeq: {seq}}
		if kind != "" {
			h[HeaderType] = []string{kind}
		}
		r := ParseReply(h, data)
		if r.Final() != (kind == "done" || kind == "error") {
			t.Errorf("type %q: %+v", kind, r)
		}
		if r.Status != 0 && (r.Status < 200 || r.Status > 599) {
			t.Errorf("status %d out of %q", r.Status, status)
		}
		if r.Kind == ReplyData && (kind != "data" || !bytes.Equal(r.Data, data)) {
			t.Errorf("type %q: %+v", kind, r)
		}
		if kind == "" && (r.Kind == ReplyData || r.Final()) {
			t.Errorf("a frame out of an untyped message: %+v", r)
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	f.Add("/v1/x", "X-A", "b", []byte(`{"a":1}`), true)
	f.Add("/\xff", "a", "\x00", []byte(`{},"path":"/y"`), false)
	f.Fuzz(func(t *testing.T, path, name, value string, body []byte, flag bool) {
		e := Envelope{Path: path, Stream: flag, Headers: map[string]string{name: value}, Body: body, Migratable: !flag}
		text, err := e.Append(nil)
		if err != nil {
			if json.Valid(body) && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
				t.Errorf("body %q refused: %v", body, err)
			}
			return
		}
		got, err := DecodeEnvelope(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		clean := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
		if strings.Contains(clean(path)+clean(name)+clean(value), "\uFFFD") {
			return // replaced byte by byte, which ToValidUTF8 does not
		}
		if got.Path != path || got.Stream != flag || got.Migratable == flag || got.Headers[name] != value || len(got.Headers) != 1 || !sameJSON(t, got.Body, body) {
			t.Errorf("%+v became %+v", e, got)
		}
	})
}
