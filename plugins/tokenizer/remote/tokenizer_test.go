package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/prompt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine renders <role>content for each message and answers one id per byte.
type fakeEngine struct {
	*httptest.Server
	calls  atomic.Int32
	status atomic.Int32
	hold   chan struct{} // when set, an answer waits for it or for the client to leave
	came   chan struct{} // gets one element per call
	mu     sync.Mutex
	last   []byte
}

func newEngine(t *testing.T) *fakeEngine {
	t.Helper()
	e := &fakeEngine{came: make(chan struct{}, 1000)}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.last = body
	e.mu.Unlock()
	e.calls.Add(1)
	e.came <- struct{}{}
	if e.hold != nil {
		select {
		case <-e.hold:
		case <-r.Context().Done():
			return
		}
	}
	if s := e.status.Load(); s != 0 {
		w.WriteHeader(int(s))
		return
	}
	var q struct {
		Prompt   *string
		Messages []struct{ Role, Content string }
		Tools    []json.RawMessage
	}
	if r.URL.Path != "/tokenize" || r.Method != http.MethodPost || json.Unmarshal(body, &q) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	text := strings.Repeat("T", len(q.Tools))
	for _, m := range q.Messages {
		text += "<" + m.Role + ">" + m.Content
	}
	if q.Prompt != nil {
		text = *q.Prompt
	}
	ids := []int{}
	for _, c := range []byte(text) {
		ids = append(ids, int(c))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": nil})
}

func (e *fakeEngine) question() map[string]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	var q map[string]any
	_ = json.Unmarshal(e.last, &q)
	return q
}

func worker(id, url string) *fleet.Worker {
	return &fleet.Worker{ID: id, URL: url, Model: "m", Status: fleet.Active, DPRank: -1}
}

func newTokenizer(t *testing.T, cfg Config, workers ...*fleet.Worker) (*Tokenizer, *bytes.Buffer) {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	var store fleet.Store
	fleet.NewFeed(&store).Replace(workers)
	var out bytes.Buffer
	tok := New(cfg, &store, slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(tok.Close)
	return tok, &out
}

// patient is the default tuning with time for a loaded machine.
func patient() Config {
	cfg := DefaultConfig()
	cfg.Timeout = 30 * time.Second
	return cfg
}

func scan(t *testing.T, kind prompt.Kind, body string) *prompt.Request {
	t.Helper()
	var r prompt.Request
	if err := r.Scan(kind, nil, []byte(body)); err != nil {
		t.Fatal(err)
	}
	return &r
}

func text(ids []uint32) string {
	var out []byte
	for _, id := range ids {
		out = append(out, byte(id))
	}
	return string(out)
}

func TestTheIdsAreTheWorkers(t *testing.T) {
	e := newEngine(t)
	tok, _ := newTokenizer(t, patient(), worker("a", e.URL))
	for _, tt := range []struct {
		kind prompt.Kind
		body string
		want string
	}{
		{prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"h\u0069"}],"tools":[{"type":"function"}]}`, "T<user>hi"},
		{prompt.Completions, `{"model":"m","prompt":"once\n"}`, "once\n"},
		{prompt.Completions, `{"model":"m","prompt":["first","second"]}`, "first"},
	} {
		ids, err := tok.Tokenize(t.Context(), scan(t, tt.kind, tt.body), []uint32{'>'})
		if err != nil || text(ids) != ">"+tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.body, text(ids), err, tt.want)
		}
	}
}

func TestTheQuestionSaysAllThatTheRequestSays(t *testing.T) {
	e := newEngine(t)
	tok, _ := newTokenizer(t, patient(), worker("a", e.URL))
	ask := func(kind prompt.Kind, body string) string {
		if _, err := tok.Tokenize(t.Context(), scan(t, kind, body), nil); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		q, err := json.Marshal(e.question())
		if err != nil {
			t.Fatal(err)
		}
		return string(q)
	}
	for _, tt := range []struct {
		kind       prompt.Kind
		body, want string
	}{
		{prompt.Completions, `{"model":"m","prompt":"a\"b","max_tokens":3}`, `{"add_special_tokens":true,"model":"m","prompt":"a\"b"}`},
		{prompt.Completions, `{"model":"m","prompt":"x","add_special_tokens":false}`, `{"add_special_tokens":false,"model":"m","prompt":"x"}`},
		{prompt.Chat, `{"model":"m","messages":[],"tools":null,"stream":true}`, `{"add_generation_prompt":true,"messages":[],"model":"m"}`},
		{
			prompt.Chat, `{"model":"m","messages":[],"add_generation_prompt":false,"continue_final_message":true,"chat_template_kwargs":{"enable_thinking":false},"chat_template":"t","add_special_tokens":true,"tool_choice":"auto","tools":[1]}`,
			`{"add_generation_prompt":false,"add_special_tokens":true,"chat_template":"t","chat_template_kwargs":{"enable_thinking":false},"continue_final_message":true,"messages":[],"model":"m","tools":[1]}`,
		},
		{prompt.Chat, `{"model":"m","messages":[],"continue_final_message":true}`, `{"continue_final_message":true,"messages":[],"model":"m"}`},
	} {
		if got := ask(tt.kind, tt.body); got != tt.want {
			t.Errorf("question for %s:\n got %s\nwant %s", tt.body, got, tt.want)
		}
	}
}

func TestWhatTokenizeCannotTellIsNotAsked(t *testing.T) {
	e := newEngine(t)
	cfg := patient()
	cfg.MaxPromptBytes = 1000
	tok, _ := newTokenizer(t, cfg, worker("a", e.URL))
	for _, tt := range []struct {
		kind prompt.Kind
		body string
		want error
	}{
		{prompt.Messages, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m","messages":[],"documents":[{}]}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m","messages":[],"reasoning_effort":"low"}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m","messages":[],"functions":[]}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m","messages":[],"truncate_prompt_tokens":5}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m","messages":[],"tools":[{}],"tool_choice":"none"}`, ErrUnsupported},
		{prompt.Chat, `{"model":"m"}`, ErrUnsupported},
		{prompt.Completions, `{"model":"m"}`, ErrUnsupported},
		{prompt.Completions, `{"model":"m","prompt":"x","prompt_embeds":"y"}`, ErrUnsupported},
		{prompt.Completions, `{"model":"m","prompt":"x","truncate_prompt_tokens":5}`, ErrUnsupported},
		{prompt.Completions, `{"model":"m","prompt":"` + strings.Repeat("x", 1001) + `"}`, ErrTooLong},
		{prompt.Chat, `{"model":"m","messages":[{"role":"` + strings.Repeat("x", 1001) + `"}]}`, ErrTooLong},
		{prompt.Chat, `{"model":"other","messages":[]}`, ErrNoWorker},
	} {
		ids, err := tok.Tokenize(t.Context(), scan(t, tt.kind, tt.body), []uint32{1})
		if !errors.Is(err, tt.want) || len(ids) != 1 {
			t.Errorf("%s: %v, %v; want %v", tt.body, ids, err, tt.want)
		}
	}
	if n := e.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestOnlyActiveWorkersOfTheModelAreAsked(t *testing.T) {
	e, other := newEngine(t), newEngine(t)
	draining := worker("b", other.URL)
	draining.Status = fleet.Draining
	foreign := worker("c", other.URL)
	foreign.Model = "n"
	tok, _ := newTokenizer(t, patient(), worker("a", e.URL), draining, foreign)
	for i := range 6 {
		body := `{"model":"m","prompt":"` + strings.Repeat("x", i+1) + `"}`
		if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, body), nil); err != nil {
			t.Fatal(err)
		}
	}
	if e.calls.Load() != 6 || other.calls.Load() != 0 {
		t.Errorf("%d and %d calls", e.calls.Load(), other.calls.Load())
	}
}

func TestQuestionsSpreadOverTheWorkers(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	tok, _ := newTokenizer(t, patient(), worker("a", a.URL), worker("b", b.URL))
	for i := range 10 {
		body := `{"model":"m","prompt":"` + strings.Repeat("x", i+1) + `"}`
		if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, body), nil); err != nil {
			t.Fatal(err)
		}
	}
	if a.calls.Load() != 5 || b.calls.Load() != 5 {
		t.Errorf("%d and %d calls", a.calls.Load(), b.calls.Load())
	}
}

func TestAnEqualRequestIsNotAskedTwice(t *testing.T) {
	e := newEngine(t)
	tok, _ := newTokenizer(t, patient(), worker("a", e.URL))
	for range 3 {
		for _, body := range []string{`{"model":"m","prompt":"abc","seed":1}`, `{"seed":2,"prompt":"abc","model":"m"}`, `{"model":"m","prompt":"abd"}`} {
			if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, body), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := e.calls.Load(); n != 2 {
		t.Errorf("%d calls for two different prompts", n)
	}
	reg := prometheus.NewRegistry()
	if err := tok.Register(reg); err != nil {
		t.Fatal(err)
	}
	if hits := testutil.ToFloat64(tok.metrics.hits); hits != 7 {
		t.Errorf("%v hits", hits)
	}
	if ok := testutil.ToFloat64(tok.metrics.results.WithLabelValues("ok")); ok != 9 {
		t.Errorf("%v results", ok)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != len(reasons())+3 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestAnotherTokenizerIsAskedAgain(t *testing.T) {
	e := newEngine(t)
	var store fleet.Store
	tok := New(patient(), &store, slog.New(slog.DiscardHandler))
	defer tok.Close()
	for i, canary := range [][]uint32{{1}, {1}, {2}} {
		w := worker("a", e.URL)
		w.Canary = canary
		fleet.NewFeed(&store).Put(w)
		if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, `{"model":"m","prompt":"abc"}`), nil); err != nil {
			t.Fatal(err)
		}
		if n, want := e.calls.Load(), []int32{1, 1, 2}[i]; n != want {
			t.Errorf("%d calls after canary %v, want %d", n, canary, want)
		}
	}
}

func TestEqualRequestsAtOnceShareOneExchange(t *testing.T) {
	for name, cacheBytes := range map[string]int{"with a cache": 1 << 20, "without": 0} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			e.hold = make(chan struct{})
			cfg := patient()
			cfg.CacheBytes = cacheBytes
			tok, _ := newTokenizer(t, cfg, worker("a", e.URL))
			var wg sync.WaitGroup
			run := func() {
				r := scan(t, prompt.Completions, `{"model":"m","prompt":"abc"}`)
				wg.Go(func() {
					if ids, err := tok.Tokenize(t.Context(), r, nil); err != nil || text(ids) != "abc" {
						t.Errorf("%q, %v", text(ids), err)
					}
				})
			}
			run()
			<-e.came // the first leads; whoever comes now finds it asking
			for range 20 {
				run()
			}
			close(e.hold)
			wg.Wait()
			// One that comes after the answer asks again when nothing is kept.
			if n := e.calls.Load(); n != 1 && cacheBytes > 0 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

func TestASilentWorkerCostsTheTimeoutAndThenNothing(t *testing.T) {
	e := newEngine(t)
	e.hold = make(chan struct{})
	cfg := DefaultConfig()
	cfg.Timeout, cfg.Cooldown = 5*time.Millisecond, time.Hour
	tok, log := newTokenizer(t, cfg, worker("a", e.URL))
	r := scan(t, prompt.Completions, `{"model":"m","prompt":"abc"}`)
	for range cfg.Failures {
		if _, err := tok.Tokenize(t.Context(), r, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Tokenize = %v, want a timeout", err)
		}
	}
	calls := e.calls.Load()
	if _, err := tok.Tokenize(t.Context(), r, nil); !errors.Is(err, ErrSkipped) {
		t.Errorf("after %d failures: %v", cfg.Failures, err)
	}
	if e.calls.Load() != calls || strings.Count(log.String(), "workers fail to tokenize") != 1 {
		t.Errorf("%d calls, log:\n%s", e.calls.Load(), log)
	}
	if n := testutil.ToFloat64(tok.metrics.results.WithLabelValues("timeout")); n != float64(cfg.Failures) {
		t.Errorf("%v timeouts counted", n)
	}
}

func TestAfterTheCooldownOneQuestionFindsTheWorkerWell(t *testing.T) {
	e := newEngine(t)
	e.status.Store(500)
	cfg := patient()
	cfg.Cooldown = time.Nanosecond
	tok, log := newTokenizer(t, cfg, worker("a", e.URL))
	r := scan(t, prompt.Completions, `{"model":"m","prompt":"abc"}`)
	for range cfg.Failures + 2 {
		var status *StatusError
		if _, err := tok.Tokenize(t.Context(), r, nil); !errors.As(err, &status) || status.Code != 500 || status.Worker != "a" {
			t.Fatalf("Tokenize = %v", err)
		}
	}
	e.status.Store(0)
	if _, err := tok.Tokenize(t.Context(), r, nil); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "workers tokenize again") {
		t.Errorf("log:\n%s", log)
	}
}

func TestARefusedRequestIsNotTheWorkersFault(t *testing.T) {
	e := newEngine(t)
	cfg := patient()
	cfg.Cooldown = time.Hour
	tok, _ := newTokenizer(t, cfg, worker("a", e.URL))
	good := scan(t, prompt.Completions, `{"model":"m","prompt":"good"}`)
	if _, err := tok.Tokenize(t.Context(), good, nil); err != nil {
		t.Fatal(err)
	}
	e.status.Store(400)
	bad := scan(t, prompt.Completions, `{"model":"m","prompt":"bad"}`)
	for range cfg.Failures + 3 {
		if _, err := tok.Tokenize(t.Context(), bad, nil); reason(err) != "status" {
			t.Fatalf("Tokenize = %v", err)
		}
	}
	// Chats have never been tokenized: refusing them all means not knowing them.
	chat := scan(t, prompt.Chat, `{"model":"m","messages":[]}`)
	for range cfg.Failures {
		if _, err := tok.Tokenize(t.Context(), chat, nil); reason(err) != "status" {
			t.Fatalf("Tokenize = %v", err)
		}
	}
	if _, err := tok.Tokenize(t.Context(), chat, nil); !errors.Is(err, ErrSkipped) {
		t.Errorf("chats after %d refusals: %v", cfg.Failures, err)
	}
	if _, err := tok.Tokenize(t.Context(), bad, nil); reason(err) != "status" {
		t.Errorf("texts must still be asked for: %v", err)
	}
}

func TestAnUnreachableWorkerIsReplacedByAnother(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + l.Addr().String()
	l.Close()
	e := newEngine(t)
	tok, _ := newTokenizer(t, patient(), worker("a", gone), worker("b", e.URL))
	for i := range 6 {
		body := `{"model":"m","prompt":"` + strings.Repeat("x", i+1) + `"}`
		if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, body), nil); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	tok, _ = newTokenizer(t, patient(), worker("a", gone))
	if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, `{"model":"m","prompt":"x"}`), nil); reason(err) != "connection" {
		t.Errorf("%v", err)
	}
}

func TestAClientThatLeavesIsNotAFailure(t *testing.T) {
	e := newEngine(t)
	e.hold = make(chan struct{})
	cfg := patient()
	cfg.Failures, cfg.Cooldown = 1, time.Hour
	tok, _ := newTokenizer(t, cfg, worker("a", e.URL))
	r := scan(t, prompt.Completions, `{"model":"m","prompt":"abc"}`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-e.came
		cancel()
	}()
	if _, err := tok.Tokenize(ctx, r, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Tokenize = %v", err)
	}
	close(e.hold)
	if _, err := tok.Tokenize(t.Context(), r, nil); err != nil {
		t.Errorf("the next: %v", err)
	}
}

func TestOpenExchangesAreBounded(t *testing.T) {
	e := newEngine(t)
	e.hold = make(chan struct{})
	cfg := patient()
	cfg.Concurrency = 1
	tok, _ := newTokenizer(t, cfg, worker("a", e.URL))
	first := scan(t, prompt.Completions, `{"model":"m","prompt":"abc"}`)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := tok.Tokenize(t.Context(), first, nil); err != nil {
			t.Error(err)
		}
	})
	<-e.came
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := tok.Tokenize(ctx, scan(t, prompt.Completions, `{"model":"m","prompt":"abd"}`), nil); !errors.Is(err, ErrBusy) {
		t.Errorf("Tokenize = %v", err)
	}
	close(e.hold)
	wg.Wait()
	if n := e.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestNonsenseFromAWorkerIsNotTokens(t *testing.T) {
	for _, answer := range []string{`{"count":2,"tokens":[1]}`, `{"tokens":[-1]}`, `{}`, `<html>`, ``, `{"tokens":[1,2`} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		tok, _ := newTokenizer(t, patient(), worker("a", srv.URL))
		ids, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, `{"model":"m","prompt":"x"}`), []uint32{7})
		if !errors.Is(err, prompt.ErrAnswer) || !slices.Equal(ids, []uint32{7}) {
			t.Errorf("%q: %v, %v", answer, ids, err)
		}
		tok.Close()
		srv.Close()
	}
}

// A worker could otherwise send this router anywhere.
func TestRedirectsAreNotFollowed(t *testing.T) {
	e := newEngine(t)
	srv := httptest.NewServer(http.RedirectHandler(e.URL+"/tokenize", http.StatusTemporaryRedirect))
	defer srv.Close()
	tok, _ := newTokenizer(t, patient(), worker("a", srv.URL))
	if _, err := tok.Tokenize(t.Context(), scan(t, prompt.Completions, `{"model":"m","prompt":"x"}`), nil); reason(err) != "status" || e.calls.Load() != 0 {
		t.Errorf("%v, %d calls", err, e.calls.Load())
	}
	tok.Close()
}

// The whole way: a growing conversation stays exact, and its blocks are a
// beginning of the next turn's.
func TestAGrowingConversationIsExactAtEachTurn(t *testing.T) {
	e := newEngine(t)
	tok, _ := newTokenizer(t, patient(), worker("a", e.URL))
	p := prompt.NewPreparer(prompt.Config{}, tok)
	var body strings.Builder
	body.WriteString(`{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat("s", 40) + `"}`)
	var last []uint64
	for turn := range 10 {
		body.WriteString(`,{"role":"user","content":"` + strings.Repeat("u", turn*5) + `"}`)
		var out prompt.Prepared
		p.Prepare(t.Context(), scan(t, prompt.Chat, body.String()+`]}`), []int{4}, &out)
		if out.Reason != prompt.ReasonExact || out.Approx || len(out.Blocks) != 1 || len(out.Blocks[0].Hashes) != out.Tokens/4 {
			t.Fatalf("turn %d: %+v", turn, out)
		}
		if hs := out.Blocks[0].Hashes; !slices.Equal(hs[:len(last)], last) {
			t.Fatalf("turn %d changes the blocks before it", turn)
		}
		last = slices.Clone(out.Blocks[0].Hashes)
	}
	if n := e.calls.Load(); n != 10 {
		t.Errorf("%d calls", n)
	}
}
