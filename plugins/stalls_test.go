package plugins_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testkit"
	httptransport "pointsman/plugins/transport/http"
)

// knob is the budget that is short in a test; hour is what others are raised to.
const (
	knob = 400 * time.Millisecond
	hour = time.Hour
)

// budgets are all timers of a request.
type budgets struct {
	queue, connect, decodeConnect, prefill, ttft, firstToken, idle, total, write time.Duration
}

// stall is one row of the table of waiting budgets: where the engine stalls, which
// timer ends it, and how the client is told.
type stall struct {
	name    string
	pair    string                             // protocol; "" for a mixed worker
	set     func(*budgets)                     // makes the row's own budget short
	prepare func(*stalled)                     // makes it stall
	header  string                             // x-request-timeout-ms
	status  int                                // of the answer
	code    string                             // in its error
	aborted func(*stalled) []*simengine.Engine // those that had the request, and are to give it up
}

// stalled is a fleet in which a request stalls.
type stalled struct {
	*pairs
	gate            *admission.Gate
	prefill, worker *simengine.Engine // worker: the mixed one, or the decode worker
}

// deaf returns an address at which no handshake completes: a listener with a full
// backlog.
func deaf(t *testing.T) *net.TCPAddr {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err = syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	in4, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("a %T", name)
	}
	addr := &net.TCPAddr{IP: net.IP(in4.Addr[:]), Port: in4.Port}
	for range 10 {
		c, err := net.DialTimeout("tcp", addr.String(), 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("the backlog does not fill on this system")
	return nil
}

// unreachable puts e's worker behind an address that never answers a dial.
func (s *stalled) unreachable(e *simengine.Engine) {
	addr := deaf(s.t)
	w := *e.Worker()
	w.Host, w.Port, w.URL = addr.IP.String(), addr.Port, "http://"+addr.String()
	s.feed.Put(&w)
}

func (s *stalled) fault(e *simengine.Engine, mode string) {
	if err := e.SetFault(simengine.Fault{Mode: mode}); err != nil {
		s.t.Fatal(err)
	}
}

func none(*stalled) []*simengine.Engine        { return nil }
func theWorker(s *stalled) []*simengine.Engine { return []*simengine.Engine{s.worker} }
func bothLegs(s *stalled) []*simengine.Engine  { return []*simengine.Engine{s.prefill, s.worker} }

func stalls() []stall {
	return []stall{
		{
			name: "fc_max_queue_wait_ms", set: func(b *budgets) { b.queue = knob }, status: 504, code: "admission_queue_timeout", aborted: none,
			prepare: func(s *stalled) { // another request has every place, for good
				ctx, cancel := context.WithCancel(s.t.Context())
				s.t.Cleanup(cancel)
				pass, err := s.gate.Enter(ctx, &admission.Request{Units: 32, Pick: func(time.Time) error { return nil }})
				if err != nil {
					s.t.Fatal(err)
				}
				s.t.Cleanup(pass.Release)
			},
		},
		{
			name: "--connect-timeout-ms", set: func(b *budgets) { b.connect = knob }, status: 502, code: "upstream_connect_failed", aborted: none,
			prepare: func(s *stalled) { s.unreachable(s.worker) },
		},
		{
			name: "--prefill-timeout, concurrent legs", pair: "sglang-bootstrap", set: func(b *budgets) { b.prefill = knob }, status: 504, code: "pd_prefill_timeout", aborted: bothLegs,
			prepare: func(s *stalled) { s.fault(s.prefill, "hang_head") },
		},
		{
			name: "--prefill-timeout, serial legs", pair: "vllm-nixl", set: func(b *budgets) { b.prefill = knob }, status: 504, code: "pd_prefill_timeout",
			aborted: func(s *stalled) []*simengine.Engine { return []*simengine.Engine{s.prefill} },
			prepare: func(s *stalled) { s.fault(s.prefill, "hang_head") },
		},
		{
			name: "--decode-connect-timeout-ms", pair: "vllm-nixl", set: func(b *budgets) { b.decodeConnect = knob }, status: 502, code: "decode_connect_failed", aborted: none,
			prepare: func(s *stalled) { s.unreachable(s.worker) },
		},
		{
			name: "--ttft-timeout, no head", set: func(b *budgets) { b.ttft = knob }, status: 504, code: "first_token_timeout", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "hang_head") },
		},
		{
			name: "--ttft-timeout, no event", set: func(b *budgets) { b.ttft = knob }, status: 504, code: "first_token_timeout", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "status_then_hang_body:200") },
		},
		{
			name: "--pd-first-token-timeout", pair: "vllm-nixl", set: func(b *budgets) { b.firstToken = knob }, status: 504, code: "first_token_timeout", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "status_then_hang_body:200") },
		},
		{
			name: "--stream-idle-timeout, no head", set: func(b *budgets) { b.idle = knob }, status: 504, code: "stream_idle_timeout", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "hang_head") },
		},
		{
			name: "--stream-idle-timeout, between tokens", set: func(b *budgets) { b.idle = knob }, status: 200, code: "stream_idle_timeout", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "hang_after:3") },
		},
		{
			name: "--stream-idle-timeout, decode worker between tokens", pair: "sglang-bootstrap", set: func(b *budgets) { b.idle = knob }, status: 200, code: "stream_idle_timeout", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "hang_after:3") },
		},
		{
			name: "--request-max-duration, no head", set: func(b *budgets) { b.total = knob }, status: 504, code: "max_duration_exceeded", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "hang_head") },
		},
		{
			name: "--request-max-duration, tokens flow", set: func(b *budgets) { b.total = knob }, status: 200, code: "max_duration_exceeded", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "slow_token:80") },
		},
		{
			name: "x-request-timeout-ms", header: "400", set: func(*budgets) {}, status: 504, code: "client_timeout_exceeded", aborted: theWorker,
			prepare: func(s *stalled) { s.fault(s.worker, "hang_head") },
		},
		{
			name: "x-request-timeout-ms, a pair", header: "400", pair: "sglang-bootstrap", set: func(*budgets) {}, status: 504, code: "client_timeout_exceeded", aborted: bothLegs,
			prepare: func(s *stalled) { s.fault(s.prefill, "hang_head") },
		},
	}
}

// newStalled makes the fleet of one row.
func newStalled(t *testing.T, row stall, b budgets) *stalled {
	t.Helper()
	hc := httptransport.DefaultConfig()
	hc.ConnectTimeout = b.connect
	tr, err := httptransport.New(hc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	gc := admission.DefaultConfig()
	gc.Mode, gc.MaxOutstanding, gc.QueueDepth, gc.QueueWait = admission.Enforce, 32, 5, b.queue
	s := &stalled{gate: admission.NewGate(gc)}
	s.pairs = newPairs(t, forward.Auto, map[string]forward.Transport{"http": tr}, func(c *forward.Config, d *forward.Deps) {
		d.Gate = s.gate
		c.MaxRetries, c.ConnectRetrySameEP = 0, 0
		c.DecodeConnectTimeout, c.PrefillTimeout, c.TTFTTimeout, c.FirstTokenTimeout = b.decodeConnect, b.prefill, b.ttft, b.firstToken
		c.IdleTimeout, c.MaxDuration, c.WriteTimeout = b.idle, b.total, b.write
	})
	if row.pair == "" {
		s.worker = s.add(fleet.Mixed, "", nil)
		return s
	}
	patient := func(c *simengine.Config) { c.PD.Partner = time.Minute }
	s.prefill = s.add(fleet.Prefill, row.pair, patient)
	s.worker = s.add(fleet.Decode, row.pair, patient)
	return s
}

// failover.md 2D: each row has an engine that stalls exactly there. The row's own
// timer ends the request, with the row's own code; the engine is told; everything is
// given back; and no other timer has a say, whether it stands at its default or at an
// hour.
func TestEachBudgetEndsTheStallOfItsOwnStage(t *testing.T) { //nolint:tparallel // not beside tests that measure time
	for _, row := range stalls() {
		for others, at := range map[string]budgets{
			"defaults": {5 * time.Second, 5 * time.Second, 0, 30 * time.Second, 0, 120 * time.Second, 900 * time.Second, 0, 60 * time.Second},
			"an hour":  {hour, 30 * time.Second, 30 * time.Second, hour, hour, hour, hour, hour, hour},
		} {
			t.Run(fmt.Sprint(row.name, ", the others at ", others), func(t *testing.T) {
				t.Parallel()
				row.set(&at)
				s := newStalled(t, row, at)
				row.prepare(s)
				var headers []string
				if row.header != "" {
					headers = []string{"X-Request-Timeout-Ms", row.header}
				}
				begun := time.Now()
				status, body := s.ask(requests[1].path, requests[1].body, headers...)
				ended := time.Now()
				if took := ended.Sub(begun); took < knob || took > knob+knob/10+time.Second {
					t.Errorf("took %v, the budget is %v", took, knob)
				}
				if status != row.status || strings.Count(body, `"`+row.code+`"`) != 1 || strings.Contains(body, "[DONE]") {
					t.Errorf("%d %s, want %d %s", status, body, row.status, row.code)
				}
				s.givenUp(ended, row.aborted(s))
				s.idle(row.name == "fc_max_queue_wait_ms")
			})
		}
	}
}

// givenUp checks by the receipts that the engines were told within a second.
func (s *stalled) givenUp(ended time.Time, engines []*simengine.Engine) {
	s.t.Helper()
	for _, e := range s.engines {
		want := 0
		for _, told := range engines {
			if told == e {
				want = 1
			}
		}
		of := func(outcome string) (legs []simengine.Receipt) {
			return slices.DeleteFunc(e.Receipts(), func(r simengine.Receipt) bool { return r.Outcome != outcome })
		}
		testkit.Until(s.t, fmt.Sprintf("%d legs aborted, and none running", want), func() bool {
			return len(of(simengine.OutcomeRunning)) == 0 && len(of(simengine.OutcomeAborted)) == want
		}, func() string { return fmt.Sprintf("%+v", e.Receipts()) })
		for _, r := range of(simengine.OutcomeAborted) {
			if late := r.AbortedAt.Sub(ended); late > time.Second {
				s.t.Errorf("the %s leg was told %v later", r.Leg, late)
			}
		}
	}
}

// idle checks that nothing is held any more.
func (s *stalled) idle(taken bool) {
	s.t.Helper()
	requests, units := 0, 0
	if taken { // the test's own
		requests, units = 1, 32
	}
	testkit.Until(s.t, "all that was held given back", func() bool {
		gate := s.gate.Snapshot()
		return len(s.picker.Held(time.Now().Add(hour), 0)) == 0 && gate.Inflight == requests && gate.Units == units && gate.Queued == 0
	}, func() string {
		return fmt.Sprintf("held %+v, gate %+v", s.picker.Held(time.Now().Add(hour), 0), s.gate.Snapshot())
	})
}

// --client-write-timeout: a client that takes nothing of a running answer costs its
// worker no more than the budget, and nobody is blamed.
func TestClientWriteTimeoutEndsTheStallOfAClient(t *testing.T) {
	row := stall{}
	s := newStalled(t, row, budgets{hour, 5 * time.Second, 0, hour, hour, hour, hour, 0, knob})
	conn, err := net.Dial("tcp", s.door.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	body := `{"model":"sim-model","stream":true,"n":24,"max_tokens":8000,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.door.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the engine told", func() bool {
		r := s.worker.Receipts()
		return len(r) == 1 && r[0].Outcome == simengine.OutcomeAborted
	}, func() string { return fmt.Sprintf("%+v", s.worker.Receipts()) })
	if took := time.Since(begun); took < knob || took > knob+5*time.Second {
		t.Errorf("given up after %v", took)
	}
	s.idle(false)
}
