package nats

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

func TestBothKindsOfWorkerServeTheOnePublishForm(t *testing.T) {
	for name, broker := range map[string]func(testing.TB) *testfleet.NATS{
		"this module's broker": func(tb testing.TB) *testfleet.NATS { tb.Helper(); return testfleet.StartNATS(tb, nil) },
		"the system's broker":  testfleet.StartOldNATS,
	} {
		t.Run(name, func(t *testing.T) {
			b := broker(t)
			for _, maxPending := range []int{0, 8} {
				for _, capped := range []int{0, 8} {
					serveAll(t, b.URL, maxPending, capped)
				}
			}
		})
	}
}

// serveAll sends each kind of request to a worker and through a transport with
// the given caps.
func serveAll(t *testing.T, url string, worker, router int) {
	t.Helper()
	e := engine(t, url, func(c *simengine.Config) { c.NATS.MaxPending, c.NATS.Number = worker, router > 0 })
	defer e.Kill()
	for _, whole := range []bool{false, true} {
		tr := start(t, url, func(c *Config) { c.MaxPending, c.WholeReplies = router, whole })
		for _, stream := range []bool{false, true} {
			got := do(t.Context(), tr, e.Worker(), chat(5, stream))
			end := "}"
			if stream {
				end = "data: [DONE]\n\n"
			}
			if got.err != nil || got.status != 200 || !strings.HasSuffix(got.body, end) {
				t.Errorf("worker %d, router %d, whole %v, stream %v: status %d, %q, %v", worker, router, whole, stream, got.status, got.body, got.err)
			}
		}
		if n := testutil.ToFloat64(tr.metrics.cancels); n != 0 {
			t.Errorf("worker %d, router %d: %v cancelations after success", worker, router, n)
		}
	}
	if r := e.Receipts(); len(r) != 4 || r[0].RequestID != "r1" || r[0].Headers["accept-encoding"] != "identity" {
		t.Errorf("worker %d, router %d: receipts %+v", worker, router, r)
	}
}

func TestABrokerRestartEndsEveryStreamAsTruncated(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.Time.DecodeStep = 5 * time.Millisecond })
	tr := start(t, broker.URL, nil)
	const streams = 50
	begun, out := make(chan struct{}, streams), make(chan reply, streams)
	for range streams {
		go func() {
			resp, err := tr.Do(t.Context(), e.Worker(), chat(10_000, true))
			begun <- struct{}{}
			if err != nil {
				out <- reply{err: err}
				return
			}
			_, err = readAll(resp)
			out <- reply{status: resp.Status, err: err}
		}()
	}
	for range streams {
		<-begun
	}
	at := time.Now()
	broker.Restart(t)
	for range streams {
		got := get(t, out)
		if got.status != 200 || !errors.Is(got.err, forward.ErrTruncated) || !errors.Is(got.err, forward.ErrBlameless) {
			t.Errorf("status %d, error %v; want truncated, and not the worker's fault", got.status, got.err)
		}
	}
	testkit.Until(t, "a connection", tr.Connected)
	// The generations that nobody reads end, too.
	testkit.Until(t, "the aborts", func() bool {
		n := 0
		for _, r := range e.Receipts() {
			if r.Outcome == simengine.OutcomeAborted {
				n++
			}
		}
		return n == streams
	})
	t.Logf("everything had ended after %s", time.Since(at))
	testkit.Until(t, "the worker's return", func() bool { return do(t.Context(), tr, e.Worker(), chat(3, true)).status == 200 })
}

func TestARequestThatWaitsWhenTheBrokerGoesIsNotTheWorkersFault(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	out := w.async(t.Context(), tr, chat(1, false))
	w.request()
	broker.Stop(t)
	if got := get(t, out); got.stage != forward.StageDispatched || !errors.Is(got.err, forward.ErrBlameless) {
		t.Errorf("status %d, stage %s, error %v", got.status, got.stage, got.err)
	}
}

func TestFramesThatAreMissingOrForeignBreakTheAnswer(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	for _, tc := range []struct {
		name string
		say  func(inbox string)
		want error
	}{
		{"a hole", func(in string) {
			w.say(in, "data: 0\n\n", "rs-type", "data", "rs-seq", "0")
			w.say(in, "data: 2\n\n", "rs-type", "data", "rs-seq", "2")
		}, errSequence},
		{"a double", func(in string) {
			w.say(in, "data: 0\n\n", "rs-type", "data", "rs-seq", "0")
			w.say(in, "data: 0\n\n", "rs-type", "data", "rs-seq", "0")
		}, errSequence},
		{"an unknown type", func(in string) {
			w.data(in, "data: 0\n\n")
			w.say(in, "x", "rs-type", "head")
		}, errStray},
		{"no type", func(in string) {
			w.data(in, "data: 0\n\n")
			w.say(in, "x")
		}, errStray},
		{"a bad end", func(in string) {
			w.data(in, "data: 0\n\n")
			w.done(in, "500")
		}, forward.ErrTruncated},
	} {
		out := w.async(t.Context(), tr, chat(1, true))
		m := w.request()
		tc.say(m.Reply)
		got := get(t, out)
		if got.status != 200 || got.body != "data: 0\n\n" || !errors.Is(got.err, forward.ErrTruncated) || !errors.Is(got.err, tc.want) {
			t.Errorf("%s: status %d, body %q, error %v; want %v", tc.name, got.status, got.body, got.err, tc.want)
		}
	}
}

func TestADropInTheClientLibraryBreaksWhatRuns(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, nil)
	out := w.async(t.Context(), tr, chat(1, true))
	m := w.request()
	w.data(m.Reply, "data: 0\n\n")
	l := tr.link.Load()
	testkit.Until(t, "the first frame", func() bool {
		x := l.all()[0]
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.frames == 1
	})
	if err := l.sub.SetPendingLimits(1, 1); err != nil { // everything but the first that waits is dropped
		t.Fatal(err)
	}
	for range 2000 {
		w.data(m.Reply, "data: "+strings.Repeat("x", 100)+"\n\n")
	}
	w.done(m.Reply, "200")
	if got := get(t, out); !errors.Is(got.err, errGap) || !errors.Is(got.err, forward.ErrTruncated) {
		t.Errorf("status %d, %d bytes, error %v; want %v in a cut body", got.status, len(got.body), got.err, errGap)
	}
}

func TestNATSReqMaxDurationEndsTheRequest(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	w := script(t, broker)
	tr := start(t, broker.URL, func(c *Config) { c.MaxDuration = 100 * time.Millisecond })
	out := w.async(t.Context(), tr, chat(1, false))
	m := w.request()
	if got := get(t, out); got.status != http.StatusGatewayTimeout {
		t.Errorf("status %d, error %v; want 504", got.status, got.err)
	}
	if inbox := w.canceled(); inbox != m.Reply {
		t.Errorf("canceled %s", inbox)
	}
	out = w.async(t.Context(), tr, chat(1, true))
	w.data(w.request().Reply, "data: 0\n\n")
	if got := get(t, out); got.status != 200 || !errors.Is(got.err, errTotal) || !errors.Is(got.err, forward.ErrTruncated) {
		t.Errorf("status %d, error %v", got.status, got.err)
	}
}

func TestWhatNoEnvelopeCanHoldGoesAnotherWay(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, nil)
	alone := start(t, broker.URL, nil)
	both := start(t, broker.URL, func(c *Config) { c.Fallback = overHTTP{} })
	get := &forward.Request{Method: http.MethodGet, Target: "/v1/models", Header: http.Header{}}
	zipped := chat(1, false)
	zipped.Header.Set("Content-Encoding", "gzip")
	for _, tc := range []struct {
		name        string
		req         *forward.Request
		alone, both int
	}{
		{"GET", get, 405, 200},
		{"a body that is no JSON", post("--boundary"), 415, 400},
		{"an encoded body", zipped, 415, 200},
	} {
		if got := do(t.Context(), alone, e.Worker(), tc.req); got.status != tc.alone {
			t.Errorf("%s alone: status %d, error %v; want %d", tc.name, got.status, got.err, tc.alone)
		}
		if got := do(t.Context(), both, e.Worker(), tc.req); got.status != tc.both {
			t.Errorf("%s with HTTP: status %d, error %v; want %d", tc.name, got.status, got.err, tc.both)
		}
	}
}

func TestACancelationReachesAWorkerThroughABrokerRestart(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, nil)
	tr := start(t, broker.URL, nil)
	req := chat(1, false)
	req.Header.Set(simengine.FaultHeader, "hang_head")
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan reply, 1)
	go func() { out <- do(ctx, tr, e.Worker(), req) }()
	testkit.Until(t, "the request", func() bool { return len(e.Receipts()) == 1 })
	broker.Stop(t)
	cancel()
	get(t, out)
	broker.Start(t)
	testkit.Until(t, "the abort", func() bool { return e.Receipts()[0].Outcome == simengine.OutcomeAborted })
}

func TestAForbiddenRequestFailsAtOnce(t *testing.T) {
	broker := testfleet.StartNATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"infera.req.>"}},
		}}}
	})
	tr := start(t, strings.Replace(broker.URL, "nats://", "nats://u:p@", 1), nil)
	if got := do(t.Context(), tr, script0(), chat(1, true)); got.stage != forward.StageDial || !errors.Is(got.err, forward.ErrBlameless) {
		t.Errorf("status %d, error %v", got.status, got.err)
	}
}

func TestNumbersAreExported(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, nil)
	tr := start(t, broker.URL, nil)
	reg := prometheus.NewRegistry()
	if err := tr.Register(reg); err != nil {
		t.Fatal(err)
	}
	do(t.Context(), tr, e.Worker(), chat(1, true))
	do(t.Context(), tr, script0(), chat(1, true))
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP pointsman_nats_connected Whether there is a connection to the request broker.
# TYPE pointsman_nats_connected gauge
pointsman_nats_connected 1
# HELP pointsman_nats_requests_total Attempts over the request broker by how their head came: answered, failed, timeout, no_responders, no_broker, pending_cap, not_carried or fallback.
# TYPE pointsman_nats_requests_total counter
pointsman_nats_requests_total{outcome="answered"} 1
pointsman_nats_requests_total{outcome="no_responders"} 1
`), "pointsman_nats_connected", "pointsman_nats_requests_total"); err != nil {
		t.Error(err)
	}
}

// TestAWorkerWithAThrottleComesBackBehindABrokerRestart: its stream and consumer
// were in the broker's memory.
func TestAWorkerWithAThrottleComesBackBehindABrokerRestart(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, func(c *simengine.Config) { c.NATS.MaxPending = 8 })
	tr := start(t, broker.URL, nil)
	broker.Restart(t)
	testkit.Until(t, "an answer of the worker", func() bool {
		got := do(t.Context(), tr, e.Worker(), chat(3, true))
		return got.err == nil && got.status == http.StatusOK && strings.HasSuffix(got.body, "data: [DONE]\n\n")
	})
}
