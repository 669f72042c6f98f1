package forward_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/forward"
)

func TestMetricsAreWellNamedAndRegisteredOnce(t *testing.T) {
	w := newWorld(t, []script{raw(jsonReply(500, `{}`)), good}, direct)
	w.do(call{body: chatBody, header: toW1})
	w.do(call{body: streamBody})
	w.do(call{body: "{"})
	w.settled(3)
	problems, err := testutil.GatherAndLint(w.reg)
	fatal(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, name := range []string{
		"infera_request_duration_seconds", "infera_request_inflight",
		"pointsman_forward_attempts_total", "infera_router_retries_total", "pointsman_forward_ttft_seconds",
		"pointsman_forward_client_disconnects_total", "pointsman_forward_request_bytes_total", "pointsman_forward_response_bytes_total",
	} {
		if w.series(name) == nil {
			t.Errorf("no series of %s", name)
		}
	}
	if err := w.server.Register(w.reg); err == nil {
		t.Error("registered twice")
	}
	if err := w.server.Register(prometheus.NewRegistry()); err != nil {
		t.Error(err)
	}
}

func TestBytesOfBodiesAreCounted(t *testing.T) {
	w := newWorld(t, []script{good})
	got := w.do(call{body: streamBody})
	w.settled(1)
	if in := w.count("pointsman_forward_request_bytes_total"); in != len(streamBody) {
		t.Errorf("%d bytes in, want %d", in, len(streamBody))
	}
	if out := w.count("pointsman_forward_response_bytes_total"); out != len(got.body) {
		t.Errorf("%d bytes out, want %d", out, len(got.body))
	}
}

func TestTheSumOfOutcomesIsTheOfferedLoad(t *testing.T) {
	calls := map[string]struct {
		script script
		call   call
	}{
		"ok":        {script: good, call: call{body: chatBody}},
		"4xx":       {script: raw(jsonReply(422, `{}`)), call: call{body: chatBody}},
		"5xx":       {script: raw(jsonReply(500, `{}`)), call: call{body: chatBody}},
		"error":     {script: rawClose(""), call: call{body: chatBody}},
		"truncated": {script: rawClose(sseOpen(tok0)), call: call{body: streamBody}},
	}
	for outcome, tc := range calls {
		w := newWorld(t, []script{tc.script}, change(func(c *forward.Config) { c.MaxRetries = 0 }))
		for range 3 {
			w.do(tc.call)
		}
		w.settled(3)
		if n := w.count("infera_request_duration_seconds", "outcome="+outcome); n != 3 {
			t.Errorf("%d of 3 requests counted as %s", n, outcome)
		}
		ends := map[string]string{"ok": "ok", "4xx": "client_error", "5xx": "upstream_error", "error": "upstream_error", "truncated": "truncated"}
		if n, all := w.count("infera_router_requests_total", "outcome="+ends[outcome]), w.count("infera_router_requests_total"); n != 3 || all != 3 {
			t.Errorf("%s: %d of %d requests ended as %s, want 3 of 3", outcome, n, all, ends[outcome])
		}
		if n := w.count("pointsman_forward_attempts_total"); n != 3 {
			t.Errorf("%s: %d attempts, want 3", outcome, n)
		}
	}
}
