package forward_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/responses"

	"pointsman/forward"
)

const engineError = `data: {"error":{"message":"engine died","type":"server_error","code":500}}` + "\n\n"

func TestSSEErrorDoneEndsABrokenStreamForLegacyClients(t *testing.T) {
	on := change(func(c *forward.Config) { c.ErrorDone = true })
	for name, s := range map[string]script{
		"a cut":                        rawClose(sseOpen(tok0)),
		"the worker's own error event": raw(sse(tok0, engineError)),
		"the same with [DONE]":         raw(sse(tok0, engineError, done)),
	} {
		got := newWorld(t, []script{s}, on).do(call{body: streamBody})
		if n := strings.Count(got.body, done); n != 1 || !strings.HasSuffix(got.body, "}}\n\n"+done) || strings.Count(got.body, `"error":{`) != 1 {
			t.Errorf("%s: %q", name, got.body)
		}
	}
	const delta = "event: content_block_delta\ndata: {}\n\n"
	got := newWorld(t, []script{rawClose(sseOpen(delta))}, on).do(call{path: "/v1/messages", body: streamBody})
	if !strings.HasPrefix(got.body, delta+"event: error\n") || strings.Contains(got.body, "[DONE]") {
		t.Errorf("an API without [DONE]: %q", got.body)
	}
}

func TestSSEAcceptFinishReason(t *testing.T) {
	chunkOf := func(i, reason string) string {
		return `data: {"choices":[{"index":` + i + `,"delta":{"content":"x"},"finish_reason":` + reason + `}]}` + "\n\n"
	}
	two := `{"model":"m","stream":true,"n":2,"messages":[{"role":"user","content":"hello"}]}`
	tests := []struct {
		name     string
		parts    []string
		body     string
		cut, off bool
		complete bool
	}{
		{name: "each choice has ended", parts: []string{role, tok0, stop}, complete: true},
		{name: "a usage chunk behind", parts: []string{tok0, stop, `data: {"choices":[],"usage":{"total_tokens":3}}` + "\n\n"}, complete: true},
		{name: "two choices have ended", parts: []string{chunkOf("0", "null"), chunkOf("1", `"stop"`), chunkOf("0", `"length"`)}, body: two, complete: true},
		{name: "one of two has ended", parts: []string{chunkOf("0", `"stop"`)}, body: two},
		{name: "a choice goes on", parts: []string{chunkOf("0", `"stop"`), chunkOf("1", "null")}},
		{name: "no reason", parts: []string{tok0, tok1}},
		{name: "half an event behind", parts: []string{tok0, stop, "data: [DO"}},
		{name: "a cut", parts: []string{tok0, stop}, cut: true},
		{name: "off", parts: []string{tok0, stop}, off: true},
	}
	for _, tc := range tests {
		s := raw(sse(tc.parts...))
		if tc.cut {
			s = rawClose(sseOpen(tc.parts...))
		}
		if tc.body == "" {
			tc.body = streamBody
		}
		w := newWorld(t, []script{s}, change(func(c *forward.Config) { c.AcceptFinish = !tc.off }))
		got := w.do(call{body: tc.body})
		w.settled(1)
		if complete := strings.HasSuffix(got.body, "}\n\n"+done); complete != tc.complete || complete == strings.Contains(got.body, "upstream_stream_truncated") {
			t.Errorf("%s: %q", tc.name, got.body)
		}
		counted := 0
		if tc.complete {
			counted = 1
		}
		if n := w.count("infera_router_missing_done_total"); n != counted {
			t.Errorf("%s: %d streams without [DONE] counted", tc.name, n)
		}
	}
}

// The worker sends an event, is silent, and sends the rest.
func TestSSEKeepaliveCommentsFillTheWorkersSilence(t *testing.T) {
	goOn := make(chan struct{})
	slow := func(c net.Conn, _ receipt) bool {
		_, _ = io.WriteString(c, sseOpen(tok0, tok1[:20])) // the comment must not split the second event
		<-goOn
		_, err := io.WriteString(c, strings.TrimPrefix(sse(tok1[20:], done), sseHead))
		return err == nil
	}
	w := newWorld(t, []script{slow}, change(func(c *forward.Config) { c.KeepAlive = 20 * time.Millisecond }))
	resp, err := w.client.Do(w.request(t.Context(), call{body: streamBody}))
	fatal(t, err)
	defer resp.Body.Close()
	buf := make([]byte, len(tok0)+3*len(": keepalive\n\n"))
	_, err = io.ReadFull(resp.Body, buf)
	fatal(t, err)
	close(goOn)
	rest, err := io.ReadAll(resp.Body)
	fatal(t, err)
	all := string(buf) + string(rest)
	if n := strings.Count(all, ": keepalive\n\n"); n < 3 || strings.ReplaceAll(all, ": keepalive\n\n", "") != tok0+tok1+done {
		t.Errorf("%q", all)
	}
}

func TestSSEKeepaliveSaysNothingBeforeTheHeadAndStretchesNoTimer(t *testing.T) {
	mute := raw(sseHead)
	limits := change(func(c *forward.Config) {
		c.KeepAlive, c.IdleTimeout, c.MaxRetries = 5*time.Millisecond, 150*time.Millisecond, 0
	})
	got := newWorld(t, []script{mute}, limits).do(call{body: streamBody})
	if got.status != 504 || strings.Contains(got.body, "keepalive") {
		t.Errorf("before the head: status %d, %q", got.status, got.body)
	}
	start := time.Now()
	got = newWorld(t, []script{raw(sseOpen(tok0))}, limits).do(call{body: streamBody})
	if !strings.Contains(got.body, ": keepalive\n\n") || !strings.Contains(got.body, "stream_idle_timeout") || time.Since(start) > 5*time.Second {
		t.Errorf("behind it: %q after %v", got.body, time.Since(start))
	}
}

// zipped compresses parts; cut leaves out the end.
func zipped(t *testing.T, cut bool, parts ...string) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	for _, p := range parts {
		_, _ = io.WriteString(z, p)
		_ = z.Flush()
	}
	if !cut {
		fatal(t, z.Close())
	}
	return out.String()
}

func TestAnAnswerCompressedUnaskedIsRelayedPlain(t *testing.T) {
	head := strings.Replace(sseHead, "\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n", 1)
	whole := zipped(t, false, role, tok0, tok1, stop, done)
	short := zipped(t, false, role, tok0, tok1)
	stream := func(body string) script { return rawClose(head + chunk(body) + "0\r\n\r\n") }
	for _, tc := range []struct {
		name   string
		script script
		status int
		body   string
		code   string // of the error event behind
	}{
		{"a stream", stream(whole), 200, goodBody, ""},
		{"one without [DONE]", stream(short), 200, role + tok0 + tok1, "upstream_stream_truncated"},
		{"one whose compression is cut", stream(whole[:len(whole)-12]), 200, goodBody, ""}, // all events were there
		{"one cut among the events", stream(zipped(t, true, role, tok0, tok1)), 200, role + tok0 + tok1, "upstream_stream_truncated"},
		{"garbage", stream("no gzip in truth"), 502, "", "upstream_stream_truncated"},
		{"a coding that was not asked for", raw(strings.Replace(goodStream, "\r\n\r\n", "\r\nContent-Encoding: br\r\n\r\n", 1)), 502, "", "upstream_invalid_response"},
	} {
		w := newWorld(t, []script{tc.script}, change(func(c *forward.Config) { c.MaxRetries = 0 }))
		got := w.do(call{body: streamBody, header: map[string]string{"Accept-Encoding": "gzip"}})
		w.settled(1)
		if got.status != tc.status || got.header.Get("Content-Encoding") != "" || !strings.HasPrefix(got.body, tc.body) {
			t.Errorf("%s: status %d, %q", tc.name, got.status, got.body)
			continue
		}
		if tc.status == 200 {
			checkTerminal(t, got.body[len(tc.body):], tc.code)
		} else if !strings.Contains(got.body, tc.code) {
			t.Errorf("%s: %q", tc.name, got.body)
		}
		if enc := w.engines[0].got()[0].head.Header.Get("Accept-Encoding"); enc != "identity" {
			t.Errorf("%s: the worker was asked for %q", tc.name, enc)
		}
	}
	object := zipped(t, false, `{"choices":[]}`)
	w := newWorld(t, []script{raw(jsonReply(200, object, "Content-Encoding: gzip"))})
	if got := w.do(call{body: chatBody}); got.status != 200 || got.body != `{"choices":[]}` || got.header.Get("Content-Encoding") != "" {
		t.Errorf("object: status %d, %q, %v", got.status, got.body, got.header)
	}
	w = newWorld(t, []script{raw(jsonReply(200, object[:len(object)-9], "Content-Encoding: gzip"))})
	if got := w.do(call{body: chatBody}); got.status != 502 {
		t.Errorf("cut object: status %d, %q", got.status, got.body)
	}
	w = newWorld(t, []script{raw(jsonReply(200, object, "Content-Encoding: gzip"))})
	if got := w.do(call{path: "/other", body: "x"}); got.body != object {
		t.Errorf("a path that is only passed through: %q", got.body)
	}
}

// A responses stream by the official client.
func TestTheOfficialClientReadsResponses(t *testing.T) {
	const (
		created   = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0}\n\n"
		delta     = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\",\"sequence_number\":1}\n\n"
		completed = "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,\"response\":{\"error\":null}}\n\n"
		failedOne = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n"
	)
	for _, tc := range []struct {
		name        string
		script      script
		text, fails string
		last        string // type of the last event seen
	}{
		{"a whole stream", raw(sse(created, delta, completed)), "hi", "", "response.completed"},
		{"one that the engine fails", raw(sse(created, delta, failedOne)), "hi", "", "response.failed"},
		{"a cut", rawClose(sseOpen(created, delta)), "hi", "upstream_stream_truncated", "response.output_text.delta"},
		{"an end without completion", raw(sse(created, delta)), "hi", "upstream_stream_truncated", "response.output_text.delta"},
	} {
		w := newWorld(t, []script{tc.script})
		client := sdk(w)
		stream := client.Responses.NewStreaming(context.Background(), responses.ResponseNewParams{Model: model})
		var text, last string
		for stream.Next() {
			last = stream.Current().Type
			text += stream.Current().Delta
		}
		err := stream.Err()
		if text != tc.text || last != tc.last || (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
			t.Errorf("%s: text %q, last %q, error %v", tc.name, text, last, err)
		}
		stream.Close()
	}
	// Events that carry nothing yet are no reason to stay with a worker that dies.
	w := newWorld(t, []script{rawReset(sseOpen(created), nil), raw(sse(created, delta, completed))}, direct)
	if got := w.do(call{path: "/openai/v1/responses", body: streamBody, header: toW1}); got.body != created+delta+completed {
		t.Errorf("%q", got.body)
	}
}

func TestAnErrorEventThatHoldsTheErrorBehindOtherMembersIsATerminal(t *testing.T) {
	const late = `data: {"id":"c","choices":[],"error":{"message":"engine died","code":500}}` + "\n\n"
	w := newWorld(t, []script{raw(sse(tok0, late, tok1, done))})
	got := w.do(call{body: streamBody})
	w.settled(1)
	if got.body != tok0+late {
		t.Errorf("%q", got.body)
	}
	if w.count("pointsman_forward_truncated_streams_total", "code=upstream_error_event") != 1 {
		t.Error("not counted")
	}
	w = newWorld(t, []script{raw(sse(late))}, change(func(c *forward.Config) { c.MaxRetries = 0 }))
	if got := w.do(call{body: streamBody}); got.status != http.StatusInternalServerError || !strings.Contains(got.body, "upstream_error_event") || strings.Contains(got.body, "engine died") {
		t.Errorf("before the head: %d %q", got.status, got.body)
	}
}
