package forward_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/forward"
	"pointsman/internal/testkit"
	"pointsman/picker"
)

// capped puts caps per worker into the picker, enforced as the gate is.
func capped(enforce bool, caps picker.Caps) option {
	return func(_ *forward.Config, d *forward.Deps) {
		pc := picker.DefaultConfig()
		pc.Seed, pc.Caps = 1, caps
		pc.Caps.Enforce = enforce
		if err := d.Picker.SetConfig(pc); err != nil {
			panic(err)
		}
	}
}

// contract 2C, fc_ep_max_inflight: no worker runs more than its cap, the others
// wait, and all are served.
func TestFcEpMaxInflightKeepsEachWorkerAtItsCap(t *testing.T) {
	a, b := &busyEngine{goOn: make(chan struct{})}, &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{a.script, b.script}, gated(&gate, func(c *admission.Config) { c.QueueDepth, c.QueueWait = 20, time.Minute }),
		capped(true, picker.Caps{Worker: 3}))
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if got := w.do(call{body: streamBody}); got.status != http.StatusOK || !strings.Contains(got.body, "[DONE]") {
				t.Errorf("status %d, body %s", got.status, got.body)
			}
		})
	}
	testkit.Until(t, "six run and six wait", func() bool { return a.open.Load()+b.open.Load() == 6 && gate.Snapshot().Queued == 6 })
	close(a.goOn)
	close(b.goOn)
	wg.Wait()
	w.settled(12)
	if a.most.Load() > 3 || b.most.Load() > 3 {
		t.Errorf("%d and %d at once, want at most 3", a.most.Load(), b.most.Load())
	}
	if s := gate.Snapshot(); s.Inflight != 0 || s.Queued != 0 {
		t.Errorf("left over %+v", s)
	}
}

// In direct mode an endpoint picker has admitted the request; the forwarder sees
// to the worker's own cap.
func TestInDirectModeARequestWaitsForItsNamedWorkerAlone(t *testing.T) {
	a := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{a.script, good}, direct, gated(&gate, func(c *admission.Config) { c.MaxOutstanding, c.QueueDepth, c.QueueWait = 1, 1, time.Minute }),
		capped(true, picker.Caps{Worker: 1}))
	got := make(chan reply, 2)
	for range 2 {
		go func() { got <- w.do(call{body: chatBody, header: toW1}) }()
	}
	testkit.Until(t, "one runs and one waits", func() bool { return a.open.Load() == 1 && gate.Snapshot().Queued == 1 })
	over := w.do(call{body: chatBody, header: toW1})
	if over.status != http.StatusTooManyRequests || !strings.Contains(over.body, admission.CodeCapacity) {
		t.Errorf("beyond the queue: status %d, body %s", over.status, over.body)
	}
	if free := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w2"}}); free.status != http.StatusOK {
		t.Errorf("another worker: status %d, body %s", free.status, free.body)
	}
	close(a.goOn)
	for range 2 {
		if r := <-got; r.status != http.StatusOK || r.header.Get("X-Worker-Instance-Id") != "w1" {
			t.Errorf("status %d from %q", r.status, r.header.Get("X-Worker-Instance-Id"))
		}
	}
	w.settled(4)
}

// contract 1.3, LLB_PD_QUEUE_DEPTH_PER_EP: each worker has its own queue.
func TestQueueDepthPerEpBoundsTheWaitForEachWorker(t *testing.T) {
	a := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{a.script, a.script}, direct, gated(&gate, func(c *admission.Config) { c.WorkerQueueDepth, c.QueueWait = 2, time.Minute }),
		capped(true, picker.Caps{Worker: 1}))
	got := make(chan reply, 6)
	ask := func(id string) {
		got <- w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": id}})
	}
	for range 3 {
		go ask("w1")
		go ask("w2")
	}
	testkit.Until(t, "two run and two wait for each", func() bool { return a.open.Load() == 2 && gate.Snapshot().Queued == 4 })
	if over := w.do(call{body: chatBody, header: toW1}); over.status != http.StatusTooManyRequests || over.header.Get("Retry-After") == "" {
		t.Errorf("a third in the worker's queue: status %d, headers %v", over.status, over.header)
	}
	close(a.goOn)
	for range 6 {
		if r := <-got; r.status != http.StatusOK {
			t.Errorf("status %d, body %s", r.status, r.body)
		}
	}
	w.settled(7)
}

func TestObserveAdmitsAboveACapAndCountsIt(t *testing.T) {
	a := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{a.script}, gated(&gate, func(c *admission.Config) { c.Mode, c.QueueDepth = admission.Observe, 1 }),
		capped(false, picker.Caps{Worker: 2}))
	fatal(t, gate.Register(w.reg))
	got := make(chan reply, 4)
	for range 4 {
		go func() { got <- w.do(call{body: chatBody}) }()
	}
	testkit.Until(t, "all four run", func() bool { return a.open.Load() == 4 })
	for reason, want := range map[string]int{"admitted": 2, "observe_would_queue": 1, "observe_would_shed": 1} {
		if n := w.count("infera_router_admission_decisions_total", "reason="+reason); n != want {
			t.Errorf("%s counted %d times, want %d", reason, n, want)
		}
	}
	close(a.goOn)
	for range 4 {
		if r := <-got; r.status != http.StatusOK || r.header.Get(admission.HeaderLimit) != "" {
			t.Errorf("status %d, headers %v", r.status, r.header)
		}
	}
	w.settled(4)
}

// A retry that finds every other worker full waits for one.
func TestAFurtherAttemptWaitsForAWorkerWithinTheQueuesTime(t *testing.T) {
	a := &busyEngine{goOn: make(chan struct{})}
	var gate *admission.Gate
	w := newWorld(t, []script{nil, a.script}, gated(&gate, func(c *admission.Config) { c.QueueDepth, c.QueueWait = 5, time.Minute }),
		capped(true, picker.Caps{Worker: 1}), direct)
	first, second := make(chan reply, 1), make(chan reply, 1)
	go func() { first <- w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w2"}}) }()
	testkit.Until(t, "w2 is full", func() bool { return a.open.Load() == 1 })
	go func() { second <- w.do(call{body: chatBody, header: toW1}) }() // refuses the connection
	testkit.Until(t, "the second waits", func() bool { return gate.Snapshot().Queued == 1 })
	close(a.goOn)
	for _, c := range []chan reply{first, second} {
		if r := <-c; r.status != http.StatusOK || r.header.Get("X-Worker-Instance-Id") != "w2" {
			t.Errorf("status %d, headers %v, body %s", r.status, r.header, r.body)
		}
	}
	w.settled(2)
	if s := gate.Snapshot(); s.Inflight != 0 || s.Queued != 0 {
		t.Errorf("left over %+v", s)
	}
}
