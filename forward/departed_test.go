package forward_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/internal/testkit"
)

// waiting answers when it is told to, and says when it has been asked.
type waiting struct{ asked, goOn chan struct{} }

func newWaiting() *waiting {
	return &waiting{asked: make(chan struct{}, 10), goOn: make(chan struct{})}
}

func (h *waiting) then(before string, s script) script {
	return func(c net.Conn, r receipt) bool {
		_, _ = io.WriteString(c, before)
		h.asked <- struct{}{}
		select {
		case <-h.goOn:
			return s(c, r)
		case <-time.After(15 * time.Second):
			return false
		}
	}
}

// Dynamo 8182, in one process: a worker takes a request and never answers; that it
// leaves the fleet is all there is to see of it.
func TestAWorkerThatLeavesTheFleetEndsWhatWaitsForItsFirstByte(t *testing.T) {
	for name, said := range map[string]string{"nothing said": "", "the head and a role": sseOpen(role)} {
		h := newWaiting()
		w := newWorld(t, []script{h.then(said, good), good}, direct)
		got := make(chan reply, 1)
		go func() { got <- w.do(call{body: streamBody, header: toW1}) }()
		<-h.asked
		left := time.Now()
		w.feed.Delete("w1")
		r := <-got
		if r.status != 200 || r.body != goodBody || r.header.Get("X-Worker-Instance-Id") != "w2" || time.Since(left) > time.Second {
			t.Errorf("%s: %d %q after %v", name, r.status, r.body, time.Since(left))
		}
		close(h.goOn)
		w.settled(1)
		if n := w.count("pointsman_forward_departed_attempts_total"); n != 1 {
			t.Errorf("%s: %d counted", name, n)
		}
	}
}

func TestWhatAWorkerThatLeavesIsLeftToFinish(t *testing.T) {
	rest := func(text string) script {
		return func(c net.Conn, _ receipt) bool { _, err := io.WriteString(c, text); return err == nil }
	}
	drain := func(w *world) {
		workers := w.fleet()
		workers[0].Status = fleet.Draining
		w.feed.Replace(workers)
		testkit.Until(w.t, "the drain is seen", func() bool { return w.store.Snapshot().Worker("w1").Status == fleet.Draining })
		testkit.Pass(20*time.Millisecond, "the watcher takes the two changes one by one")
	}
	tests := []struct {
		name    string
		said    string
		scripts int
		before  func(*world)
		after   script
	}{
		{"a worker that was seen to drain", "", 2, drain, good},
		{"a stream that has begun", sseOpen(role, tok0), 2, nil, rest(chunk(tok1) + chunk(stop) + chunk(done) + "0\r\n\r\n")},
		{"a worker that nobody can replace", "", 1, nil, good},
	}
	for _, tc := range tests {
		h := newWaiting()
		w := newWorld(t, []script{h.then(tc.said, tc.after), good}[:tc.scripts], direct)
		got := make(chan reply, 1)
		go func() { got <- w.do(call{body: streamBody, header: toW1}) }()
		<-h.asked
		if tc.before != nil {
			tc.before(w)
		} else {
			testkit.Pass(20*time.Millisecond, "what was said is on its way")
		}
		w.feed.Delete("w1")
		select {
		case r := <-got:
			t.Errorf("%s: ended with %d %q", tc.name, r.status, r.body)
			close(h.goOn)
			continue
		case <-time.After(100 * time.Millisecond):
		}
		close(h.goOn)
		if r := <-got; r.status != 200 || r.body != goodBody || r.header.Get("X-Worker-Instance-Id") != "w1" {
			t.Errorf("%s: %d %q", tc.name, r.status, r.body)
		}
		w.settled(1)
	}
}

func TestAPrefillWorkerThatLeavesTheFleetIsReplaced(t *testing.T) {
	for _, protocol := range []string{"sglang-bootstrap", "vllm-nixl"} {
		h := newWaiting()
		answer, decode := good, slowly(300*time.Millisecond)
		if protocol == "vllm-nixl" {
			answer = handoff(nixlHandoff)
		}
		w := newPairWorld(t, protocol, []script{h.then("", answer), answer}, []script{decode, decode})
		got := make(chan reply, 2)
		for range 2 { // one of them at p1
			go func() { got <- w.do(call{body: streamBody}) }()
		}
		<-h.asked
		w.feed.Delete("p1")
		for range 2 {
			if r := <-got; r.status != 200 || !strings.HasSuffix(r.body, done) {
				t.Errorf("%s: %d %q", protocol, r.status, r.body)
			}
		}
		if protocol == "vllm-nixl" {
			if n := w.count("infera_router_prefill_redispatch_total"); n != 1 {
				t.Errorf("%s: %d prefill legs repeated", protocol, n)
			}
		}
		close(h.goOn)
		w.settled(2)
	}
}
