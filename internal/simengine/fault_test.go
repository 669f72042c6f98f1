package simengine

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/internal/testkit"
)

func TestFaultsAreParsed(t *testing.T) {
	for _, tc := range []struct {
		text string
		want fault
		bad  bool
	}{
		{text: "ok", want: fault{}},
		{text: "cut_after:5", want: fault{mode: faultCutAfter, arg: 5, text: "cut_after:5"}},
		{text: " no_done ", want: fault{mode: faultNoDone, text: " no_done "}},
		{text: "error_event", want: fault{mode: faultErrorEvent, arg: 2, text: "error_event"}},
		{text: "error_event:0", want: fault{mode: faultErrorEvent, arg: 0, text: "error_event:0"}},
		{text: "cut_after", bad: true},
		{text: "cut_after:", bad: true},
		{text: "cut_after:-1", bad: true},
		{text: "no_done:1", bad: true},
		{text: "status:99", bad: true},
		{text: "status:600", bad: true},
		{text: "explode", bad: true},
		{text: "", bad: true},
	} {
		got, err := parseFault(tc.text)
		if got != tc.want || (err != nil) != tc.bad || (err != nil && !errors.Is(err, ErrFault)) {
			t.Errorf("parseFault(%q) = %+v, %v; want %+v, bad %v", tc.text, got, err, tc.want, tc.bad)
		}
	}
	for _, m := range faultModes() {
		if !strings.Contains(FaultHelp(), "  "+m.name) {
			t.Errorf("the help does not speak of %s", m.name)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("cut_after:5")
	f.Add("status:")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseFault(s)
		if err != nil {
			if !errors.Is(err, ErrFault) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if got.mode == "" {
			return
		}
		again, err := parseFault(fmt.Sprintf("%s:%d", got.mode, got.arg))
		if plain, err2 := parseFault(got.mode); err2 == nil && err != nil {
			again, err = plain, nil
		}
		if err != nil || again.mode != got.mode || again.arg != got.arg {
			t.Errorf("%q read as %+v, its canonical form as %+v, %v", s, got, again, err)
		}
	})
}

func TestFaultsAreDrawn(t *testing.T) {
	now := time.Unix(1000, 0)
	count := func(spec Fault, connect bool, at time.Time) int {
		s := &faults{rng: rand.New(rand.NewPCG(1, 1))}
		if _, err := s.set(spec, now); err != nil {
			t.Fatal(err)
		}
		n := 0
		for range 1000 {
			if s.draw(at, connect).mode != "" {
				n++
			}
		}
		return n
	}
	for _, tc := range []struct {
		name     string
		spec     Fault
		connect  bool
		at       time.Time
		min, max int
	}{
		{"none in force", Fault{}, false, now, 0, 0},
		{"every request", Fault{Mode: "no_done"}, false, now, 1000, 1000},
		{"a number of them", Fault{Mode: "no_done", Count: 3}, false, now, 3, 3},
		{"a share of them", Fault{Mode: "no_done", Probability: 0.3}, false, now, 250, 350},
		{"a number out of a share", Fault{Mode: "no_done", Probability: 0.3, Count: 7}, false, now, 7, 7},
		{"until its time is over", Fault{Mode: "no_done", ForMS: 100}, false, now.Add(99 * time.Millisecond), 1000, 1000},
		{"not after that", Fault{Mode: "no_done", ForMS: 100}, false, now.Add(100 * time.Millisecond), 0, 0},
		{"connections by their own faults", Fault{Mode: "reset", Count: 2}, true, now, 2, 2},
		{"connections not by others", Fault{Mode: "no_done"}, true, now, 0, 0},
	} {
		if n := count(tc.spec, tc.connect, tc.at); n < tc.min || n > tc.max {
			t.Errorf("%s: %d of 1000 struck, want %d to %d", tc.name, n, tc.min, tc.max)
		}
	}
	for _, bad := range []Fault{
		{Mode: "explode"},
		{Mode: "ok", Probability: 2},
		{Mode: "ok", Count: -1},
		{Mode: "ok", ForMS: -1},
		{Mode: "refuse", Count: 1},
		{Mode: "refuse", Probability: 0.5},
	} {
		if _, err := new(faults).set(bad, now); !errors.Is(err, ErrFault) {
			t.Errorf("%+v: error %v, want ErrFault", bad, err)
		}
	}
}

const chatStream = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":6,"stream":true}`

const chatUnary = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":6}`

// raw sends one request over a bare connection and returns everything that came
// back, and how it ended.
func raw(t *testing.T, e *Engine, body, fault string) (string, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.ID())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX-Sim-Fault: %s\r\nConnection: close\r\n\r\n%s", len(body), fault, body)
	b, err := io.ReadAll(conn)
	return string(b), err
}

// nEvents counts the data events in what raw returned.
func nEvents(s string) int { return strings.Count(s, "data: ") }

func TestStreamFaultsOnTheWire(t *testing.T) {
	e := start(t, fast())
	healthy, err := raw(t, e, chatStream, "ok")
	if err != nil || nEvents(healthy) != 9 { // role, six tokens, finish, [DONE]
		t.Fatalf("without a fault: %d events, %v:\n%s", nEvents(healthy), err, healthy)
	}
	const done = "data: [DONE]\n\n"
	for _, tc := range []struct {
		fault   string
		outcome string
		reset   bool
		check   func(s string) bool
	}{
		{"cut_after:3", OutcomeFault, true, func(s string) bool { return nEvents(s) == 3 && !strings.Contains(s, done) }},
		{"cut_after:0", OutcomeFault, true, func(s string) bool { return nEvents(s) == 0 && strings.HasPrefix(s, "HTTP/1.1 200") }},
		{"cut_after:100", OutcomeFault, true, func(s string) bool { return nEvents(s) == 8 && !strings.Contains(s, done) }},
		{"close_delim_cut:3", OutcomeFault, false, func(s string) bool {
			return nEvents(s) == 3 && !strings.Contains(s, done) && !strings.Contains(s, "chunked") && strings.HasSuffix(s, "\n\n")
		}},
		{"no_done", OutcomeFault, false, func(s string) bool { return nEvents(s) == 8 && !strings.Contains(s, done) }},
		{"two_done", OutcomeFault, false, func(s string) bool { return strings.Count(s, done) == 2 }},
		{"error_event:3", OutcomeFault, false, func(s string) bool {
			return nEvents(s) == 4 && strings.Contains(s, `data: {"error":{"message"`) && !strings.Contains(s, done)
		}},
		{"error_event_then_done", OutcomeFault, false, func(s string) bool {
			return nEvents(s) == 4 && strings.Contains(s, `data: {"error":`) && strings.Count(s, done) == 1
		}},
		{"data_after_done", OutcomeFault, false, func(s string) bool {
			_, after, ok := strings.Cut(s, done)
			return ok && nEvents(after) == 1
		}},
		{"huge_line:100000", OutcomeComplete, false, func(s string) bool {
			return strings.Count(s, "x") > 100000 && nEvents(s) == 10 && strings.Contains(s, done) // chunk heads lie between
		}},
		{"keepalive_comments", OutcomeComplete, false, func(s string) bool { return strings.Count(s, ": keep-alive\n\n") == 8 && strings.Contains(s, done) }},
		{"1xx", OutcomeComplete, false, func(s string) bool {
			return strings.HasPrefix(s, "HTTP/1.1 103 Early Hints\r\n") && strings.Contains(s, "HTTP/1.1 102 Processing\r\n") &&
				strings.Contains(s, "HTTP/1.1 200 OK\r\n") && strings.Contains(s, done)
		}},
		{"trailers", OutcomeComplete, false, func(s string) bool {
			return strings.Contains(s, "Trailer: X-Sim-Tokens, X-Sim-Outcome\r\n") && strings.HasSuffix(s, "0\r\nX-Sim-Outcome: complete\r\nX-Sim-Tokens: 1\r\n\r\n")
		}},
		{"status:503", OutcomeFault, false, func(s string) bool {
			return strings.HasPrefix(s, "HTTP/1.1 503 ") && strings.Contains(s, "Retry-After: 1\r\n") && strings.Contains(s, `"code":503`)
		}},
		{"reset", OutcomeFault, true, func(s string) bool { return s == "" }},
		{"refuse", OutcomeFault, true, func(s string) bool { return s == "" }},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			e.ClearReceipts()
			got, err := raw(t, e, chatStream, tc.fault)
			if reset := errors.Is(err, syscall.ECONNRESET); reset != tc.reset || (err != nil && !reset) {
				t.Errorf("ended by %v, want a reset: %v", err, tc.reset)
			}
			if !tc.check(got) {
				t.Errorf("%d events:\n%.2000s", nEvents(got), got)
			}
			if r := receipt(t, e, 0); r.Outcome != tc.outcome || r.Fault != tc.fault {
				t.Errorf("receipt: outcome %s by %q, want %s by %q", r.Outcome, r.Fault, tc.outcome, tc.fault)
			}
			idle(t, e)
		})
	}
}

// idle waits until nothing runs, and fails if blocks are left in use.
func idle(t *testing.T, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if !e.inflight.wait(ctx) {
		t.Fatal("the request does not end")
	}
	if l := e.sched.load(); l.running+l.waiting+l.used != 0 {
		t.Errorf("left behind: %+v", l)
	}
}

func TestUnaryFaultsOnTheWire(t *testing.T) {
	e := start(t, fast())
	healthy, _ := raw(t, e, chatUnary, "ok")
	_, whole, _ := strings.Cut(healthy, "\r\n\r\n")
	for _, tc := range []struct {
		fault string
		reset bool
		check func(head, body string) bool
	}{
		{"cut_after:1", true, func(head, body string) bool {
			return strings.Contains(head, "Content-Length: ") && len(body) > 0 && len(body) < len(whole)
		}},
		{"close_delim_cut", false, func(head, body string) bool {
			return !strings.Contains(head, "Content-Length") && len(body) > 0 && len(body) < len(whole)
		}},
		{"error_event", false, func(head, body string) bool {
			return strings.HasPrefix(head, "HTTP/1.1 500") && strings.Contains(body, `"error"`)
		}},
		{"huge_line:5000", false, func(_, body string) bool {
			return strings.Contains(body, `"padding":"xxx`) && strings.HasSuffix(body, `x"}`)
		}},
		{"trailers", false, func(head, body string) bool {
			return strings.Contains(head, "chunked") && strings.Contains(body, "X-Sim-Outcome: complete")
		}},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			got, err := raw(t, e, chatUnary, tc.fault)
			if reset := errors.Is(err, syscall.ECONNRESET); reset != tc.reset {
				t.Errorf("ended by %v, want a reset: %v", err, tc.reset)
			}
			if head, body, _ := strings.Cut(got, "\r\n\r\n"); !tc.check(head, body) {
				t.Errorf("%.1000s", got)
			}
			idle(t, e)
		})
	}
}

func TestGzipIsSentUnasked(t *testing.T) {
	e := start(t, fast())
	for _, body := range []string{chatStream, chatUnary} {
		resp, got := do(t, http.MethodPost, e.URL()+"/v1/chat/completions", body, FaultHeader, "gzip")
		if resp.Header.Get("Content-Encoding") != "gzip" {
			t.Fatalf("headers %v", resp.Header)
		}
		z, err := gzip.NewReader(strings.NewReader(got))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil || !bytes.Contains(plain, []byte("finish_reason")) {
			t.Errorf("%v: %s", err, plain)
		}
	}
}

func TestPartialUTF8SplitsACharacterOverTwoReads(t *testing.T) {
	e := start(t, fast())
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX-Sim-Fault: partial_utf8\r\nConnection: close\r\n\r\n%s", len(chatStream), chatStream)
	const grin = "\U0001F600"
	var all []byte
	split := false
	buf := make([]byte, 1<<16)
	for {
		n, rerr := conn.Read(buf)
		all = append(all, buf[:n]...)
		if tail := strings.TrimSuffix(string(all), "\r\n"); strings.HasSuffix(tail, grin[:2]) {
			split = true
		}
		if rerr != nil {
			break
		}
	}
	if !split {
		t.Errorf("no read ended inside the character:\n%s", all)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(all)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if !bytes.Contains(body, []byte(grin)) {
		t.Error("the character did not arrive whole")
	}
}

func TestSlowTokenWaitsAfterEachEvent(t *testing.T) {
	e := start(t, fast())
	begin := time.Now()
	post(t, e.URL()+"/v1/chat/completions", chatStream, FaultHeader, "slow_token:10")
	if took := time.Since(begin); took < 80*time.Millisecond {
		t.Errorf("eight events took %s, want 80 ms at least", took)
	}
}

func TestInformationalResponsesReachAClient(t *testing.T) {
	e := start(t, fast())
	var codes []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			codes = append(codes, code)
			return nil
		},
	})
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions", strings.NewReader(chatUnary))
	req.Header.Set(FaultHeader, "1xx")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if fmt.Sprint(codes) != "[103 102]" || resp.StatusCode != http.StatusOK {
		t.Errorf("informational %v, then %d", codes, resp.StatusCode)
	}
}

// hanging starts a request that will not be answered in full and returns what
// aborts it.
func hanging(t *testing.T, e *Engine, body, fault string) (abort func(), done chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done = make(chan struct{})
	go func() {
		defer close(done)
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set(FaultHeader, fault)
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	return cancel, done
}

func TestHangingFaultsEndWhenTheClientGoes(t *testing.T) {
	e := start(t, fast())
	for _, tc := range []struct {
		fault, body string
		status      int
	}{
		{"hang_accept", chatStream, 0},
		{"hang_head", chatStream, 0},
		{"status_then_hang_body", chatStream, 200},
		{"status_then_hang_body:429", chatUnary, 429},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			e.ClearReceipts()
			abort, done := hanging(t, e, tc.body, tc.fault)
			testkit.Until(t, "the request's receipt", func() bool {
				list := e.Receipts()
				return len(list) == 1 && list[0].Fault == tc.fault && list[0].Status == tc.status && (tc.fault == "hang_accept" || list[0].BytesIn > 0)
			})
			select {
			case <-done:
				t.Fatal("answered")
			default:
			}
			resp, _ := do(t, http.MethodGet, e.URL()+"/health", "")
			if resp.StatusCode != http.StatusOK {
				t.Errorf("health is %d while a request hangs", resp.StatusCode)
			}
			abort()
			<-done
			if r := receipt(t, e, 0); r.Outcome != OutcomeAborted || r.AbortedAt == nil {
				t.Errorf("receipt %+v", r)
			}
			idle(t, e)
		})
	}
}

func TestClientDisconnectAbortsGeneration(t *testing.T) {
	for _, tc := range []struct{ name, body string }{
		{"streamed", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":10000,"ignore_eos":true,"stream":true}`},
		{"unary", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":10000,"ignore_eos":true}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := fast()
			cfg.Time.Scale = 1 // 100 s of output
			e := start(t, cfg)
			abort, done := hanging(t, e, tc.body, "ok")
			testkit.Until(t, "output", func() bool { return e.sched.load().outputTokens > 2 })
			begin := time.Now()
			abort()
			<-done
			r := receipt(t, e, 0)
			if r.Outcome != OutcomeAborted || r.AbortedAt == nil || r.TokensSent > 1000 {
				t.Errorf("receipt %+v", r)
			}
			if took := r.AbortedAt.Sub(begin); took > time.Second {
				t.Errorf("the disconnect was seen after %s", took)
			}
			idle(t, e)
			if l := e.sched.load(); l.lost != 1 || l.done != 0 {
				t.Errorf("%d aborted, %d done", l.lost, l.done)
			}
		})
	}
}

func TestAFaultMayTravelInTheBody(t *testing.T) {
	e := start(t, fast())
	for _, tc := range []struct {
		fault  string
		status int
		done   bool
	}{{"status:418", 418, false}, {"no_done", 200, false}, {"ok", 200, true}, {"explode", 400, false}} {
		body := strings.Replace(chatStream, "{", fmt.Sprintf(`{"sim_fault":%q,`, tc.fault), 1)
		resp, text := do(t, http.MethodPost, e.URL()+"/v1/chat/completions", body)
		if resp.StatusCode != tc.status || strings.HasSuffix(text, "data: [DONE]\n\n") != tc.done {
			t.Errorf("%s: status %d, want %d: %.300s", tc.fault, resp.StatusCode, tc.status, text)
		}
	}
	got, err := raw(t, e, strings.Replace(chatStream, "{", `{"sim_fault":"reset",`, 1), "ok")
	if !errors.Is(err, syscall.ECONNRESET) || got != "" {
		t.Errorf("reset: %v %q", err, got)
	}
}

func TestRuntimeFaultStrikesACountOfRequests(t *testing.T) {
	e := start(t, fast())
	resp, body := do(t, http.MethodPost, e.URL()+"/control/fault", `{"mode":"status:500","count":2,"probability":1.0}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(body)
	}
	var got []int
	for range 4 {
		resp, _ := do(t, http.MethodPost, e.URL()+"/v1/chat/completions", chatUnary)
		got = append(got, resp.StatusCode)
		if resp, _ := do(t, http.MethodGet, e.URL()+"/health", ""); resp.StatusCode != http.StatusOK {
			t.Error("a sick engine's health is not ok")
		}
	}
	if fmt.Sprint(got) != "[500 500 200 200]" {
		t.Errorf("statuses %v", got)
	}
	_, body = do(t, http.MethodGet, e.URL()+"/control/fault", "")
	if rep := decode[faultStatusReport](t, body); rep.Struck != 2 || rep.Mode != "status:500" {
		t.Errorf("report %s", body)
	}
	for _, bad := range []string{`{"mode":"explode"}`, `{"mod":"ok"}`, `[]`} {
		if resp, body := do(t, http.MethodPost, e.URL()+"/control/fault", bad); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", bad, resp.StatusCode, body)
		}
	}
}

func TestRefuseClosesThePortAndOpensItAgain(t *testing.T) {
	cfg := fast()
	cfg.ControlPort = 0
	e := start(t, cfg)
	// A connection kept alive must not survive the refusal.
	kept, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	br := bufio.NewReader(kept)
	fmt.Fprint(kept, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(err)
	}
	resp.Body.Close()
	testkit.Until(t, "the connection idle", func() bool {
		e.gate.mu.Lock()
		defer e.gate.mu.Unlock()
		return len(e.gate.idle) == 1
	})
	do(t, http.MethodPost, e.ControlURL()+"/control/fault", `{"mode":"refuse"}`)
	if _, err := raw(t, e, chatUnary, "ok"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection to a closed port: %v, want refused", err)
	}
	if _, err := br.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the kept connection: %v, want it broken", err)
	}
	do(t, http.MethodPost, e.ControlURL()+"/control/fault", `{"mode":"ok"}`)
	if got, err := raw(t, e, chatUnary, "ok"); err != nil || !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("after the refusal: %v %s", err, got)
	}
}

func TestRefuseEndsByItself(t *testing.T) {
	e := start(t, fast())
	if err := e.SetFault(Fault{Mode: "refuse", ForMS: 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := raw(t, e, chatUnary, "ok"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, want refused", err)
	}
	testkit.Until(t, "the port open again", func() bool {
		got, err := raw(t, e, chatUnary, "ok")
		return err == nil && strings.HasPrefix(got, "HTTP/1.1 200")
	})
}

func TestConnectionFaults(t *testing.T) {
	e := start(t, fast())
	if err := e.SetFault(Fault{Mode: "reset", Count: 2}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		got, err := raw(t, e, chatUnary, "ok")
		if struck := err != nil; struck != (i < 2) {
			t.Errorf("connection %d: %v %.40s", i, err, got)
		}
	}
	if err := e.SetFault(Fault{Mode: "hang_accept", Count: 1}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := raw(t, e, chatUnary, "ok")
		ended <- err
	}()
	testkit.Until(t, "a connection parked", func() bool {
		e.gate.mu.Lock()
		defer e.gate.mu.Unlock()
		return len(e.gate.parked) == 1
	})
	if got, err := raw(t, e, chatUnary, "ok"); err != nil || !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("the connection after it: %v %.40s", err, got)
	}
	select {
	case err := <-ended:
		t.Errorf("the parked connection ended: %v", err)
	default:
	}
	if err := e.SetFault(Fault{}); err != nil { // lets go
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the parked connection was answered")
	}
}
