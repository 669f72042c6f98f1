package forward_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/prompt"
)

func TestDirectModeObeysTheHeaders(t *testing.T) {
	for _, id := range []string{"w1", "w2", "w3"} {
		w := newWorld(t, []script{good, good, good}, direct)
		for range 5 {
			if got := w.do(call{body: chatBody, header: map[string]string{"x-worker-instance-id": id}}); got.status != 200 {
				t.Fatalf("status %d", got.status)
			}
		}
		want := []int{0, 0, 0}
		want[slices.Index([]string{"w1", "w2", "w3"}, id)] = 5
		if n := w.receipts(); !slices.Equal(n, want) {
			t.Errorf("to %s: deliveries %v", id, n)
		}
		w.settled(5)
		if n := w.count("infera_request_duration_seconds", "router=direct", "outcome=ok"); n != 5 {
			t.Errorf("%d counted as direct", n)
		}
	}
}

func TestDirectModeRefusesWhatTheFleetCannotDo(t *testing.T) {
	w := newWorld(t, []script{good, good}, direct)
	workers := w.fleet()
	workers[1].Status = fleet.Draining
	decode := *workers[0]
	decode.ID, decode.Role = "d1", fleet.Decode
	w.feed.Replace(append(workers, &decode))
	tests := []struct {
		name   string
		header map[string]string
		body   string
		status int
		code   string
	}{
		{"an unknown worker", map[string]string{"X-Worker-Instance-Id": "169.254.169.254:80"}, chatBody, 503, "stale_worker"},
		{"a draining worker", map[string]string{"X-Worker-Instance-Id": "w2"}, chatBody, 503, "stale_worker"},
		{"a worker of another model", map[string]string{"X-Worker-Instance-Id": "w1"}, strings.Replace(chatBody, `"m"`, `"n"`, 1), 503, "stale_worker"},
		{"a decode worker alone", map[string]string{"X-Worker-Instance-Id": "d1"}, chatBody, 503, "stale_worker"},
		{"a pair", map[string]string{"X-Worker-Instance-Id": "d1", "X-Prefill-Instance-Id": "p1"}, chatBody, 501, "pd_not_supported"},
	}
	for _, tc := range tests {
		got := w.do(call{body: tc.body, header: tc.header})
		e := errorOf(t, got)
		if got.status != tc.status || e.Code != tc.code {
			t.Errorf("%s: status %d %+v", tc.name, got.status, e)
		}
		if tc.code == "stale_worker" && !strings.Contains(e.Message, "stale") {
			t.Errorf("%s: message %q", tc.name, e.Message)
		}
	}
	if n := w.receipts(); !slices.Equal(n, []int{0, 0}) {
		t.Errorf("deliveries %v", n)
	}
	w.settled(len(tests))
}

func TestRoutingHeadersMeanNothingInAutoMode(t *testing.T) {
	w := newWorld(t, []script{good, good})
	for range 6 {
		got := w.do(call{body: chatBody, header: map[string]string{
			"X-Worker-Instance-Id": "nobody", "X-Prefill-Instance-Id": "nobody", "X-Data-Parallel-Rank": "7",
		}})
		if got.status != 200 {
			t.Fatalf("status %d", got.status)
		}
	}
	for _, e := range w.engines {
		for _, r := range e.got() {
			for _, k := range []string{"X-Worker-Instance-Id", "X-Prefill-Instance-Id", "X-Data-Parallel-Rank"} {
				if v := r.head.Header.Get(k); v != "" {
					t.Errorf("%s: %q was passed on", k, v)
				}
			}
		}
	}
}

func TestTheRankOfAWorkerIsPassedToIt(t *testing.T) {
	ranks := func(w *world) {
		workers := w.fleet()
		workers[0].DPSize = 4
		w.feed.Replace(workers)
	}
	w := newWorld(t, []script{good}, direct)
	ranks(w)
	for sent, want := range map[string]string{"3": "3", "0": "0"} {
		w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1", "x-data-parallel-rank": sent}})
		got := w.engines[0].got()
		if rank := got[len(got)-1].head.Header.Get("X-Data-Parallel-Rank"); rank != want {
			t.Errorf("rank %s arrived as %q", sent, rank)
		}
	}
	for _, sent := range []string{"4", "-1", "x"} { // none of its ranks: the picker's counts
		w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1", "x-data-parallel-rank": sent}})
		got := w.engines[0].got()
		if rank := got[len(got)-1].head.Header.Get("X-Data-Parallel-Rank"); rank < "0" || rank > "3" || len(rank) != 1 {
			t.Errorf("rank %s arrived as %q", sent, rank)
		}
	}
	w = newWorld(t, []script{good})
	ranks(w)
	w.do(call{body: chatBody})
	if rank := w.engines[0].got()[0].head.Header.Get("X-Data-Parallel-Rank"); rank < "0" || rank > "3" || len(rank) != 1 {
		t.Errorf("picked rank arrived as %q", rank)
	}
}

func TestDirectModeMakesThePreparerOnlyForRequestsWithoutHeaders(t *testing.T) {
	var made atomic.Int32
	lazy := func(_ *forward.Config, d *forward.Deps) {
		inner := d.Preparer
		d.Preparer = func() *prompt.Preparer {
			made.Add(1)
			return inner()
		}
	}
	w := newWorld(t, []script{raw(jsonReply(500, `{}`)), good}, direct, lazy)
	w.do(call{body: chatBody, header: toW1}) // fails over to w2
	w.do(call{path: "/tokenize", body: `{}`})
	if n := made.Load(); n != 0 {
		t.Errorf("a preparer was asked for %d times by requests that need none", n)
	}
	if got := w.do(call{body: chatBody}); got.status != 200 {
		t.Errorf("without headers: status %d", got.status)
	}
	if made.Load() == 0 {
		t.Error("a request without headers was not scored")
	}
}

func TestWithoutAPreparerPicksGoByLoad(t *testing.T) {
	for name, none := range map[string]option{
		"no function":  func(_ *forward.Config, d *forward.Deps) { d.Preparer = nil },
		"nil preparer": func(_ *forward.Config, d *forward.Deps) { d.Preparer = func() *prompt.Preparer { return nil } },
	} {
		w := newWorld(t, []script{good}, none)
		if got := w.do(call{body: chatBody}); got.status != 200 {
			t.Errorf("%s: status %d", name, got.status)
		}
	}
}

func TestAWorkerThatTheGatewayKnewFirstIsWaitedFor(t *testing.T) {
	w := newWorld(t, []script{good, good}, direct)
	joining := *w.fleet()[1]
	joining.ID = "w9"
	go w.feed.Put(&joining) // the request comes before or behind it: both must do
	got := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w9"}})
	if n := w.receipts(); got.status != 200 || !slices.Equal(n, []int{0, 1}) {
		t.Errorf("status %d, deliveries %v", got.status, n)
	}
}

func TestAWorkerThatHasLeftIsReplacedUnlessFailoverIsOff(t *testing.T) {
	for _, tc := range []struct {
		name     string
		failover bool
		status   int
		receipts []int
	}{{"failover", true, 200, []int{0, 1}}, {"no failover", false, 503, []int{0, 0}}} {
		w := newWorld(t, []script{good, good}, direct, change(func(c *forward.Config) { c.DirectFailover = tc.failover }))
		w.feed.Delete("w1")
		got := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1"}})
		if n := w.receipts(); got.status != tc.status || !slices.Equal(n, tc.receipts) {
			t.Errorf("%s: status %d, deliveries %v", tc.name, got.status, n)
		}
	}
}
