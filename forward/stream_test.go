package forward_test

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pointsman/forward"
)

// What a worker does after the client has seen an event, byte for byte.
func TestARunningStreamEndsInExactlyOneTerminal(t *testing.T) {
	const failure = `data: {"error":{"message":"engine died","type":"server_error","code":500}}` + "\n\n"
	utf8 := `data: {"choices":[{"delta":{"content":"日本"}}]}` + "\n\n"
	crlf := strings.ReplaceAll(goodBody, "\n", "\r\n")
	cr := strings.ReplaceAll(goodBody, "\n", "\r")
	closing := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	lengthy := func(n string) string {
		return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " + n + "\r\n\r\n"
	}
	huge := `data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 900<<10) + `"}}]}` + "\n\n"
	tooHuge := `data: ` + strings.Repeat("x", 2<<20)
	tests := []struct {
		name   string
		script script
		option option
		path   string
		body   string // what the client gets before the error event, or all
		code   string // of the error event; "" for none
	}{
		{name: "a whole stream", script: raw(goodStream), body: goodBody},
		{name: "a whole stream of one chunk", script: raw(sse(goodBody)), body: goodBody},
		{name: "a whole stream until the connection's end", script: rawClose(closing + goodBody), body: goodBody},
		{name: "a stream whose bytes come one by one", script: raw(sse(strings.Split(goodBody, "")...)), body: goodBody},
		{name: "CR LF line ends", script: raw(sse(strings.SplitAfter(crlf, "\r")...)), body: crlf},
		{name: "CR line ends", script: raw(sse(strings.SplitAfter(cr, "\r")...)), body: cr},
		{name: "a byte order mark", script: raw(sse("\ufeff" + goodBody)), body: "\ufeff" + goodBody},
		{name: "comments", script: raw(sse(": ping\n\n", tok0, ": ping\n\n", tok1, done)), body: ": ping\n\n" + tok0 + ": ping\n\n" + tok1 + done},
		{name: "an event that is no JSON", script: raw(sse(tok0, "data: {nonsense\n\n", done)), body: tok0 + "data: {nonsense\n\n" + done},
		{name: "a null error member", script: raw(sse(`data: {"error":null,"choices":[]}`+"\n\n", done)), body: `data: {"error":null,"choices":[]}` + "\n\n" + done},
		{name: "a character cut by the chunks", script: raw(sse(utf8[:40], utf8[40:], done)), body: utf8 + done},
		{name: "an event of 900 KiB", script: raw(sse(huge, done)), body: huge + done},
		{name: "informational responses first", script: raw("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + goodStream), body: goodBody},
		{name: "two [DONE]", script: raw(sse(tok0, done, done)), body: tok0 + done},
		{name: "data behind [DONE]", script: raw(sse(tok0, done, tok1)), body: tok0 + done},
		{name: "data behind [DONE] in its chunk", script: raw(sse(tok0 + done + tok1)), body: tok0 + done},
		{name: "[DONE] without its blank line", script: raw(sse(tok0, "data: [DONE]")), body: tok0 + done},
		{name: "an error event", script: raw(sse(tok0, failure)), body: tok0 + failure},
		{name: "an error event and [DONE]", script: raw(sse(tok0, failure, done)), body: tok0 + failure},
		{name: "an error event by name", script: raw(sse(tok0, "event: error\ndata: boom\n\n", done)), body: tok0 + "event: error\ndata: boom\n\n"},
		{name: "an error event and a cut", script: rawClose(sseOpen(tok0, failure)), body: tok0 + failure},

		{name: "a proper end without [DONE]", script: raw(sse(role, tok0, stop)), body: role + tok0 + stop, code: "upstream_stream_truncated"},
		{name: "an end of the connection", script: rawClose(sseOpen(tok0)), body: tok0, code: "upstream_stream_truncated"},
		{name: "upstream_reset, a connection that is reset", script: rawReset(sseOpen(tok0), nil), body: tok0, code: "upstream_reset"},
		{name: "an end of a connection that marks the end", script: rawClose(closing + tok0), body: tok0, code: "upstream_stream_truncated"},
		{name: "an end before the announced length", script: rawClose(lengthy("999") + tok0), body: tok0, code: "upstream_stream_truncated"},
		{name: "half an event", script: rawClose(sseOpen(tok0, tok1[:30])), body: tok0, code: "upstream_stream_truncated"},
		{name: "half a [DONE]", script: rawClose(sseOpen(tok0, "data: [DO")), body: tok0, code: "upstream_stream_truncated"},
		{name: "a malformed chunk", script: rawClose(sseOpen(tok0) + "xyz\r\n"), body: tok0, code: "upstream_stream_truncated"},
		{name: "an endless event", script: rawClose(sseOpen(tok0, tooHuge)), body: tok0, code: "upstream_event_too_large"},
		{
			name: "silence", script: raw(sseOpen(tok0)), body: tok0, code: "stream_idle_timeout",
			option: change(func(c *forward.Config) { c.IdleTimeout = 200 * time.Millisecond }),
		},
		{
			name: "a request that takes too long", script: raw(sseOpen(tok0)), body: tok0, code: "max_duration_exceeded",
			option: change(func(c *forward.Config) { c.MaxDuration = 200 * time.Millisecond }),
		},

		{name: "a stream of an unknown path", path: "/generate", script: raw(sse("data: a\n\n", "data: b\n\n")), body: "data: a\n\ndata: b\n\n"},
		{name: "a cut stream of an unknown path", path: "/generate", script: rawClose(sseOpen("data: a\n\n")), body: "data: a\n\n", code: "upstream_stream_truncated"},
		{
			name: "responses", path: "/v1/responses",
			script: raw(sse("event: response.created\ndata: {}\n\n", "event: response.output_text.delta\ndata: {}\n\n", "data: {\"type\":\"response.completed\"}\n\n", "data: x\n\n")),
			body:   "event: response.created\ndata: {}\n\nevent: response.output_text.delta\ndata: {}\n\ndata: {\"type\":\"response.completed\"}\n\n",
		},
		{
			name: "cut responses", path: "/v1/responses",
			script: raw(sse("event: response.output_text.delta\ndata: {}\n\n")),
			body:   "event: response.output_text.delta\ndata: {}\n\n", code: "upstream_stream_truncated",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var options []option
			if tc.option != nil {
				options = append(options, tc.option)
			}
			w := newWorld(t, []script{tc.script, tc.script}, options...)
			got := w.do(call{path: tc.path, body: streamBody})
			w.settled(1)
			if got.err != nil || got.status != 200 {
				t.Fatalf("status %d, the body ended in %v", got.status, got.err)
			}
			rest, ok := strings.CutPrefix(got.body, tc.body)
			if !ok {
				t.Fatalf("body %.300q\nwant %.300q", got.body, tc.body)
			}
			if tc.path == "/v1/responses" {
				rest = plainForm(t, rest, tc.code, 1)
			}
			checkTerminal(t, rest, tc.code)
			if n := w.receipts(); n[0]+n[1] != 1 {
				t.Errorf("deliveries %v, want one", n)
			}
			outcome := "ok"
			if tc.code != "" || strings.Contains(tc.body, "engine died") || strings.Contains(tc.body, "boom") {
				outcome = "truncated"
			}
			if n := w.count("infera_request_duration_seconds", "outcome="+outcome); n != 1 {
				t.Errorf("not counted as %s", outcome)
			}
			if tc.code != "" && w.count("pointsman_forward_truncated_streams_total", "code="+tc.code) != 1 {
				t.Errorf("no truncated stream of code %s counted", tc.code)
			}
		})
	}
}

// plainForm returns the error event of the responses API in the form of chat
// completions; want is its number in the stream.
func plainForm(t *testing.T, rest, code string, want int) string {
	t.Helper()
	if rest == "" {
		return ""
	}
	data, ok := strings.CutPrefix(rest, "event: error\ndata: ")
	var v struct {
		Type, Code, Message string
		Sequence            int `json:"sequence_number"`
		Error               json.RawMessage
	}
	if err := json.Unmarshal([]byte(data), &v); err != nil || !ok {
		t.Fatalf("terminal %q: %v", rest, err)
	}
	if v.Type != "error" || v.Code != code || v.Message == "" || v.Sequence != want {
		t.Errorf("event %+v", v)
	}
	return `data: {"error":` + string(v.Error) + "}\n\n"
}

// checkTerminal fails unless rest is one error event of the given code, or
// nothing when code is "".
func checkTerminal(t *testing.T, rest, code string) {
	t.Helper()
	if code == "" {
		if rest != "" {
			t.Errorf("%q behind the end", rest)
		}
		return
	}
	data, ok := strings.CutPrefix(rest, "data: ")
	data, ok2 := strings.CutSuffix(data, "\n\n")
	if !ok || !ok2 || strings.Contains(data, "\n") {
		t.Fatalf("terminal %q, want one event", rest)
	}
	var v struct {
		Error struct {
			Message, Type, Code string
			RequestID           string `json:"request_id"`
			AttemptID           string `json:"attempt_id"`
		}
	}
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatal(err)
	}
	e := v.Error
	if e.Code != code || e.Message == "" || e.Type != "server_error" || e.RequestID == "" || e.AttemptID != e.RequestID+"/m1" {
		t.Errorf("error event %+v, want code %s", e, code)
	}
	if strings.Contains(rest, "127.0.0.1") || strings.Contains(rest, "w1") {
		t.Errorf("the event tells of the inside: %s", rest)
	}
}

func TestAnAnthropicStreamEndsInItsOwnTerminals(t *testing.T) {
	const (
		start = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n"
		delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n"
		end   = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	)
	body := `{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
	w := newWorld(t, []script{raw(sse(start, delta, end, done))})
	if got := w.do(call{path: "/v1/messages", body: body}); got.body != start+delta+end {
		t.Errorf("body %q", got.body)
	}
	w = newWorld(t, []script{rawClose(sseOpen(start, delta))})
	got := w.do(call{path: "/v1/messages", body: body})
	rest, ok := strings.CutPrefix(got.body, start+delta+"event: error\ndata: ")
	var v struct {
		Type  string
		Error struct{ Type, Message string }
	}
	if !ok || json.Unmarshal([]byte(strings.TrimSpace(rest)), &v) != nil || v.Type != "error" || v.Error.Type != "api_error" {
		t.Errorf("body %q", got.body)
	}
	w = newWorld(t, []script{rawReset(sseOpen(start), nil), raw(sse(start, delta, end))}, direct)
	if got := w.do(call{path: "/v1/messages", body: body, header: toW1}); got.body != start+delta+end {
		t.Errorf("a start alone is no content; body %q", got.body)
	}
}

func TestEventsAreRelayedWhenTheyCome(t *testing.T) {
	next := make(chan string)
	w := newWorld(t, []script{func(c net.Conn, _ receipt) bool {
		_, _ = io.WriteString(c, sseHead)
		for part := range next {
			_, _ = io.WriteString(c, chunk(part))
		}
		_, _ = io.WriteString(c, "0\r\n\r\n")
		return true
	}})
	respc := make(chan io.ReadCloser)
	go func() {
		resp, err := w.client.Do(w.request(t.Context(), call{body: streamBody})) //nolint:bodyclose // its reader does
		if err != nil {
			t.Error(err)
			close(respc)
			return
		}
		respc <- resp.Body
	}()
	next <- role // held back: no content yet
	next <- tok0[:20]
	select {
	case <-respc:
		t.Fatal("the head came before the first whole event with content")
	case <-time.After(50 * time.Millisecond):
	}
	next <- tok0[20:] + tok1[:10]
	body, ok := <-respc
	if !ok {
		return
	}
	defer body.Close()
	read := func(want string) {
		t.Helper()
		buf := make([]byte, len(want))
		if _, err := io.ReadFull(body, buf); err != nil || string(buf) != want {
			t.Fatalf("got %q and %v, want %q", buf, err, want)
		}
	}
	read(role + tok0)
	next <- tok1[10:]
	read(tok1)
	next <- done
	read(done)
	close(next)
	if rest, err := io.ReadAll(body); len(rest) != 0 || err != nil {
		t.Errorf("rest %q, error %v", rest, err)
	}
	w.settled(1)
	if n := w.count("pointsman_forward_ttft_seconds"); n != 1 {
		t.Errorf("%d times to first token, want 1", n)
	}
}

func TestKeepAliveCommentsCommitAStreamThatIsHeldForLong(t *testing.T) {
	w := newWorld(t, []script{rawClose(sseOpen(": ping\n\n", role)), good}, direct,
		change(func(c *forward.Config) { c.HoldTime = 0 }))
	got := w.do(call{body: streamBody, header: toW1})
	rest, ok := strings.CutPrefix(got.body, ": ping\n\n"+role)
	if !ok || got.status != 200 {
		t.Fatalf("status %d body %q", got.status, got.body)
	}
	checkTerminal(t, rest, "upstream_stream_truncated")

	many := strings.Repeat(": "+strings.Repeat("x", 100)+"\n\n", 200)
	w = newWorld(t, []script{rawClose(sseOpen(many)), good}, direct)
	got = w.do(call{body: streamBody, header: toW1})
	if n := w.receipts(); n[1] != 0 || got.status != 200 {
		t.Errorf("20 KiB of comments were held back: status %d, deliveries %v", got.status, n)
	}
}

func TestTheConnectionToTheWorkerIsUsedAgainBehindAStream(t *testing.T) {
	ports := make(chan string, 10)
	w := newWorld(t, []script{func(c net.Conn, r receipt) bool {
		ports <- c.RemoteAddr().String()
		return raw(sse(tok0, done, ": late\n\n"))(c, r)
	}})
	for range 3 {
		w.do(call{body: streamBody})
	}
	first := <-ports
	for range 2 {
		if next := <-ports; next != first {
			t.Errorf("connections %s and %s", first, next)
		}
	}
}
