package nats

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/wire"
)

// The tests of this file are named after the rows of the table of defects that
// the router this one replaces has; each shows that the row does not apply.

func TestN1ARequestToAWorkerThatIsNotSubscribedFailsAtOnce(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	tr := start(t, broker.URL, nil)
	for _, stream := range []bool{true, false} {
		for _, mode := range []string{"never subscribed", "gone deaf"} {
			e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.Deaf = mode == "never subscribed" })
			if mode == "gone deaf" {
				if err := e.SetDeaf(true); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			got := do(t.Context(), tr, e.Worker(), chat(4, stream))
			if got.err == nil || got.stage != forward.StageDial || errors.Is(got.err, forward.ErrBlameless) {
				t.Errorf("stream %v, %s: status %d, error %v; want a failed dial that is the worker's", stream, mode, got.status, got.err)
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("stream %v, %s: took %s", stream, mode, took)
			}
			if err := e.SetDeaf(false); err != nil {
				t.Fatal(err)
			}
			if got := do(t.Context(), tr, e.Worker(), chat(4, stream)); got.err != nil || got.status != 200 {
				t.Errorf("stream %v, %s: back again: status %d, error %v", stream, mode, got.status, got.err)
			}
		}
	}
}

func TestN1AStreamDoesNotHideThatTheWorkerIsGone(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	tr := start(t, broker.URL, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = 8 })
	if err := e.SetDeaf(true); err != nil { // its durable consumer stays
		t.Fatal(err)
	}
	begun := time.Now()
	got := do(t.Context(), tr, e.Worker(), chat(4, true))
	if !errors.Is(got.err, errGone) || got.stage > forward.StageDispatched {
		t.Errorf("status %d, error %v; want %v", got.status, got.err, errGone)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("took %s", took)
	}
	js := jetStream(t, broker)
	testkit.Until(t, "an empty stream", func() bool { return messages(t, js) == 0 }) // it must not run when the worker is back
	if err := e.SetDeaf(false); err != nil {
		t.Fatal(err)
	}
	if got := do(t.Context(), tr, e.Worker(), chat(4, true)); got.err != nil || got.status != 200 {
		t.Errorf("back again: status %d, error %v", got.status, got.err)
	}
	if n := len(e.Receipts()); n != 1 {
		t.Errorf("the engine ran %d requests, want the second only", n)
	}
}

func TestN1AWorkerThatDiesInTheMiddleEndsTheAnswer(t *testing.T) {
	for _, maxPending := range []int{0, 8} {
		broker := testfleet.StartNATS(t, nil)
		tr := start(t, broker.URL, func(c *Config) { c.ProbeInterval = 50 * time.Millisecond })
		e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = maxPending })
		for _, fault := range []string{"hang_head", "status_then_hang_body:200"} {
			req := chat(4, true)
			req.Header.Set(simengine.FaultHeader, fault)
			out := make(chan reply, 1)
			go func() { out <- do(t.Context(), tr, e.Worker(), req) }()
			testkit.Until(t, "the request", func() bool { return len(e.Receipts()) > 0 })
			if err := e.SetDeaf(true); err != nil {
				t.Fatal(err)
			}
			if got := get(t, out); !errors.Is(got.err, errGone) {
				t.Errorf("max pending %d, %s: status %d, error %v", maxPending, fault, got.status, got.err)
			}
			if err := e.SetDeaf(false); err != nil {
				t.Fatal(err)
			}
			e.ClearReceipts()
		}
	}
}

func TestN2AnEngineErrorOnAStreamKeepsItsStatus(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	tr := start(t, broker.URL, nil)
	for _, maxPending := range []int{0, 8} {
		e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = maxPending })
		for _, status := range []int{500, 400, 429, 503} {
			for _, stream := range []bool{true, false} {
				req := chat(4, stream)
				req.Header.Set(simengine.FaultHeader, "status:"+strconv.Itoa(status))
				got := do(t.Context(), tr, e.Worker(), req)
				if got.err != nil || got.status != status || got.head.Get("Content-Type") != "application/json" || !strings.Contains(got.body, `"error"`) {
					t.Errorf("stream %v, max pending %d: status %d, %v, %q, error %v; want %d", stream, maxPending, got.status, got.head, got.body, got.err, status)
				}
			}
		}
	}
}

func TestN3ABodyAboveMaxPayloadNeverFailsAWorker(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.MaxModelLen = 8 << 20 })
	large := post(`{"model":"sim-model","max_tokens":2,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 600_000) + `"}]}`)

	t.Run("refused without another way", func(t *testing.T) {
		tr := start(t, broker.URL, nil)
		got := do(t.Context(), tr, e.Worker(), large)
		if got.err != nil || got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, `"request_too_large"`) {
			t.Errorf("status %d, body %q, error %v; want a typed 413", got.status, got.body, got.err)
		}
	})
	t.Run("over HTTP where the worker offers it", func(t *testing.T) {
		h := overHTTP{}
		tr := start(t, broker.URL, func(c *Config) { c.Fallback = h })
		e.ClearReceipts()
		if got := do(t.Context(), tr, e.Worker(), large); got.err != nil || got.status != 200 {
			t.Errorf("status %d, error %v", got.status, got.err)
		}
		if r := e.Receipts(); len(r) != 1 || r[0].BytesIn != int64(len(large.Body)) {
			t.Errorf("receipts %+v", r)
		}
	})
	t.Run("refused where HTTP is closed", func(t *testing.T) {
		h := overHTTP{}
		tr := start(t, broker.URL, func(c *Config) { c.Fallback = h })
		w := *e.Worker()
		w.URL, w.Host, w.Port = "http://127.0.0.1:1", "127.0.0.1", 1
		if got := do(t.Context(), tr, &w, large); got.err != nil || got.status != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d, error %v; want 413", got.status, got.err)
		}
	})
	t.Run("carried by a broker that takes it", func(t *testing.T) {
		wide := testfleet.StartNATS(t, func(o *server.Options) { o.MaxPayload = 8 << 20 })
		w := engine(t, wide.URL, func(c *simengine.Config) { c.MaxModelLen = 8 << 20 })
		tr := start(t, wide.URL, nil)
		if got := do(t.Context(), tr, w.Worker(), large); got.err != nil || got.status != 200 {
			t.Errorf("status %d, body %q, error %v", got.status, got.body, got.err)
		}
	})
}

func TestN4StorageAcknowledgmentsAreNoAnswer(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	jetStream(t, broker) // something else has made the stream
	throttled := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = 8 })
	plainWorker := engine(t, broker.URL, nil)
	tr := start(t, broker.URL, nil)
	for _, e := range []*simengine.Engine{throttled, plainWorker} {
		for range 5 {
			unary := do(t.Context(), tr, e.Worker(), chat(4, false))
			if unary.status != 200 || unary.err != nil || !strings.HasPrefix(unary.body, `{"`) || strings.Contains(unary.body, wire.RequestStream) {
				t.Errorf("unary: status %d, body %q, error %v", unary.status, unary.body, unary.err)
			}
			stream := do(t.Context(), tr, e.Worker(), chat(4, true))
			if stream.status != 200 || stream.err != nil || !strings.HasPrefix(stream.body, "data: ") || !strings.HasSuffix(stream.body, "data: [DONE]\n\n") {
				t.Errorf("stream: status %d, body %q, error %v", stream.status, stream.body, stream.err)
			}
		}
	}
}

func TestN5RequestsOfCoreWorkersDoNotStayInTheStream(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	js := jetStream(t, broker)
	e := engine(t, broker.URL, nil)
	tr := start(t, broker.URL, nil)
	for range 3 {
		if got := do(t.Context(), tr, e.Worker(), chat(2, false)); got.status != 200 {
			t.Fatalf("status %d, error %v", got.status, got.err)
		}
	}
	testkit.Until(t, "an empty stream", func() bool { return messages(t, js) == 0 })
	// The same worker comes back with the throttle on: nothing runs again.
	port := e.Worker().Port
	e.Kill()
	again := engine(t, broker.URL, func(c *simengine.Config) { c.Port, c.NATS.MaxPending = port, 8 })
	if got := do(t.Context(), tr, again.Worker(), chat(2, false)); got.status != 200 {
		t.Fatalf("status %d, error %v", got.status, got.err)
	}
	if n := len(again.Receipts()); n != 1 {
		t.Errorf("%d requests ran, want the new one only", n)
	}
}

func TestN6AThrottleWithoutConsumersStillBoundsAndCreatesNoStream(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, func(c *Config) { c.MaxPending = 1 })
	first := w.async(t.Context(), tr, chat(1, false))
	m := w.request()
	if got := do(t.Context(), tr, w.worker, chat(1, false)); got.status != http.StatusTooManyRequests || got.head.Get("Retry-After") != "1" {
		t.Errorf("second: status %d, header %v, error %v; want 429 with Retry-After", got.status, got.head, got.err)
	}
	w.data(m.Reply, `{"ok":1}`)
	w.done(m.Reply, "200")
	if got := get(t, first); got.status != 200 {
		t.Errorf("first: status %d, error %v", got.status, got.err)
	}
	js, err := broker.Connect(t).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.StreamInfo(wire.RequestStream); !errors.Is(err, nats.ErrStreamNotFound) {
		t.Errorf("stream: %v; want none", err)
	}
}

func TestN7ABurstDoesNotGetPastThePendingCap(t *testing.T) {
	for _, maxPending := range []int{0, 100} { // of the worker: without and with JetStream
		broker := testfleet.StartNATS(t, nil)
		e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = maxPending })
		tr := start(t, broker.URL, func(c *Config) { c.MaxPending = 2 })
		req := chat(1, true)
		req.Header.Set(simengine.FaultHeader, "hang_head")
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan reply, 100)
		for range 100 {
			go func() { out <- do(ctx, tr, e.Worker(), req) }()
		}
		for range 98 {
			if got := get(t, out); got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "backlog") {
				t.Fatalf("worker's max pending %d: status %d, error %v; want 429", maxPending, got.status, got.err)
			}
		}
		testkit.Until(t, "two requests", func() bool { return len(e.Receipts()) == 2 })
		cancel()
		get(t, out)
		get(t, out)
		if n := len(e.Receipts()); n != 2 {
			t.Errorf("worker's max pending %d: %d requests reached it, want 2", maxPending, n)
		}
		testkit.Until(t, "room again", func() bool { return do(t.Context(), tr, e.Worker(), chat(1, false)).status == 200 })
	}
}

func TestN7TheBacklogOfOthersCounts(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = 100 })
	other := start(t, broker.URL, nil)
	tr := start(t, broker.URL, func(c *Config) { c.MaxPending = 2 })
	req := chat(1, true)
	req.Header.Set(simengine.FaultHeader, "hang_head")
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan reply, 2)
	for range 2 {
		go func() { out <- do(ctx, other, e.Worker(), req) }()
	}
	testkit.Until(t, "two requests", func() bool { return len(e.Receipts()) == 2 })
	if got := do(t.Context(), tr, e.Worker(), chat(1, false)); got.status != http.StatusTooManyRequests {
		t.Errorf("status %d, error %v; want 429", got.status, got.err)
	}
	cancel()
	get(t, out)
	get(t, out)
	testkit.Until(t, "room again", func() bool { return do(t.Context(), tr, e.Worker(), chat(1, false)).status == 200 })
}

func TestN7OneAtATimeIsNeverRefused(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = 100 })
	tr := start(t, broker.URL, func(c *Config) { c.MaxPending = 1 })
	for i := range 60 {
		if got := do(t.Context(), tr, e.Worker(), chat(1, i%2 == 0)); got.status != 200 || got.err != nil {
			t.Fatalf("request %d: status %d, error %v", i, got.status, got.err)
		}
	}
}

func TestN8AClientThatGoesAwayEndsTheGeneration(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	tr := start(t, broker.URL, nil)
	for _, tc := range []struct {
		name   string
		stream bool
		fault  string
		tokens int // read before the client goes; 0 goes before the head
	}{
		{"unary, before the answer", false, "", 0},
		{"stream, before the head", true, "hang_head", 0},
		{"stream, after the first token", true, "slow_token:50", 1},
		{"stream, in the middle", true, "slow_token:10", 20},
	} {
		for _, maxPending := range []int{0, 8} {
			e := engine(t, broker.URL, func(c *simengine.Config) {
				c.NATS.MaxPending = maxPending
				c.Time.DecodeStep = 10 * time.Millisecond
			})
			req := chat(2000, tc.stream)
			if tc.fault != "" {
				req.Header.Set(simengine.FaultHeader, tc.fault)
			}
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				resp, err := tr.Do(ctx, e.Worker(), req)
				if err != nil {
					return
				}
				defer resp.Body.Close()
				buf := make([]byte, 64)
				for range tc.tokens {
					if _, err := resp.Body.Read(buf); err != nil {
						return
					}
				}
			}()
			if tc.tokens == 0 {
				testkit.Until(t, "the request", func() bool { return len(e.Receipts()) == 1 })
				cancel()
			}
			<-left
			gone := time.Now()
			testkit.Until(t, "the abort", func() bool { r := e.Receipts(); return len(r) == 1 && r[0].Outcome == simengine.OutcomeAborted })
			if took := time.Since(gone); took > 2*time.Second {
				t.Errorf("%s, max pending %d: the abort took %s", tc.name, maxPending, took)
			}
			cancel()
			e.Kill()
		}
	}
}

func TestN9ABrokerThatIsDownDelaysNothing(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	broker.Stop(t)
	tr := begin(t, broker.URL, nil)
	begun := time.Now()
	got := do(t.Context(), tr, script0(), chat(1, true))
	if got.err != nil || got.status != http.StatusServiceUnavailable || got.head.Get("Retry-After") == "" {
		t.Errorf("status %d, header %v, error %v; want 503 with Retry-After, which is no fault of the worker", got.status, got.head, got.err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("took %s", took)
	}
	broker.Start(t)
	testkit.Until(t, "a connection", tr.Connected)
	w := script(t, broker)
	out := w.async(t.Context(), tr, chat(1, false))
	m := w.request()
	w.data(m.Reply, "{}")
	w.done(m.Reply, "200")
	if got := get(t, out); got.status != 200 {
		t.Errorf("with the broker up: status %d, error %v", got.status, got.err)
	}
	broker.Stop(t)
	testkit.Until(t, "the loss", func() bool { return !tr.Connected() })
	if got := do(t.Context(), tr, script0(), chat(1, true)); got.status != http.StatusServiceUnavailable {
		t.Errorf("with the broker down again: status %d, error %v", got.status, got.err)
	}
}

func TestN10ARequestRightAfterTheSubscriptionIsServed(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	tr := start(t, broker.URL, nil)
	for i := range 10 {
		e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = i % 2 })
		if got := do(t.Context(), tr, e.Worker(), chat(1, false)); got.status != 200 {
			t.Errorf("worker %d: status %d, error %v", i, got.status, got.err)
		}
		e.Kill()
	}
}

func TestN11ASilentEngineIsATimeoutWhoeverNoticesIt(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	for _, tc := range []struct {
		name           string
		router, worker time.Duration
	}{
		{"the router's timer first", 100 * time.Millisecond, time.Minute},
		{"the worker's timer first", time.Minute, 100 * time.Millisecond},
	} {
		e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.IdleTimeout = tc.worker })
		tr := start(t, broker.URL, func(c *Config) { c.IdleTimeout = tc.router })
		for _, stream := range []bool{true, false} {
			req := chat(1, stream)
			req.Header.Set(simengine.FaultHeader, "hang_head")
			if got := do(t.Context(), tr, e.Worker(), req); got.err != nil || got.status != http.StatusGatewayTimeout {
				t.Errorf("%s, stream %v: status %d, error %v; want 504", tc.name, stream, got.status, got.err)
			}
		}
		testkit.Until(t, "the aborts", func() bool {
			n := 0
			for _, r := range e.Receipts() {
				if r.Outcome == simengine.OutcomeAborted {
					n++
				}
			}
			return n == 2
		})
	}
}

func TestN12NATSReqIdleTimeoutCountsFromTheLastFrameAndCancels(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, func(c *Config) { c.IdleTimeout = 300 * time.Millisecond })
	out := w.async(t.Context(), tr, chat(9, true))
	m := w.request()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for range 6 { // twice the timeout in all
		w.data(m.Reply, "data: x\n\n")
		<-pace.C
	}
	got := get(t, out)
	if got.status != 200 || got.stage != forward.StageBody || !errors.Is(got.err, forward.ErrTruncated) || !errors.Is(got.err, errIdle) {
		t.Errorf("status %d, error %v; want a truncated stream", got.status, got.err)
	}
	if strings.Count(got.body, "data: x") != 6 {
		t.Errorf("body %q", got.body)
	}
	for range 3 {
		if inbox := w.canceled(); inbox != m.Reply {
			t.Errorf("canceled %s, want %s", inbox, m.Reply)
		}
	}
}

func TestN13WhatIsNoFrameIsIgnored(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	for _, tc := range []struct {
		name, status string
		body         string
		want         int
	}{
		{"a status that is a word", "fine", `{"id":1}`, 200},
		{"a status that is a word, and an error", "bad", `{"error":{"message":"x"}}`, 502},
		{"a status out of range", "99", `{"id":1}`, 200},
		{"no status", "", `{"id":1}`, 200},
		{"an interim status", "100", `{"id":1}`, 200},
		{"a real one", "404", `{"error":"x"}`, 404},
	} {
		out := w.async(t.Context(), tr, chat(1, false))
		m := w.request()
		w.say(m.Reply, "")
		w.say(m.Reply, `{"stream":"INFERA_REQUESTS", "seq":2}`)
		w.say(m.Reply, `{"type":"io.nats.jetstream.api.v1.pub_ack_response","error":{"code":503}}`)
		w.data(m.Reply, tc.body)
		w.say(m.Reply, "")
		w.done(m.Reply, tc.status)
		w.say(m.Reply, "")
		w.data(m.Reply, "late")
		w.done(m.Reply, "500")
		if got := get(t, out); got.status != tc.want || got.body != tc.body || got.err != nil {
			t.Errorf("%s: status %d, body %q, error %v; want %d", tc.name, got.status, got.body, got.err, tc.want)
		}
	}
	w.quiet()
}

func TestN14ALargeAnswerPassesInPieces(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.Time.DecodeStep = 0 })
	req := func() *forward.Request {
		r := chat(4, false)
		r.Header.Set(simengine.FaultHeader, "huge_line:3000000")
		r.Body = []byte(strings.Replace(string(r.Body), `"stream":false`, `"stream":true`, 1))
		return r
	}
	tr := start(t, broker.URL, nil)
	if got := do(t.Context(), tr, e.Worker(), req()); got.err != nil || got.status != 200 || len(got.body) < 3_000_000 {
		t.Errorf("status %d, %d bytes, error %v", got.status, len(got.body), got.err)
	}
	t.Run("and a worker that cannot is not to blame", func(t *testing.T) {
		w := script(t, broker)
		out := w.async(t.Context(), tr, chat(1, false))
		w.fails(w.request().Reply, "nats: maximum payload exceeded")
		if got := get(t, out); !errors.Is(got.err, forward.ErrBlameless) {
			t.Errorf("status %d, error %v", got.status, got.err)
		}
	})
	t.Run("a whole answer too", func(t *testing.T) {
		w := script(t, broker)
		out := w.async(t.Context(), tr, chat(1, false))
		m := w.request()
		if env, err := wire.DecodeEnvelope(m.Data); err != nil || !env.Stream {
			t.Fatalf("envelope %+v, %v; want one that asks for pieces", env, err)
		}
		part := strings.Repeat("x", 500_000)
		w.data(m.Reply, `{"text":"`)
		for range 6 {
			w.data(m.Reply, part)
		}
		w.data(m.Reply, `"}`)
		w.done(m.Reply, "200")
		if got := get(t, out); got.status != 200 || len(got.body) != 3_000_011 || got.head.Get("Content-Type") != "application/json" {
			t.Errorf("status %d, %d bytes, error %v", got.status, len(got.body), got.err)
		}
	})
}

func TestN17WorkerDrainingIsNotTheWorkersFault(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	for _, notice := range []string{"infera: worker draining", "request cancelled"} {
		out := w.async(t.Context(), tr, chat(1, true))
		w.fails(w.request().Reply, notice)
		got := get(t, out)
		if got.err != nil || got.status != http.StatusServiceUnavailable || got.head.Get("Retry-After") == "" {
			t.Errorf("%q before the first byte: status %d, header %v, error %v; want 503 with Retry-After", notice, got.status, got.head, got.err)
		}
		out = w.async(t.Context(), tr, chat(1, true))
		m := w.request()
		w.data(m.Reply, "data: a\n\n")
		w.fails(m.Reply, notice)
		got = get(t, out)
		if got.status != 200 || got.body != "data: a\n\n" || !errors.Is(got.err, forward.ErrTruncated) || !errors.Is(got.err, forward.ErrBlameless) {
			t.Errorf("%q in the stream: status %d, body %q, error %v; want truncated and blameless", notice, got.status, got.body, got.err)
		}
	}
	w.quiet()
}

func TestN17ADrainLetsRequestsFinishThenHandsThemBack(t *testing.T) {
	for _, maxPending := range []int{0, 8} {
		broker := testfleet.StartNATS(t, nil)
		tr := start(t, broker.URL, nil)
		e := engine(t, broker.URL, func(c *simengine.Config) {
			c.NATS.MaxPending = maxPending
			c.DrainTimeout = 300 * time.Millisecond
			c.Time.DecodeStep = time.Millisecond
		})
		hung := chat(1, true)
		hung.Header.Set(simengine.FaultHeader, "hang_head")
		short, long := make(chan reply, 1), make(chan reply, 1)
		go func() { long <- do(t.Context(), tr, e.Worker(), hung) }()
		go func() { short <- do(t.Context(), tr, e.Worker(), chat(50, true)) }()
		testkit.Until(t, "both requests", func() bool { return len(e.Receipts()) == 2 })
		if err := e.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := get(t, short); got.err != nil || !strings.HasSuffix(got.body, "[DONE]\n\n") {
			t.Errorf("max pending %d, short: status %d, error %v; want it whole", maxPending, got.status, got.err)
		}
		if got := get(t, long); got.err != nil || got.status != http.StatusServiceUnavailable {
			t.Errorf("max pending %d, hung: status %d, error %v; want 503", maxPending, got.status, got.err)
		}
	}
}

func TestN18ASlowClientCostsBoundedMemory(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, func(c *Config) { c.ReplyBuffer = 1 << 20 })
	var read sync.WaitGroup
	resps := make(chan *forward.Response, 1)
	read.Go(func() {
		resp, err := tr.Do(t.Context(), w.worker, chat(1, true))
		if err != nil {
			t.Error(err)
		}
		resps <- resp
	})
	m := w.request()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	event := "data: " + strings.Repeat("x", 100_000) + "\n\n"
	for range 400 { // 40 MB
		w.data(m.Reply, event)
	}
	if inbox := w.canceledAfter(resps, tr); inbox != m.Reply {
		t.Errorf("canceled %q, want %q", inbox, m.Reply)
	}
	read.Wait()
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// canceledAfter reads an answer late, and returns the inbox that was canceled.
func (s *scripted) canceledAfter(resps <-chan *forward.Response, tr *Transport) string {
	s.t.Helper()
	resp := <-resps
	if resp == nil {
		s.t.Fatal("no response")
	}
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
	if n := tr.buffered.Load(); n > 1<<20 {
		s.t.Errorf("%d bytes are kept", n)
	}
	n, err := readAll(resp)
	if !errors.Is(err, forward.ErrTruncated) || !errors.Is(err, errBehind) {
		s.t.Errorf("after %d bytes: %v; want it broken off", n, err)
	}
	return s.canceled()
}

func readAll(resp *forward.Response) (int, error) {
	defer resp.Body.Close()
	buf := make([]byte, 32<<10)
	total := 0
	for {
		n, err := resp.Body.Read(buf)
		total += n
		if err != nil {
			return total, err
		}
	}
}

// jetStream makes the request stream, as a worker or another router would.
func jetStream(t *testing.T, broker *testfleet.NATS) nats.JetStreamContext {
	t.Helper()
	js, err := broker.Connect(t).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{
		Name: wire.RequestStream, Subjects: []string{wire.RequestSubjects}, Retention: nats.WorkQueuePolicy,
		Storage: nats.MemoryStorage, Discard: nats.DiscardOld, MaxMsgs: 1_000_000,
	}); err != nil {
		t.Fatal(err)
	}
	return js
}

// messages returns how many messages the request stream holds.
func messages(t *testing.T, js nats.JetStreamContext) int {
	t.Helper()
	info, err := js.StreamInfo(wire.RequestStream)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.State.Msgs)
}
