package forward_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/internal/testkit"
	"pointsman/picker"
)

// fullPairs is a fleet of pairs in which a leg fails and the only worker that could
// take its place is at its cap: a request that came before runs there.
type fullPairs struct {
	*pairWorld
	gate  *admission.Gate
	busy  *busyEngine // who is at its cap
	first chan reply  // of the request that runs there
}

// newFullPairs lets decode legs to d1 be refused, or prefill legs to p1 be cut, with
// the other worker of the kind at its cap of one.
func newFullPairs(t *testing.T, role fleet.Role, change func(*admission.Config)) *fullPairs {
	t.Helper()
	f := &fullPairs{busy: &busyEngine{goOn: make(chan struct{})}, first: make(chan reply, 1)}
	held := func(then script) script {
		return func(c net.Conn, r receipt) bool {
			f.busy.open.Add(1)
			<-f.busy.goOn
			f.busy.open.Add(-1)
			return then(c, r)
		}
	}
	ready := handoff(nixlHandoff)
	prefill, decode := []script{ready}, []script{nil, held(good)}
	caps := picker.Caps{Decode: 1}
	if role == fleet.Prefill {
		prefill, decode = []script{rawClose(""), held(ready)}, []script{good}
		caps = picker.Caps{Prefill: 1}
	}
	f.pairWorld = newPairWorld(t, "vllm-nixl", prefill, decode, direct, gated(&f.gate, change), capped(true, caps))
	names := map[string]string{"X-Prefill-Instance-Id": "p1", "X-Worker-Instance-Id": "d2"}
	if role == fleet.Prefill {
		names = map[string]string{"X-Prefill-Instance-Id": "p2", "X-Worker-Instance-Id": "d1"}
	}
	go func() { f.first <- f.do(call{body: chatBody, header: names}) }()
	testkit.Until(t, "one is at its cap", func() bool { return f.busy.open.Load() == 1 })
	return f
}

// toFailing names the pair of which one leg fails.
func toFailing() map[string]string {
	return map[string]string{"X-Prefill-Instance-Id": "p1", "X-Worker-Instance-Id": "d1"}
}

func (f *fullPairs) waits() {
	f.t.Helper()
	testkit.Until(f.t, "the second waits", func() bool { return f.gate.Snapshot().Queued == 1 })
}

// over lets the first request end and checks that nothing is held.
func (f *fullPairs) over(requests int) {
	f.t.Helper()
	close(f.busy.goOn)
	if r := <-f.first; r.status != http.StatusOK {
		f.t.Errorf("the request that ran: %d %s", r.status, r.body)
	}
	f.settled(requests)
	if s := f.gate.Snapshot(); s.Inflight != 0 || s.Queued != 0 {
		f.t.Errorf("left over %+v", s)
	}
	for _, role := range bothRoles() {
		if n, _ := f.picker.InFlight(role); n != 0 {
			f.t.Errorf("%d in flight on %v workers", n, role)
		}
	}
}

func patient(c *admission.Config) { c.QueueDepth, c.QueueWait = 5, time.Minute }

func bothRoles() []fleet.Role { return []fleet.Role{fleet.Prefill, fleet.Decode} }

// contract 2C: role legs may wait within the request's own queue budget, the
// alternate for one that failed included.
func TestALegThatNeedsAnotherWorkerWaitsForRoom(t *testing.T) {
	for _, role := range bothRoles() {
		t.Run(role.String(), func(t *testing.T) {
			f := newFullPairs(t, role, patient)
			second := make(chan reply, 1)
			go func() { second <- f.do(call{body: streamBody, header: toFailing()}) }()
			f.waits()
			// What it has left is free for others meanwhile.
			if n, _ := f.picker.InFlight(role); n != 1 {
				t.Errorf("%d in flight on %v workers while one runs and one waits", n, role)
			}
			f.over(2)
			got := <-second
			want := map[fleet.Role]string{fleet.Prefill: "p1@p1;reset,p2@p2;ok,d1@d1;ok", fleet.Decode: "p1@p1;ok,d1@d1;refused,d2@d1;refused,d3@d2;ok"}[role]
			if receipt := got.header.Get("X-Infera-Attempts"); got.status != http.StatusOK || got.body != goodBody || receipt != want {
				t.Errorf("%d %s with the receipt %q, want %q", got.status, got.body, receipt, want)
			}
			legs := f.decode[1%len(f.decode)]
			if role == fleet.Prefill {
				legs = f.prefill[1]
			}
			if n := len(legs.got()); n != 2 {
				t.Errorf("%d legs at the worker that was full, want 2", n)
			}
		})
	}
}

func TestAClientThatLeavesWhileALegWaitsForRoomLeavesNothingBehind(t *testing.T) {
	for _, role := range bothRoles() {
		t.Run(role.String(), func(t *testing.T) {
			f := newFullPairs(t, role, patient)
			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := f.client.Do(f.request(ctx, call{body: streamBody, header: toFailing()})); err == nil {
					resp.Body.Close()
				}
			}()
			f.waits()
			leave()
			<-gone
			testkit.Until(t, "nobody waits", func() bool { return f.gate.Snapshot().Queued == 0 })
			f.over(2)
			if n := f.count("infera_router_requests_total", "outcome=client_cancel"); n != 1 {
				t.Errorf("%d requests counted as left by their client, want 1", n)
			}
			if d, p := count(f.decode), count(f.prefill); role == fleet.Decode && d[1] != 1 || role == fleet.Prefill && p[1] != 1 {
				t.Errorf("decode legs %v, prefill legs %v: the waiter was sent on", d, p)
			}
		})
	}
}

// queuedFor returns how long a refusal says that its request has waited.
func queuedFor(t *testing.T, body string) time.Duration {
	t.Helper()
	_, rest, _ := strings.Cut(body, `"queued_ms":`)
	var ms int64
	if _, err := fmt.Sscan(rest, &ms); err != nil {
		t.Errorf("no time in the queue in %s", body)
	}
	return time.Duration(ms) * time.Millisecond
}

// The wait ends in the queue's own code. That the request was not run is said only
// where it is true.
func TestALegWaitsForRoomNoLongerThanTheQueueAllows(t *testing.T) {
	for _, role := range bothRoles() {
		t.Run(role.String(), func(t *testing.T) {
			f := newFullPairs(t, role, func(c *admission.Config) { c.QueueDepth, c.QueueWait = 5, 60*time.Millisecond })
			got := f.do(call{body: streamBody, header: toFailing()})
			if got.status != http.StatusGatewayTimeout || !strings.Contains(got.body, admission.CodeQueueTime) ||
				queuedFor(t, got.body) < 60*time.Millisecond || got.header.Get("Retry-After") == "" {
				t.Errorf("%d, headers %v, body %s", got.status, got.header, got.body)
			}
			ran := role == fleet.Prefill // a leg that was cut may have run
			if told := got.header.Get("X-Should-Retry"); (told == "false") != ran || strings.Contains(got.body, "was not run") == ran {
				t.Errorf("x-should-retry %q, body %s", told, got.body)
			}
			f.over(2)
			if n := f.count("infera_router_requests_total", "outcome=queue_timeout"); n != 1 {
				t.Errorf("%d requests counted as queue_timeout, want 1", n)
			}
		})
	}
}

// The limit of the whole request counts in the queue too, and is told as what it is.
func TestALimitOfTheRequestEndsALegsWaitForRoom(t *testing.T) {
	for _, role := range bothRoles() {
		t.Run(role.String(), func(t *testing.T) {
			f := newFullPairs(t, role, patient)
			header := toFailing()
			header["X-Request-Timeout-Ms"] = "300"
			got := f.do(call{body: streamBody, header: header})
			if got.status != http.StatusGatewayTimeout || !strings.Contains(got.body, "client_timeout_exceeded") {
				t.Errorf("%d %s", got.status, got.body)
			}
			f.over(2)
		})
	}
}

func TestWithoutAQueueALegThatFindsNoRoomFailsWithItsOwnError(t *testing.T) {
	codes := map[fleet.Role]string{fleet.Prefill: "upstream_reset", fleet.Decode: "decode_connect_failed"}
	for _, role := range bothRoles() {
		t.Run(role.String(), func(t *testing.T) {
			f := newFullPairs(t, role, func(c *admission.Config) { c.QueueDepth = 0 })
			got := f.do(call{body: streamBody, header: toFailing()})
			if got.status != http.StatusBadGateway || !strings.Contains(got.body, codes[role]) {
				t.Errorf("%d %s, want %s", got.status, got.body, codes[role])
			}
			f.over(2)
		})
	}
}

// Prefill legs go to the engine, not to a forwarder beside it: who sends them holds
// them to the cap (contract 2, conventions).
func TestFcPrefillMaxInflightBoundsTheLegsThatAForwarderSends(t *testing.T) {
	f := newFullPairs(t, fleet.Prefill, patient)
	second := make(chan reply, 1)
	go func() {
		second <- f.do(call{body: chatBody, header: map[string]string{"X-Prefill-Instance-Id": "p2", "X-Worker-Instance-Id": "d1"}})
	}()
	f.waits()
	if n := len(f.prefill[1].got()); n != 1 {
		t.Errorf("%d prefill legs at a worker whose cap is 1", n)
	}
	f.over(2)
	if r := <-second; r.status != http.StatusOK {
		t.Errorf("%d %s", r.status, r.body)
	}
}
