package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/internal/simengine"
	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// rig is what the tests of this package share.
type rig struct {
	root, bin, envoy string

	mu     sync.Mutex
	shared map[string]*stack.Stack // by what tests call it
	tests  map[*testing.T]int
}

var theRig rig

func TestMain(m *testing.M) {
	code, err := theRig.run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// run prepares the programs, runs the tests, and ends the shared fleets.
func (r *rig) run(m *testing.M) (int, error) {
	var err error
	if r.root, err = filepath.Abs(".."); err != nil {
		return 1, err
	}
	if r.envoy, err = stack.FindEnvoy(r.root); err != nil {
		return 1, err
	}
	if r.bin = os.Getenv("POINTSMAN_BIN"); r.bin == "" {
		if r.bin, err = os.MkdirTemp("", "pointsman-e2e-"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(r.bin)
		build := exec.Command("go", "build", "-o", r.bin+"/", "./cmd/epp", "./cmd/forwarder", "./cmd/simworker", "./cmd/pointsman")
		build.Dir = r.root
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as they are shipped
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	code := m.Run()
	for name, s := range r.shared {
		if err := s.Close(); err != nil {
			return 1, fmt.Errorf("shared fleet %s: %w", name, err)
		}
	}
	return code, nil
}

// fast are engines that answer at once: tests that are not about time use them.
func fast() []string {
	return []string{
		"--prefill-tokens-per-s", "2000000", "--max-num-batched-tokens", "500000", "--decode-ms-per-step", "2",
		"--max-model-len", "1000000",
	}
}

// startFleet starts a fleet of its own for a test.
func startFleet(t *testing.T, cfg stack.Config) *stack.Stack {
	t.Helper()
	cfg.Bin, cfg.Envoy = theRig.bin, theRig.envoy
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, e := range s.EPPs {
				t.Log(e.Process().Tail())
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sharedFleet returns the fleet of three engines that harmless tests share, one
// for each bootstrap. Its EPP is kv-aware and asks the engines for token ids.
func sharedFleet(t *testing.T, b stack.Bootstrap) *stack.Stack {
	t.Helper()
	return theRig.share(t, b.String(), stack.Config{Bootstrap: b, Workers: stack.MixedWorkers(3, fast()...), Policy: "kv-aware", OverlapWeight: 20})
}

// share returns the fleet with that name, started with cfg by the first test
// that asks for it.
func (r *rig) share(t *testing.T, name string, cfg stack.Config) *stack.Stack {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.shared[name]; s != nil {
		return s
	}
	cfg.Bin, cfg.Envoy = r.bin, r.envoy
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.shared == nil {
		r.shared = make(map[string]*stack.Stack)
	}
	r.shared[name] = s
	return s
}

// bootstraps returns both ways a gateway follows a pick.
func bootstraps() []stack.Bootstrap {
	return []stack.Bootstrap{stack.OriginalDst, stack.OverrideHost}
}

// id returns a request id that no other test, and no other run of this one, uses.
func id(t *testing.T, suffix string) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' || r == '#' {
			return '-'
		}
		return r
	}, t.Name())
	return fmt.Sprintf("%s-%d-%s", name[max(0, len(name)-80):], theRig.number(t), suffix)
}

// number counts the tests that ask for it.
func (r *rig) number(t *testing.T) int {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.tests[t]
	if !known {
		if r.tests == nil {
			r.tests = make(map[*testing.T]int)
		}
		n = len(r.tests)
		r.tests[t] = n
	}
	return n
}

// receipts returns what the engines know of a request id, of engines that live.
func receipts(t *testing.T, s *stack.Stack, requestID string) []simengine.Receipt {
	t.Helper()
	ctx := t.Context()
	var all []simengine.Receipt
	for _, w := range s.Workers {
		if !w.Engine.Process().Running() {
			continue
		}
		raw, err := stack.Get(ctx, http.DefaultClient, w.Control+"/receipts?format=array&request_id="+requestID)
		if err != nil {
			t.Fatal(err)
		}
		var list []simengine.Receipt
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatalf("receipts of %s: %v", w.ID, err)
		}
		all = append(all, list...)
	}
	return all
}

// theReceipt waits until the one receipt of a request has ended, and returns it.
func theReceipt(t *testing.T, s *stack.Stack, requestID string) simengine.Receipt {
	t.Helper()
	var got simengine.Receipt
	eventually(t, "the end of request "+requestID, func(context.Context) error {
		list := receipts(t, s, requestID) //nolint:contextcheck // a look is bounded by the test
		if len(list) != 1 {
			return fmt.Errorf("%d receipts of %s, want 1: %+v", len(list), requestID, list)
		}
		if got = list[0]; got.EndedAt == nil {
			return fmt.Errorf("%s is %s", requestID, got.Outcome)
		}
		return nil
	})
	return got
}

// eventually fails the test when probe does not succeed within thirty seconds.
func eventually(t *testing.T, what string, probe func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := stack.Until(ctx, what, probe); err != nil {
		t.Fatal(err)
	}
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
	proto  string
}

// send sends a request and reads the answer. Transport errors fail the test.
func send(t *testing.T, client *http.Client, method, url string, body io.Reader, header map[string]string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %d, then: %v", method, url, resp.StatusCode, err)
	}
	return answer{resp.StatusCode, resp.Header, raw, resp.Proto}
}

// chat sends an unary chat of one user message and returns the answer.
func chat(t *testing.T, s *stack.Stack, requestID, text string, header map[string]string) answer {
	t.Helper()
	if header == nil {
		header = map[string]string{}
	}
	header["X-Request-Id"], header["Content-Type"] = requestID, "application/json"
	return send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(chatBody(t, text, nil)), header)
}

// chatBody returns a chat request of one user message, with extra fields.
func chatBody(t *testing.T, text string, extra map[string]any) []byte {
	t.Helper()
	body := map[string]any{
		"model": stack.DefaultModel, "max_tokens": 8,
		"messages": []traffic.Message{{Role: "user", Content: text}},
	}
	maps.Copy(body, extra)
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// completion is the part of an unary answer that tests look at.
type completion struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// parse checks that a is a whole unary completion.
func parse(t *testing.T, a answer) completion {
	t.Helper()
	var c completion
	if err := json.Unmarshal(a.body, &c); a.status != http.StatusOK || err != nil {
		t.Fatalf("status %d, %v: %.300s", a.status, err, a.body)
	}
	if len(c.Choices) != 1 || c.Choices[0].Message.Content == "" || c.Choices[0].FinishReason == "" {
		t.Fatalf("not a whole answer: %.300s", a.body)
	}
	return c
}

// sum is the SHA-256 that receipts carry.
func sum(b []byte) string {
	digest := sha256.Sum256(b)
	return hex.EncodeToString(digest[:])
}

// words returns n different words, each about one token, that seed decides.
func words(seed, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%c%c%c%c ", 'a'+(seed+i)%26, 'a'+(seed*7+i/26)%26, 'a'+(i/676)%26, 'a'+(seed/26+i)%26)
	}
	return b.String()
}

// workerOf returns the worker with the given ID.
func workerOf(t *testing.T, s *stack.Stack, workerID string) *stack.Worker {
	t.Helper()
	for _, w := range s.Workers {
		if w.ID == workerID {
			return w
		}
	}
	t.Fatalf("no worker %q", workerID)
	return nil
}

// errNotYet is what probes return without a reason of their own.
var errNotYet = errors.New("not yet")
