package forward_test

import (
	"net/url"
	"slices"
	"testing"

	"pointsman/forward"
)

func TestAForwarderThatTheGatewayFallsBackToServesItsOwnWorker(t *testing.T) {
	for _, tc := range []struct {
		name     string
		own      string // --own-worker-id
		at       int    // index of the worker whose endpoint is this forwarder's, -1 for none
		fallback string
		want     []int
		local    int
	}{
		{"its own is behind the named one", "", 1, "w2", []int{0, 1, 0}, 1},
		{"its own is among several", "", 2, "w2, w3", []int{0, 0, 1}, 1},
		{"it was told which is its own", "w3", -1, "w2,w3", []int{0, 0, 1}, 1},
		{"the named one is its own", "", 0, "w2", []int{1, 0, 0}, 0},
		{"its own is not in the list", "", 2, "w2", []int{1, 0, 0}, 0},
		{"it cannot tell its own", "", -1, "w2", []int{1, 0, 0}, 0},
		{"there is no list", "", 1, "", []int{1, 0, 0}, 0},
		{"the list names nobody known", "", 1, "ghost", []int{1, 0, 0}, 0},
	} {
		w := newWorld(t, []script{good, good, good}, direct, change(func(c *forward.Config) { c.OwnWorker = tc.own }))
		here, err := url.Parse(w.url)
		fatal(t, err)
		workers := w.fleet()
		for i, worker := range workers {
			if worker.Endpoint = "10.9.9.9:8000"; i == tc.at {
				worker.Endpoint = here.Host
			}
		}
		w.feed.Replace(workers)
		got := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1", "X-Worker-Fallback-Ids": tc.fallback}})
		if got.status != 200 {
			t.Fatalf("%s: status %d", tc.name, got.status)
		}
		if n := w.receipts(); !slices.Equal(n, tc.want) {
			t.Errorf("%s: deliveries %v, want %v", tc.name, n, tc.want)
		}
		if n := w.count("infera_router_direct_fallback_local_total"); n != tc.local {
			t.Errorf("%s: %d counted as local, want %d", tc.name, n, tc.local)
		}
		w.settled(1)
	}
}

func TestAnUnknownWorkerIsRefusedUnlessThePolicyMayPick(t *testing.T) {
	for policy, want := range map[forward.DirectFallback]int{forward.DirectRefuse: 503, forward.DirectPolicy: 200} {
		w := newWorld(t, []script{good}, direct, change(func(c *forward.Config) { c.DirectFallback = policy }))
		if got := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "ghost"}}); got.status != want {
			t.Errorf("%s: status %d, want %d", policy, got.status, want)
		}
		w.settled(1)
	}
}
