package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"pointsman/internal/simengine"
	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// soon is far below the forwarders' idle timeout of 900 s: what takes no longer
// has not waited for it.
const soon = 10 * time.Second

// natsFleet returns the fleet over a NATS broker that harmless tests share.
func natsFleet(t *testing.T) *stack.Stack {
	t.Helper()
	return theRig.share(t, "nats", stack.Config{
		Workers: stack.MixedWorkers(3, fast()...), Policy: "kv-aware", OverlapWeight: 20, Broker: &stack.BrokerConfig{},
	})
}

// carried returns how many requests of s's forwarders ended as outcome in the
// NATS transport.
func carried(t *testing.T, s *stack.Stack, outcome string) float64 {
	t.Helper()
	n := 0.0
	for _, w := range s.Workers {
		m, err := s.Metrics(t.Context(), w.ForwarderAdmin)
		if err != nil {
			t.Fatal(err)
		}
		n += m.Sum("pointsman_nats_requests_total", map[string]string{"outcome": outcome})
	}
	return n
}

// speak sends a streamed chat of one user message and reads it to its end.
func speak(t *testing.T, s *stack.Stack, requestID, text string, tokens int, o traffic.Observer) traffic.Result {
	t.Helper()
	d := traffic.Driver{URL: s.URL, Model: stack.DefaultModel, Patience: 2 * soon, Observer: o}
	client := traffic.NewClient()
	defer client.CloseIdleConnections()
	request := &traffic.Request{ID: requestID, MaxTokens: tokens, Messages: []traffic.Message{{Role: "user", Content: text}}}
	return d.Send(t.Context(), client, request)
}

func TestTheOfficialClientIsServedOverNATS(t *testing.T) {
	t.Parallel()
	s := natsFleet(t)
	official(t, s)
	if n := carried(t, s, "answered"); n < 2 {
		t.Errorf("the broker carried %v requests", n)
	}
}

// official lets the official client have a whole and a streamed answer.
func official(t *testing.T, s *stack.Stack) {
	t.Helper()
	var sent [][]byte
	client := openAI(s, &sent)
	params := openai.ChatCompletionNewParams{
		Model: stack.DefaultModel, MaxTokens: openai.Int(20),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say something: é, 世界. " + words(2, 40))},
	}
	got, err := client.Chat.Completions.New(t.Context(), params, option.WithHeader("X-Request-Id", id(t, "whole")))
	if err != nil {
		t.Fatal(err)
	}
	if got.Choices[0].Message.Content == "" || got.Usage.CompletionTokens != 20 {
		t.Errorf("answer %s", got.RawJSON())
	}
	stream := client.Chat.Completions.NewStreaming(t.Context(), params, option.WithHeader("X-Request-Id", id(t, "streamed")))
	var whole openai.ChatCompletionAccumulator
	for stream.Next() {
		whole.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil || whole.Choices[0].Message.Content != got.Choices[0].Message.Content {
		t.Errorf("%v: streamed %q, whole %q", err, whole.Choices[0].Message.Content, got.Choices[0].Message.Content)
	}
	for i, suffix := range []string{"whole", "streamed"} {
		rc := theReceipt(t, s, id(t, suffix))
		if rc.Outcome != "complete" || rc.TokensSent != 20 || rc.BodySHA256 != sum(sent[i]) || !rc.Authorization {
			t.Errorf("receipt %+v of a body with sum %s", rc, sum(sent[i]))
		}
	}
}

// TestABodyThatTheBrokerDoesNotCarryArrives sends three times NATS's max_payload
// (defect N3): it goes over HTTP, and no circuit minds.
func TestABodyThatTheBrokerDoesNotCarryArrives(t *testing.T) {
	t.Parallel()
	s := natsFleet(t)
	for _, stream := range []bool{false, true} {
		requestID := id(t, fmt.Sprint("streamed-", stream))
		before := carried(t, s, "fallback")
		body := chatBody(t, words(5, 3<<20/5), map[string]any{"stream": stream})
		a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": requestID})
		rc := theReceipt(t, s, requestID)
		if a.status != http.StatusOK || rc.BodySHA256 != sum(body) || rc.Outcome != "complete" || len(body) < 3<<20 {
			t.Errorf("streamed %v: status %d, receipt %+v of %d bytes with sum %s", stream, a.status, rc, len(body), sum(body))
		}
		if n := carried(t, s, "fallback"); n <= before {
			t.Errorf("streamed %v: it was not sent around the broker", stream)
		}
	}
	for _, w := range s.Workers {
		m, err := s.Metrics(t.Context(), w.ForwarderAdmin)
		if err != nil {
			t.Fatal(err)
		}
		if n := m.Sum("infera_router_worker_breaker_trips_total", nil); n != 0 {
			t.Errorf("%v circuits opened", n)
		}
	}
}

// TestAnEngineErrorOnAStreamIsAStatus has engines refuse streams (defect N2).
func TestAnEngineErrorOnAStreamIsAStatus(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(2, fast()...), Broker: &stack.BrokerConfig{}})
	for _, tt := range []struct{ status, times int }{{400, 1}, {429, 2}, {500, 2}} {
		for _, stream := range []bool{true, false} {
			requestID := id(t, fmt.Sprintf("%d-%v", tt.status, stream))
			begun := time.Now()
			a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions",
				bytes.NewReader(chatBody(t, "hello", map[string]any{"stream": stream})),
				map[string]string{"X-Request-Id": requestID, simengine.FaultHeader: fmt.Sprint("status:", tt.status)})
			var refusal apiError
			if err := json.Unmarshal(a.body, &refusal); a.status != tt.status || err != nil || refusal.Error.Message == "" {
				t.Errorf("streamed %v: status %d, want %d: %.200s", stream, a.status, tt.status, a.body)
			}
			if took := time.Since(begun); took > soon {
				t.Errorf("%d took %v", tt.status, took)
			}
			if list := receipts(t, s, requestID); len(list) != tt.times {
				t.Errorf("streamed %v: %d engines were asked for a %d, want %d", stream, len(list), tt.status, tt.times)
			}
		}
	}
}

// TestAnAbortReachesTheEngineOverNATS leaves at three moments (defect N8).
func TestAnAbortReachesTheEngineOverNATS(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(2, "--prefill-tokens-per-s", "1000", "--decode-ms-per-step", "20"), Broker: &stack.BrokerConfig{},
	})
	endless := map[string]any{"max_tokens": 50_000, "ignore_eos": true}
	stream := map[string]any{"max_tokens": 50_000, "ignore_eos": true, "stream": true}
	for name, leave := range map[string]struct {
		extra  map[string]any
		prompt string
		ripe   func(*simengine.Receipt) bool
	}{
		"before the first token": {stream, words(9, 30_000), func(r *simengine.Receipt) bool { return r.N > 0 && r.Outcome == "running" }}, // half a minute of it
		"within a stream":        {stream, "talk long", func(r *simengine.Receipt) bool { return r.TokensSent > 5 }},
		"within a whole answer":  {endless, "talk long", func(r *simengine.Receipt) bool { return r.N > 0 && r.Outcome == "running" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requestID := id(t, "0")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(chatBody(t, leave.prompt, leave.extra)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Request-Id", requestID)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			eventually(t, "the moment", func(context.Context) error {
				list := receipts(t, s, requestID) //nolint:contextcheck // a look is bounded by the test
				if len(list) != 1 || !leave.ripe(&list[0]) {
					return errNotYet
				}
				return nil
			})
			left := time.Now()
			cancel()
			<-gone
			rc := theReceipt(t, s, requestID)
			if rc.Outcome != "aborted" || rc.AbortedAt == nil {
				t.Fatalf("receipt %+v", rc)
			}
			if late := rc.AbortedAt.Sub(left); late > 2*time.Second {
				t.Errorf("the engine saw it %v later", late)
			}
		})
	}
}

// TestAWorkerThatIsRegisteredAndNotSubscribedCostsNothing has a worker whose
// NATS side never came up, or has died (defect N1).
func TestAWorkerThatIsRegisteredAndNotSubscribedCostsNothing(t *testing.T) {
	t.Parallel()
	workers := stack.MixedWorkers(3, fast()...)
	workers[1].Args = append(slices.Clone(workers[1].Args), "--nats-deaf")
	s := startFleet(t, stack.Config{Workers: workers, Policy: "round-robin", Broker: &stack.BrokerConfig{}})
	passedOver(t, s, s.Workers[1], "deaf")
	if n := carried(t, s, "no_responders"); n == 0 {
		t.Error("the worker without a subscription was never tried")
	}
}

// passedOver sends streams and whole requests while deaf takes none: all are
// answered by others, and at once.
func passedOver(t *testing.T, s *stack.Stack, deaf *stack.Worker, label string) {
	t.Helper()
	for i := range 12 {
		requestID, begun := id(t, fmt.Sprint(label, i)), time.Now()
		if i%2 == 0 {
			if r := speak(t, s, requestID, words(i, 30), 8, traffic.Observer{}); r.Outcome() != traffic.OK {
				t.Errorf("%s", describe(&r))
			}
		} else {
			parse(t, chat(t, s, requestID, words(i, 30), nil))
		}
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("request %d took %v", i, took)
		}
		if rc := theReceipt(t, s, requestID); rc.WorkerID == deaf.ID || rc.Outcome != "complete" {
			t.Errorf("receipt %+v", rc)
		}
	}
}

// TestAKilledEngineCostsOnlyItsOpenStreamsOverNATS kills one whose registration
// stays: nothing but the broker can know.
func TestAKilledEngineCostsOnlyItsOpenStreamsOverNATS(t *testing.T) {
	t.Parallel()
	killUnderLoad(t, startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(3, paced()...), Policy: "kv-aware", OverlapWeight: 20, Broker: &stack.BrokerConfig{},
	}))
}

// TestABrokerThatIsRestartedUnderFiftyStreams ends each of them in one error, and
// none of the engines goes on for nobody.
func TestABrokerThatIsRestartedUnderFiftyStreams(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(2, "--prefill-tokens-per-s", "100000", "--decode-ms-per-step", "20"), Policy: "round-robin",
		Broker: &stack.BrokerConfig{},
	})
	const streams = 50
	results := make([]traffic.Result, streams)
	ids := make([]string, streams)
	for i := range ids {
		ids[i] = id(t, fmt.Sprint(i))
	}
	var flowing, all sync.WaitGroup
	flowing.Add(streams)
	for i := range streams {
		all.Go(func() {
			begun := sync.OnceFunc(flowing.Done)
			defer begun()
			results[i] = speak(t, s, ids[i], words(i, 20), 20_000, traffic.Observer{First: func(*traffic.Result) { begun() }})
		})
	}
	flowing.Wait()
	stopped := time.Now()
	s.Broker.Stop()
	all.Wait()
	for i := range results {
		r := &results[i]
		if r.Outcome() != traffic.Interrupted || r.End.Sub(stopped) > soon {
			t.Errorf("%v after the broker stopped: %s", r.End.Sub(stopped), describe(r))
		}
	}
	// Without a broker requests are refused at once, with when to come back.
	begun := time.Now()
	a := chat(t, s, id(t, "down"), "hello", nil)
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || time.Since(begun) > soon {
		t.Errorf("without a broker: %d after %v: %.200s", a.status, time.Since(begun), a.body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	if err := s.Broker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitBroker(ctx); err != nil {
		t.Fatal(err)
	}
	back := time.Now().Add(2 * time.Second) // connections and cancels are tried again once a second
	eventually(t, "an answer", func(context.Context) error {
		if a := chat(t, s, id(t, "up"), "hello", nil); a.status != http.StatusOK { //nolint:contextcheck // bounded by the test
			return fmt.Errorf("%w: %d %.200s", errNotYet, a.status, a.body)
		}
		return nil
	})
	complete := 0 // answers that were shorter than the outage
	for i := range ids {
		rc := theReceipt(t, s, ids[i])
		if rc.Outcome == "complete" && rc.EndedAt.Before(back) {
			complete++
		} else if rc.Outcome != "aborted" {
			t.Errorf("the engine was not told: receipt %+v", rc)
		}
	}
	if complete > streams/5 {
		t.Errorf("%d of %d answers came to their end before the broker was back", complete, streams)
	}
	if list := receipts(t, s, id(t, "down")); len(list) != 0 {
		t.Errorf("a refused request has run: %+v", list)
	}
}

// TestNATSReqMaxPendingPassesOverAWorkerAtItsCap fills two workers through one of the
// forwarders (defect N7).
func TestNATSReqMaxPendingPassesOverAWorkerAtItsCap(t *testing.T) {
	t.Parallel()
	args := append(paced(), "--nats-req-max-pending", "2")
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(2, args...), Broker: &stack.BrokerConfig{}, ForwarderArgs: []string{"--nats-req-max-pending", "2"},
	})
	first, second := s.Workers[0], s.Workers[1]
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var open []io.Reader
	for i, want := range []*stack.Worker{first, first, second, second} {
		resp := ask(ctx, t, first, id(t, fmt.Sprint(i)))
		defer resp.Body.Close()
		if got := resp.Header.Get(traffic.WorkerHeader); resp.StatusCode != http.StatusOK || got != want.ID {
			t.Errorf("request %d: %s from %q, want %s", i, resp.Status, got, want.ID)
		}
		open = append(open, resp.Body)
	}
	resp := ask(ctx, t, first, id(t, "4"))
	defer resp.Body.Close()
	var refusal apiError
	if err := json.NewDecoder(resp.Body).Decode(&refusal); resp.StatusCode != http.StatusTooManyRequests || err != nil ||
		resp.Header.Get("Retry-After") == "" || refusal.Error.Type != "rate_limit_error" {
		t.Errorf("above the cap of both: %s, %+v, %v", resp.Status, refusal, err)
	}
	if list := receipts(t, s, id(t, "4")); len(list) != 0 {
		t.Errorf("a refused request has run: %+v", list)
	}
	stop()
	for _, body := range open {
		_, _ = io.Copy(io.Discard, body)
	}
	eventually(t, "room again", func(context.Context) error {
		if a := chat(t, s, id(t, "5"), "hello", nil); a.status != http.StatusOK { //nolint:contextcheck // bounded by the test
			return errNotYet
		}
		return nil
	})
	burst(t, s)
}

// ask sends an endless stream to the forwarder of w, which the headers name too,
// and returns when it has begun.
func ask(ctx context.Context, t *testing.T, w *stack.Worker, requestID string) *http.Response {
	t.Helper()
	body := chatBody(t, "talk long", map[string]any{"stream": true, "max_tokens": 50_000, "ignore_eos": true})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.ForwarderURL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", requestID)
	req.Header.Set(traffic.WorkerHeader, w.ID)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// burst sends more at once than the engines take, through the gateway: each
// request is answered once, or refused and never run.
func burst(t *testing.T, s *stack.Stack) {
	t.Helper()
	const requests = 24
	ids, answers := make([]string, requests), make([]answer, requests)
	var all sync.WaitGroup
	for i := range requests {
		ids[i] = id(t, fmt.Sprint("burst", i))
		all.Go(func() { answers[i] = chat(t, s, ids[i], words(i, 20), nil) })
	}
	begun := time.Now()
	all.Wait()
	if took := time.Since(begun); took > soon {
		t.Errorf("the burst took %v", took)
	}
	served := 0
	for i, a := range answers {
		list := receipts(t, s, ids[i])
		switch a.status {
		case http.StatusOK:
			served++
			if len(list) != 1 || list[0].Outcome != "complete" {
				t.Errorf("answered, with receipts %+v", list)
			}
		case http.StatusTooManyRequests:
			if len(list) != 0 || a.header.Get("Retry-After") == "" {
				t.Errorf("refused, with receipts %+v, Retry-After %q", list, a.header.Get("Retry-After"))
			}
		default:
			t.Errorf("status %d: %.200s", a.status, a.body)
		}
	}
	if served < 4 || served == requests {
		t.Errorf("%d of %d served; two engines take four at once", served, requests)
	}
}

// TestAnOldBrokerWillDo runs the nats-server of the system, which is 2.9 on
// Debian, with requests through its JetStream.
func TestAnOldBrokerWillDo(t *testing.T) {
	t.Parallel()
	binary := ""
	for _, name := range []string{os.Getenv("NATS_SERVER_BINARY"), "nats-server", "/usr/sbin/nats-server"} {
		if path, err := exec.LookPath(name); err == nil && binary == "" {
			binary = path
		}
	}
	if binary == "" {
		t.Skip("no nats-server is installed: apt-get install nats-server, or set NATS_SERVER_BINARY")
	}
	version, err := exec.CommandContext(t.Context(), binary, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", strings.TrimSpace(string(version)))
	for _, pending := range []string{"0", "50"} {
		t.Run("max-pending "+pending, func(t *testing.T) {
			t.Parallel()
			args := append(fast(), "--nats-req-max-pending", pending)
			s := startFleet(t, stack.Config{
				Workers: stack.MixedWorkers(2, args...), Policy: "round-robin", Broker: &stack.BrokerConfig{Binary: binary},
				ForwarderArgs: []string{"--nats-req-max-pending", pending},
			})
			official(t, s)
			a := send(t, http.DefaultClient, http.MethodPost, s.Workers[0].Control+"/control/nats", strings.NewReader(`{"deaf":true}`), nil)
			if a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			passedOver(t, s, s.Workers[0], "deaf")
			if pending != "0" {
				return // a restart takes the work queue with it, and Infera's workers make no new one
			}
			s.Broker.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
			defer cancel()
			if err := s.Broker.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if err := s.WaitBroker(ctx); err != nil {
				t.Fatal(err)
			}
			eventually(t, "an answer", func(context.Context) error {
				if a := chat(t, s, id(t, "again"), "hello", nil); a.status != http.StatusOK { //nolint:contextcheck // bounded by the test
					return fmt.Errorf("%w: %d %.200s", errNotYet, a.status, a.body)
				}
				return nil
			})
		})
	}
}
