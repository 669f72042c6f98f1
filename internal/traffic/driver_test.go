package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	text   = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	finish = `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n"
	done   = "data: [DONE]\n\n"
	fault  = `data: {"error":{"message":"worker lost"}}` + "\n\n"
)

func TestEveryEndingOfAStreamIsJudged(t *testing.T) {
	tests := []struct {
		name   string
		status int
		stream string
		cut    bool // the connection breaks after stream
		want   Outcome
	}{
		{"a whole answer is ok", 200, text + text + finish + usage + done, false, OK},
		{"comments between events do not matter", 200, ": ping\n\n" + text + ": ping\n\n" + finish + done, false, OK},
		{"text and one error event is interrupted", 200, text + fault, false, Interrupted},
		{"an error event without text is a failure", 200, fault, false, Failed},
		{"two error events are a failure", 200, text + fault + fault, false, Failed},
		{"an error and then [DONE] is a failure", 200, text + fault + done, false, Failed},
		{"data after [DONE] is a failure", 200, text + finish + done + text, false, Failed},
		{"two [DONE] are a failure", 200, text + finish + done + done, false, Failed},
		{"no terminal is a failure", 200, text + finish, false, Failed},
		{"[DONE] without a finish reason is a failure", 200, text + done, false, Failed},
		{"an answer without text is a failure", 200, finish + done, false, Failed},
		{"half an event is a failure", 200, text + finish + "data: [DO", false, Failed},
		{"an event that is no JSON, alone, counts as the error event it is", 200, text + "data: {\n\n", false, Interrupted},
		{"a cut connection is a failure", 200, text, true, Failed},
		{"a refusal is a failure", 503, `{"error":{"message":"no worker"}}`, false, Failed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(WorkerHeader, "10.0.0.1:30000")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.stream)
				if tt.cut {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			}))
			defer server.Close()
			d := &Driver{URL: server.URL, Model: "m"}
			r := d.Send(t.Context(), server.Client(), &Request{ID: "x", Messages: []Message{{"user", "hi"}}, MaxTokens: 2})
			if got := r.Outcome(); got != tt.want {
				t.Errorf("outcome %v, want %v: %+v", got, tt.want, r)
			}
			if r.Status != tt.status || r.Worker != "10.0.0.1:30000" || r.End.Before(r.Sent) {
				t.Errorf("booked %+v", r)
			}
		})
	}
}

func TestUsageAndFirstTextAreBooked(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body["stream"] != true || body["max_tokens"] != 7.0 || r.Header.Get("X-Request-Id") != "x" {
			t.Errorf("request %v, %v", body, err)
		}
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, text+finish+usage+done)
	}))
	defer server.Close()
	var first atomic.Int32
	d := &Driver{URL: server.URL, Model: "m", Observer: Observer{
		Sent:  func(*Request) { time.AfterFunc(30*time.Millisecond, func() { close(release) }) },
		First: func(*Result) { first.Add(1) },
	}}
	r := d.Send(t.Context(), server.Client(), &Request{ID: "x", MaxTokens: 7})
	if r.PromptTokens != 40 || r.CachedTokens != 32 || r.CompletionTokens != 2 || first.Load() != 1 {
		t.Errorf("booked %+v, %d first texts", r, first.Load())
	}
	if r.TTFT() < 30*time.Millisecond || r.TTFT() > r.End.Sub(r.Sent) {
		t.Errorf("first text after %v of %v, want at least 30ms", r.TTFT(), r.End.Sub(r.Sent))
	}
}

func TestTurnsWaitForTheAnswerBeforeThem(t *testing.T) {
	var mu sync.Mutex
	open := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conversation, _, _ := strings.Cut(r.Header.Get("X-Request-Id"), "-")
		mu.Lock()
		open[conversation]++
		if open[conversation] > 1 {
			t.Errorf("two turns of %s at once", conversation)
		}
		mu.Unlock()
		_, _ = io.WriteString(w, text+finish+usage+done)
		mu.Lock()
		open[conversation]--
		mu.Unlock()
	}))
	defer server.Close()
	plan := generate(t, func(c *GenerateConfig) { c.Requests, c.Over, c.Hurry = 60, 100*time.Millisecond, 1e5 })
	err := plan.Tokenize(t.Context(), func(_ context.Context, m []Message) ([]uint32, error) { return asTokens(m), nil })
	if err != nil {
		t.Fatal(err)
	}
	results := (&Driver{URL: server.URL, Model: "m"}).Run(t.Context(), plan)
	s := Summarize(results)
	if s.Requests != plan.Len() || s.OK != plan.Len() || s.Failed != 0 || s.HitRatio != .8 || s.TTFTp50 <= 0 || s.TTFTp99 < s.TTFTp50 {
		t.Errorf("summary %+v of %d requests", s, plan.Len())
	}
	if c := CeilingOf(results, 16); c <= 0 || c >= 1 || plan.PromptTokens() == 0 {
		t.Errorf("ceiling %g", c)
	}
}

func TestEndingTheRunCutsAndSkips(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		cancel(why)
		<-r.Context().Done()
	}))
	defer server.Close()
	plan := &Plan{Conversations: []Conversation{{Requests: []Request{{ID: "a"}, {ID: "b", Wait: time.Hour}}}}}
	results := (&Driver{URL: server.URL, Model: "m"}).Run(ctx, plan)
	if len(results) != 2 || results[0].Err == nil || !results[1].Sent.IsZero() || !errors.Is(results[1].Err, why) {
		t.Errorf("results %+v", results)
	}
}

func TestPatienceEndsAHangingRequest(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the client leave
		<-r.Context().Done()
	}))
	defer server.Close()
	d := &Driver{URL: server.URL, Model: "m", Patience: 20 * time.Millisecond}
	r := d.Send(t.Context(), server.Client(), &Request{ID: "x"})
	if r.Err == nil || !strings.Contains(r.Err.Error(), "no end of the answer") || r.Outcome() != Failed {
		t.Errorf("result %+v", r)
	}
}

func TestEventsOfSeveralLinesAreJoined(t *testing.T) {
	var got []string
	in := "event: x\ndata: a\ndata:b\nid: 3\n\ndata:\n\n"
	if err := readEvents(strings.NewReader(in), func(d []byte) { got = append(got, fmt.Sprintf("%q", d)) }); err != nil {
		t.Fatal(err)
	}
	if want := `["a\nb" ""]`; fmt.Sprint(got) != want {
		t.Errorf("events %v, want %s", got, want)
	}
}
