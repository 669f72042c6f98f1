package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// turn sends a conversation as it stands and returns it with the answer.
func turn(t *testing.T, s *stack.Stack, requestID string, talk []traffic.Message, question string) ([]traffic.Message, completion) {
	t.Helper()
	talk = append(talk, traffic.Message{Role: "user", Content: question})
	body, err := json.Marshal(map[string]any{"model": stack.DefaultModel, "max_tokens": 24, "messages": talk})
	if err != nil {
		t.Fatal(err)
	}
	a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": requestID})
	c := parse(t, a)
	return append(talk, traffic.Message{Role: "assistant", Content: c.Choices[0].Message.Content}), c
}

func TestAConversationStaysWithItsWorker(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			// A fleet of its own: the load that other tests put on some of its workers would be looked at too.
			s := startFleet(t, stack.Config{Bootstrap: b, Workers: stack.MixedWorkers(3, fast()...), Policy: "kv-aware", OverlapWeight: 20})
			workers := map[string]bool{}
			for talkNumber := range 6 { // by chance three turns of six would all stay once in half a million
				var talk []traffic.Message
				worker, known := "", 0
				for turnNumber := range 3 {
					requestID := id(t, fmt.Sprintf("%d-%d", talkNumber, turnNumber))
					var c completion
					talk, c = turn(t, s, requestID, talk, "Question. "+words(100+10*talkNumber+turnNumber, 120))
					rc := theReceipt(t, s, requestID)
					if rc.CachedTokens != c.Usage.Details.Cached || rc.PromptTokens != c.Usage.Prompt {
						t.Errorf("usage %+v, receipt %+v", c.Usage, rc)
					}
					// All of the last prompt and its answer, but for a block's rest.
					if want := known - 16; turnNumber > 0 && (rc.WorkerID != worker || rc.CachedTokens < want) {
						t.Errorf("conversation %d, turn %d: %d of %d tokens cached on %s; want at least %d on %s",
							talkNumber, turnNumber, rc.CachedTokens, rc.PromptTokens, rc.WorkerID, want, worker)
					}
					worker, known = rc.WorkerID, c.Usage.Prompt+c.Usage.Completion
					workers[worker] = true
				}
			}
			if len(workers) < 2 {
				t.Errorf("all conversations went to %v: load is not looked at", workers)
			}
		})
	}
}

// TestEventsTellWhatAnEngineWasAskedPastTheGateway warms each engine directly,
// so that only its cache events can tell the EPP of it, and then empties one.
func TestEventsTellWhatAnEngineWasAskedPastTheGateway(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(4, fast()...), Policy: "kv-aware", OverlapWeight: 20})
	prompt := func(i int) string { return words(1000+50*i, 400) }
	for i, w := range s.Workers {
		a := send(t, http.DefaultClient, http.MethodPost, w.URL+"/v1/chat/completions", bytes.NewReader(chatBody(t, prompt(i), nil)), nil)
		parse(t, a)
		waitForBlocks(t, s, w.ID, func(n float64) bool { return n >= 20 })
	}
	for i, w := range s.Workers {
		requestID := id(t, w.Config.Engine+fmt.Sprint(i))
		parse(t, chat(t, s, requestID, prompt(i), nil))
		if rc := theReceipt(t, s, requestID); rc.WorkerID != w.ID || rc.CachedTokens < 350 {
			t.Errorf("%s engine %s holds the prompt; %s served it with %d tokens cached", w.Config.Engine, w.ID, rc.WorkerID, rc.CachedTokens)
		}
	}
	m, err := s.Metrics(t.Context(), s.EPPs[0].Admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Workers {
		if mode := m.Sum("pointsman_kvindex_mode", map[string]string{"worker_id": w.ID}); mode != 2 {
			t.Errorf("%s: index mode %v, want 2 (exact)", w.ID, mode)
		}
	}
	// A forwarder that only obeys headers opens no feed of its own, until it must
	// pick by itself.
	forwarder := s.Workers[0]
	if n := viewOf(t, s, forwarder.ForwarderAdmin, ""); n != 0 {
		t.Errorf("the forwarder follows cache events, %v blocks, and has no use for them", n)
	}
	requestID := id(t, "past-the-gateway")
	header := map[string]string{"X-Request-Id": requestID, "Content-Type": "application/json"}
	parse(t, send(t, http.DefaultClient, http.MethodPost, forwarder.ForwarderURL+"/v1/chat/completions", bytes.NewReader(chatBody(t, "hello", nil)), header))
	theReceipt(t, s, requestID)
	eventually(t, "the forwarder's own view", func(context.Context) error {
		if viewOf(t, s, forwarder.ForwarderAdmin, "") == 0 { //nolint:contextcheck // a look is bounded by the test
			return errNotYet
		}
		return nil
	})
	for _, w := range s.Workers { // an emptied cache is not believed in
		a := send(t, http.DefaultClient, http.MethodPost, w.Control+"/control/clear-cache", http.NoBody, nil)
		if a.status != http.StatusNoContent {
			t.Fatalf("clear the cache: %d %s", a.status, a.body)
		}
		waitForBlocks(t, s, w.ID, func(n float64) bool { return n == 0 })
	}
}

// viewOf returns how many blocks a program's view of a worker's cache holds; ""
// sums up all workers.
func viewOf(t *testing.T, s *stack.Stack, admin, workerID string) float64 {
	t.Helper()
	m, err := s.Metrics(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	if workerID != "" {
		labels["worker_id"] = workerID
	}
	return m.Sum("infera_policy_cache_view_size", labels)
}

// waitForBlocks waits until what the EPP's view of a worker's cache holds is
// enough.
func waitForBlocks(t *testing.T, s *stack.Stack, workerID string, enough func(float64) bool) {
	t.Helper()
	eventually(t, "the cache events of "+workerID, func(context.Context) error {
		if n := viewOf(t, s, s.EPPs[0].Admin, workerID); !enough(n) { //nolint:contextcheck // a look is bounded by the test
			return fmt.Errorf("%w: the view of %s has %v blocks", errNotYet, workerID, n)
		}
		return nil
	})
}

// TestAResponseNamesItsWorker checks the header that the demo and operators go by.
func TestAResponseNamesItsWorker(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			a := chat(t, s, id(t, "0"), words(7, 30), nil)
			parse(t, a)
			if got, want := a.header.Get(traffic.WorkerHeader), theReceipt(t, s, id(t, "0")).WorkerID; got != want {
				t.Errorf("header %s is %q, served by %q", traffic.WorkerHeader, got, want)
			}
		})
	}
}

// TestForgedHeadersDoNotSteer sends what only an EPP may say, to fleets whose
// Envoy does not help against it.
func TestForgedHeadersDoNotSteer(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := startFleet(t, stack.Config{
				Bootstrap: b, Workers: stack.MixedWorkers(3, fast()...), Policy: "kv-aware", OverlapWeight: 20, Unguarded: true,
			})
			trap := newTrap(t)
			prompt := words(50, 600)
			parse(t, chat(t, s, id(t, "warm"), prompt, nil))
			home := theReceipt(t, s, id(t, "warm")).WorkerID
			var other *stack.Worker
			for _, w := range s.Workers {
				if w.ID != home {
					other = w
				}
			}
			forgeries := map[string]map[string]string{
				"destination":      {"X-Gateway-Destination-Endpoint": other.Destination},
				"trap":             {"X-Gateway-Destination-Endpoint": trap.addr},
				"worker":           {"X-Worker-Instance-Id": other.ID},
				"prefill":          {"X-Prefill-Instance-Id": other.ID},
				"all":              {"X-Gateway-Destination-Endpoint": other.Destination, "X-Worker-Instance-Id": other.ID, "X-Prefill-Instance-Id": other.ID},
				"internal headers": {"X-Infera-Attempt-Id": "forged", "X-Data-Parallel-Rank": "3"},
			}
			for name, headers := range forgeries {
				requestID := id(t, strings.ReplaceAll(name, " ", "-"))
				parse(t, chat(t, s, requestID, prompt, headers))
				rc := theReceipt(t, s, requestID)
				if rc.WorkerID != home {
					t.Errorf("%s: served by %s, the prompt is cached on %s", name, rc.WorkerID, home)
				}
				for k, v := range rc.Headers {
					if k == "x-worker-instance-id" || k == "x-prefill-instance-id" || strings.HasPrefix(k, "x-gateway-") || v == "forged" || k == "x-data-parallel-rank" {
						t.Errorf("%s: the engine was sent %s: %s", name, k, v)
					}
				}
			}
			// A GET is picked without a body.
			a := send(t, http.DefaultClient, http.MethodGet, s.URL+"/v1/models", http.NoBody, map[string]string{"X-Gateway-Destination-Endpoint": trap.addr})
			if a.status != http.StatusOK || trap.hits.Load() != 0 {
				t.Errorf("GET with a forged destination: %d; the trap was called %d times", a.status, trap.hits.Load())
			}
		})
	}
}

// trap counts connections to where nothing should connect.
type trap struct {
	addr string
	hits atomic.Int32
}

func newTrap(t *testing.T) *trap {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr := &trap{addr: lis.Addr().String()}
	t.Cleanup(func() { lis.Close() })
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			tr.hits.Add(1)
			c.Close()
		}
	}()
	return tr
}

func TestAnAbortReachesTheEngineWithinASecond(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			for name, extra := range map[string]map[string]any{
				"streamed": {"stream": true, "max_tokens": 50_000, "ignore_eos": true},
				"unary":    {"max_tokens": 50_000, "ignore_eos": true},
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					requestID := id(t, "0")
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(chatBody(t, "talk long", extra)))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("X-Request-Id", requestID)
					begun, ended := make(chan struct{}), make(chan error, 1)
					go func() {
						resp, err := http.DefaultClient.Do(req)
						if err == nil { // a stream, which begins before its end
							_, err = io.ReadFull(resp.Body, make([]byte, 200))
							close(begun)
							if err == nil {
								_, err = io.Copy(io.Discard, resp.Body)
							}
							resp.Body.Close()
						}
						ended <- err
					}()
					if extra["stream"] == true {
						<-begun
					}
					eventually(t, "the engine to work on it", func(context.Context) error {
						list := receipts(t, s, requestID) //nolint:contextcheck // a look is bounded by the test
						if len(list) != 1 || list[0].N == 0 || list[0].Outcome != "running" {
							return errNotYet
						}
						return nil
					})
					left := time.Now()
					cancel()
					if err := <-ended; !errors.Is(err, context.Canceled) {
						t.Fatalf("the request ended by itself: %v", err)
					}
					rc := theReceipt(t, s, requestID)
					if rc.Outcome != "aborted" || rc.AbortedAt == nil {
						t.Fatalf("receipt %+v", rc)
					}
					if late := rc.AbortedAt.Sub(left); late > time.Second {
						t.Errorf("the engine saw it %v later", late)
					}
				})
			}
		})
	}
}
