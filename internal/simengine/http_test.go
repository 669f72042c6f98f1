package simengine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"pointsman/internal/testkit"
)

// fast is a worker whose time hardly passes.
func fast() Config {
	cfg := DefaultConfig()
	cfg.Time.Scale = 1000
	cfg.KV.Port = -1
	return cfg
}

// start runs an engine for one test.
func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	e, err := Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// client keeps no connection, so that a test's end leaves none behind.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// got is the head of a response that was read to its end.
type got struct {
	StatusCode int
	Header     http.Header
}

// do sends one request.
func do(t *testing.T, method, url, body string, headers ...string) (got, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got{resp.StatusCode, resp.Header}, string(b)
}

func post(t *testing.T, url, body string, headers ...string) string {
	t.Helper()
	resp, b := do(t, http.MethodPost, url, body, headers...)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d: %s", body, resp.StatusCode, b)
	}
	return b
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// receipt waits for the n-th receipt to be closed.
func receipt(t *testing.T, e *Engine, n int) Receipt {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("receipt %d closed", n), func() bool {
		list := e.Receipts()
		return len(list) > n && list[n].EndedAt != nil
	}, func() string { return fmt.Sprintf("%+v", e.Receipts()) })
	return e.Receipts()[n]
}

// answer is what the tests read of any OpenAI answer.
type answer struct {
	ID, Object, Model string
	Choices           []struct {
		Index        int
		Text         string
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage *usage
	Error *struct {
		Message, Type string
		Param         *string
		Code          int
	}
}

// events splits a stream into its data fields.
func events(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	for block := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(block, "data: ")
		if !ok {
			t.Fatalf("not an event: %q", block)
		}
		out = append(out, data)
	}
	return out
}

// words is a prompt of about n tokens.
func words(n int) string {
	return strings.TrimSpace(strings.Join(generate(99, n), ""))
}

func TestUsageCountsWhatTheTokenizerSays(t *testing.T) {
	e := start(t, fast())
	for _, tc := range []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", `"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"` + words(50) + `"}]`},
		{"chat with tools", "/v1/chat/completions", `"messages":[{"role":"user","content":"` + words(20) + `"}],"tools":[{"type":"function","function":{"name":"f"}}]`},
		{"completion", "/v1/completions", `"prompt":"` + words(50) + `"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tok := decode[struct {
				Count, MaxModelLen int `json:"-"`
				N                  int `json:"count"`
				Max                int `json:"max_model_len"`
				Tokens             []uint32
			}](t, post(t, e.URL()+"/tokenize", "{"+tc.body+"}"))
			got := decode[answer](t, post(t, e.URL()+tc.path, `{"model":"sim-model","max_tokens":7,`+tc.body+`}`))
			if tok.N != len(tok.Tokens) || tok.Max != e.cfg.MaxModelLen {
				t.Errorf("/tokenize: count %d of %d tokens, max_model_len %d", tok.N, len(tok.Tokens), tok.Max)
			}
			u := got.Usage
			if u.PromptTokens != tok.N || u.CompletionTokens != 7 || u.TotalTokens != tok.N+7 {
				t.Errorf("usage %+v, want %d prompt tokens and 7 more", u, tok.N)
			}
		})
	}
}

func TestCachedTokensAreReported(t *testing.T) {
	e := start(t, fast())
	ask := func(prompt string) int {
		u := decode[answer](t, post(t, e.URL()+"/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, prompt))).Usage
		return u.Details.CachedTokens
	}
	prompt := words(100)
	for _, tc := range []struct {
		name, prompt string
		want         int
	}{
		{"a cold cache has nothing", prompt, 0},
		{"the same again has all full blocks", prompt, 96},
		{"a longer one has what they share", prompt + " more words that follow", 96},
		{"another one has nothing", "another " + prompt, 0},
	} {
		if got := ask(tc.prompt); got != tc.want {
			t.Errorf("%s: %d cached tokens, want %d", tc.name, got, tc.want)
		}
	}
	e.ClearCache()
	if got := ask(prompt); got != 0 {
		t.Errorf("after a clear: %d cached tokens", got)
	}
}

func TestAConversationHitsItsOwnAnswers(t *testing.T) {
	e := start(t, fast())
	first := `{"role":"user","content":"` + words(40) + `"}`
	a := decode[answer](t, post(t, e.URL()+"/v1/chat/completions", `{"max_tokens":64,"ignore_eos":true,"messages":[`+first+`]}`))
	b := decode[answer](t, post(t, e.URL()+"/v1/chat/completions",
		fmt.Sprintf(`{"max_tokens":1,"messages":[%s,{"role":"assistant","content":%q},{"role":"user","content":"go on"}]}`, first, a.Choices[0].Message.Content)))
	// All blocks of the first prompt and its answer but the last, whose final token was never computed.
	if want := (a.Usage.TotalTokens - 1) / 16 * 16; b.Usage.Details.CachedTokens != want {
		t.Errorf("the second turn had %d cached tokens, want %d of the first turn's %d", b.Usage.Details.CachedTokens, want, a.Usage.TotalTokens)
	}
}

func TestStreamSaysWhatTheUnaryAnswerSays(t *testing.T) {
	e := start(t, fast())
	for _, tc := range []struct{ name, path, body, object string }{
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"max_tokens":9,"n":3`, "chat.completion.chunk"},
		{"completion", "/v1/completions", `"prompt":["one","two"],"max_tokens":9`, "text_completion"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			whole := decode[answer](t, post(t, e.URL()+tc.path, "{"+tc.body+"}"))
			list := events(t, post(t, e.URL()+tc.path, "{"+tc.body+`,"stream":true,"stream_options":{"include_usage":true}}`))
			if last := list[len(list)-1]; last != "[DONE]" {
				t.Errorf("the last event is %q", last)
			}
			text := make([]string, len(whole.Choices))
			reason := make([]string, len(whole.Choices))
			var u *usage
			for _, raw := range list[:len(list)-1] {
				ev := decode[answer](t, raw)
				if ev.Object != tc.object || ev.Model != "sim-model" || ev.ID == "" {
					t.Fatalf("event %s", raw)
				}
				if len(ev.Choices) == 0 {
					u = ev.Usage
				}
				for _, c := range ev.Choices {
					if reason[c.Index] != "" {
						t.Errorf("choice %d goes on after its finish", c.Index)
					}
					text[c.Index] += c.Delta.Content + c.Text
					if c.FinishReason != nil {
						reason[c.Index] = *c.FinishReason
					}
				}
			}
			for i, c := range whole.Choices {
				if want := c.Message.Content + c.Text; text[i] != want || reason[i] != *c.FinishReason {
					t.Errorf("choice %d: %q (%s), unary %q (%s)", i, text[i], reason[i], want, *c.FinishReason)
				}
			}
			if u == nil || u.CompletionTokens != whole.Usage.CompletionTokens || u.PromptTokens != whole.Usage.PromptTokens {
				t.Errorf("usage %+v, unary %+v", u, whole.Usage)
			}
		})
	}
}

func TestNoUsageEventUnlessAskedFor(t *testing.T) {
	e := start(t, fast())
	body := post(t, e.URL()+"/v1/completions", `{"prompt":"hi","max_tokens":3,"stream":true}`)
	if strings.Contains(body, "usage") {
		t.Errorf("a stream nobody asked usage of has it: %s", body)
	}
}

func TestHowAnOutputEnds(t *testing.T) {
	e := start(t, fast())
	full := decode[answer](t, post(t, e.URL()+"/v1/completions", `{"prompt":"hi"}`))
	text, n := full.Choices[0].Text, full.Usage.CompletionTokens
	if n < 64 || n > 192 || *full.Choices[0].FinishReason != "stop" {
		t.Fatalf("an unbounded answer of %d tokens ended by %s", n, *full.Choices[0].FinishReason)
	}
	word := strings.Fields(text)[3]
	before, _, _ := strings.Cut(text, word)
	for _, tc := range []struct {
		name, fields, text, reason string
		tokens                     int
	}{
		{"max_tokens bounds it", `"max_tokens":2`, strings.Join(strings.Fields(text)[:2], " "), "length", 2},
		{"max_completion_tokens does too", `"max_completion_tokens":1`, strings.Fields(text)[0], "length", 1},
		{"a generous bound changes nothing", `"max_tokens":5000`, text, "stop", n},
		{"a stop string ends it before the string", `"stop":"` + word + `"`, before, "stop", 4},
		{"the first of several stop strings counts", `"stop":["` + strings.Fields(text)[9] + `","` + word + `"]`, before, "stop", 4},
		{"a stop string inside a word cuts the word", `"stop":"` + word[2:] + `"`, before + word[:2], "stop", 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := decode[answer](t, post(t, e.URL()+"/v1/completions", `{"prompt":"hi",`+tc.fields+`}`))
			if c := got.Choices[0]; c.Text != tc.text || *c.FinishReason != tc.reason || got.Usage.CompletionTokens != tc.tokens {
				t.Errorf("%q by %s, %d tokens; want %q by %s, %d", c.Text, *c.FinishReason, got.Usage.CompletionTokens, tc.text, tc.reason, tc.tokens)
			}
		})
	}
	got := decode[answer](t, post(t, e.URL()+"/v1/completions", `{"prompt":"hi","ignore_eos":true,"max_tokens":500}`))
	if got.Usage.CompletionTokens != 500 || *got.Choices[0].FinishReason != "length" {
		t.Errorf("ignore_eos: %d tokens by %s, want 500 by length", got.Usage.CompletionTokens, *got.Choices[0].FinishReason)
	}
	got = decode[answer](t, post(t, e.URL()+"/v1/completions", `{"prompt":"hi","min_tokens":300}`))
	if got.Usage.CompletionTokens != 300 {
		t.Errorf("min_tokens 300: %d tokens", got.Usage.CompletionTokens)
	}
}

func TestEveryWorkerGivesTheSameAnswer(t *testing.T) {
	a, b := start(t, fast()), start(t, fast())
	const body = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":20,"n":2}`
	x := decode[answer](t, post(t, a.URL()+"/v1/chat/completions", body))
	y := decode[answer](t, post(t, b.URL()+"/v1/chat/completions", body))
	if x.Choices[0].Message.Content != y.Choices[0].Message.Content {
		t.Error("two workers answer the same prompt differently")
	}
	if x.Choices[0].Message.Content == x.Choices[1].Message.Content {
		t.Error("two choices are the same text")
	}
}

func TestTokenIDPromptsAreUsedAsTheyAre(t *testing.T) {
	e := start(t, fast())
	one := decode[answer](t, post(t, e.URL()+"/v1/completions", `{"prompt":[5,6,7],"max_tokens":1}`))
	two := decode[answer](t, post(t, e.URL()+"/v1/completions", `{"prompt":[[5,6,7],[8,9]],"max_tokens":1}`))
	if one.Usage.PromptTokens != 3 || two.Usage.PromptTokens != 5 || len(two.Choices) != 2 {
		t.Errorf("usage %+v and %+v, %d choices", one.Usage, two.Usage, len(two.Choices))
	}
	if one.Choices[0].Text != two.Choices[0].Text {
		t.Error("the same ids gave other text in a list")
	}
}

func TestBOSIsAddedToPlainPromptsOnly(t *testing.T) {
	cfg := fast()
	cfg.BOS = true
	e := start(t, cfg)
	for _, tc := range []struct {
		name, body string
		want       int
	}{
		{"by default", `{"prompt":"hi"}`, 2},
		{"not when told not to", `{"prompt":"hi","add_special_tokens":false}`, 1},
		{"not by the chat template", `{"messages":[{"role":"user","content":"hi"}]}`, 4},
	} {
		if got := decode[struct{ Count int }](t, post(t, e.URL()+"/tokenize", tc.body)).Count; got != tc.want {
			t.Errorf("%s: %d tokens, want %d", tc.name, got, tc.want)
		}
	}
}

func TestBadRequestsGetAnErrorObject(t *testing.T) {
	cfg := fast()
	cfg.MaxModelLen = 1000
	cfg.Cache.Capacity = 50 // 800 tokens
	e := start(t, cfg)
	for _, tc := range []struct {
		name, path, body, param string
		status                  int
	}{
		{"malformed JSON", "/v1/chat/completions", `{"model`, "", 400},
		{"no object", "/v1/chat/completions", `null`, "", 400},
		{"an empty body", "/v1/chat/completions", ``, "", 400},
		{"another model", "/v1/chat/completions", `{"model":"x","messages":[{"role":"user","content":"a"}]}`, "model", 404},
		{"a model of a wrong type", "/v1/completions", `{"model":7,"prompt":"a"}`, "model", 400},
		{"no messages", "/v1/chat/completions", `{"messages":[]}`, "messages", 400},
		{"content of a wrong type", "/v1/chat/completions", `{"messages":[{"role":"user","content":7}]}`, "messages", 400},
		{"no prompt", "/v1/completions", `{}`, "prompt", 400},
		{"a prompt of a wrong type", "/v1/completions", `{"prompt":{"a":1}}`, "prompt", 400},
		{"negative token ids", "/v1/completions", `{"prompt":[-1]}`, "prompt", 400},
		{"n of zero", "/v1/completions", `{"prompt":"a","n":0}`, "n", 400},
		{"max_tokens of zero", "/v1/completions", `{"prompt":"a","max_tokens":0}`, "max_tokens", 400},
		{"an empty stop string", "/v1/completions", `{"prompt":"a","stop":""}`, "stop", 400},
		{"a prompt beyond the context", "/v1/completions", `{"prompt":"` + words(1001) + `"}`, "max_tokens", 400},
		{"more output than the context has room for", "/v1/completions", `{"prompt":"a","max_tokens":1000}`, "max_tokens", 400},
		{"more than the cache holds", "/v1/completions", `{"prompt":"a","max_tokens":900,"ignore_eos":true}`, "max_tokens", 400},
		{"an unknown fault", "/v1/completions", `{"prompt":"a"}`, "", 400},
		{"embeddings without input", "/v1/embeddings", `{}`, "input", 400},
		{"too many dimensions", "/v1/embeddings", `{"input":"a","dimensions":100000}`, "dimensions", 400},
		{"nothing to tokenize", "/tokenize", `{}`, "prompt", 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var headers []string
			if tc.name == "an unknown fault" {
				headers = []string{FaultHeader, "explode"}
			}
			resp, body := do(t, http.MethodPost, e.URL()+tc.path, tc.body, headers...)
			got := decode[answer](t, body)
			if resp.StatusCode != tc.status || got.Error == nil {
				t.Fatalf("status %d, want %d: %s", resp.StatusCode, tc.status, body)
			}
			if got.Error.Code != tc.status || got.Error.Message == "" || got.Error.Type == "" {
				t.Errorf("error object %s", body)
			}
			if (got.Error.Param == nil && tc.param != "") || (got.Error.Param != nil && *got.Error.Param != tc.param) {
				t.Errorf("param in %s, want %q", body, tc.param)
			}
		})
	}
	for _, r := range e.Receipts() {
		if r.Outcome != OutcomeRejected || r.Status < 400 || r.Error == "" {
			t.Errorf("receipt of a refused request: %+v", r)
		}
	}
	if l := e.sched.load(); l.running+l.waiting+l.used != 0 {
		t.Errorf("refused requests left %+v", l)
	}
}

func TestAPromptThatDoesNotFitTakesItsSiblingsWithIt(t *testing.T) {
	cfg := fast()
	cfg.Time.Scale = 1
	cfg.Cache.Capacity = 50 // 800 tokens
	e := start(t, cfg)
	resp, body := do(t, http.MethodPost, e.URL()+"/v1/completions", `{"prompt":["a","`+words(900)+`"],"max_tokens":100,"ignore_eos":true}`)
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d: %s", resp.StatusCode, body)
	}
	if l := e.sched.load(); l.running+l.waiting+l.used != 0 || l.lost != 1 {
		t.Errorf("the prompt that fits is left: %+v", l)
	}
}

func TestOtherPathsLeaveAReceipt(t *testing.T) {
	e := start(t, fast())
	resp, _ := do(t, http.MethodPost, e.URL()+"/v1/rerank", `{"input":"hi"}`, "X-Request-Id", "r9")
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status %d", resp.StatusCode)
	}
	if r := receipt(t, e, 0); r.Path != "/v1/rerank" || r.BytesIn != 14 || r.RequestID != "r9" || r.Outcome != OutcomeRejected {
		t.Errorf("receipt %+v", r)
	}
}

func TestAPIKeyGuardsV1Only(t *testing.T) {
	cfg := fast()
	cfg.APIKey = "secret"
	e := start(t, cfg)
	const body = `{"prompt":"hi","max_tokens":1}`
	for _, tc := range []struct {
		name, method, path string
		headers            []string
		status             int
	}{
		{"no key", "POST", "/v1/completions", nil, 401},
		{"a wrong key", "POST", "/v1/completions", []string{"Authorization", "Bearer other"}, 401},
		{"the key", "POST", "/v1/completions", []string{"Authorization", "Bearer secret"}, 200},
		{"the key as Anthropic's clients send it", "POST", "/v1/completions", []string{"X-Api-Key", "secret"}, 200},
		{"no key for models", "GET", "/v1/models", nil, 401},
		{"health needs none", "GET", "/health", nil, 200},
		{"tokenize needs none", "POST", "/tokenize", nil, 200},
	} {
		if resp, b := do(t, tc.method, e.URL()+tc.path, body, tc.headers...); resp.StatusCode != tc.status {
			t.Errorf("%s: status %d, want %d: %s", tc.name, resp.StatusCode, tc.status, b)
		}
	}
	if r := e.Receipts()[0]; r.Status != 401 || r.Authorization {
		t.Errorf("receipt of a request without a key: %+v", r)
	}
	if r := e.Receipts()[1]; !r.Authorization {
		t.Errorf("the receipt does not say that a key came: %+v", r)
	}
}

func TestModelsListTheModelAndItsAdapters(t *testing.T) {
	cfg := fast()
	cfg.LoRA = []string{"tuned"}
	e := start(t, cfg)
	_, body := do(t, http.MethodGet, e.URL()+"/v1/models", "")
	list := decode[struct {
		Object string
		Data   []modelCard
	}](t, body)
	if list.Object != "list" || len(list.Data) != 2 || list.Data[0].ID != "sim-model" || list.Data[1].Parent != "sim-model" {
		t.Errorf("models: %s", body)
	}
	prompt := words(40)
	post(t, e.URL()+"/v1/completions", `{"model":"sim-model","max_tokens":1,"prompt":"`+prompt+`"}`)
	u := decode[answer](t, post(t, e.URL()+"/v1/completions", `{"model":"tuned","max_tokens":1,"prompt":"`+prompt+`"}`)).Usage
	if u.Details.CachedTokens != 0 {
		t.Errorf("an adapter hit %d tokens of its base model", u.Details.CachedTokens)
	}
}

func TestMessagesAPI(t *testing.T) {
	e := start(t, fast())
	const body = `"model":"sim-model","max_tokens":5,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]`
	whole := decode[anthropicMessage](t, post(t, e.URL()+"/v1/messages", "{"+body+"}"))
	if whole.Type != "message" || *whole.StopReason != "max_tokens" || whole.Usage.Output != 5 || whole.Usage.Input == 0 {
		t.Errorf("message %+v", whole)
	}
	var names []string
	var text strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(post(t, e.URL()+"/v1/messages", "{"+body+`,"stream":true}`)), "\n\n") {
		head, data, _ := strings.Cut(block, "\n")
		name := strings.TrimPrefix(head, "event: ")
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
		text.WriteString(decode[struct {
			Delta struct{ Text string }
		}](t, strings.TrimPrefix(data, "data: ")).Delta.Text)
	}
	want := []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
	if !slices.Equal(names, want) || text.String() != whole.Content[0].Text {
		t.Errorf("events %v with text %q, want %v with %q", names, text.String(), want, whole.Content[0].Text)
	}
}

func TestEmbeddings(t *testing.T) {
	e := start(t, fast())
	type list struct {
		Data []struct {
			Embedding json.RawMessage
			Index     int
		}
		Usage usage
	}
	got := decode[list](t, post(t, e.URL()+"/v1/embeddings", `{"input":["a b c","d"],"dimensions":8}`))
	if len(got.Data) != 2 || got.Usage.PromptTokens != 4 || got.Usage.CompletionTokens != 0 {
		t.Fatalf("%+v", got)
	}
	v := decode[[]float32](t, string(got.Data[0].Embedding))
	norm := float32(0)
	for _, x := range v {
		norm += x * x
	}
	if len(v) != 8 || norm < 0.99 || norm > 1.01 {
		t.Errorf("a vector of %d with norm² %g", len(v), norm)
	}
	coded := decode[list](t, post(t, e.URL()+"/v1/embeddings", `{"input":"a b c","dimensions":8,"encoding_format":"base64"}`))
	raw, err := base64.StdEncoding.DecodeString(decode[string](t, string(coded.Data[0].Embedding)))
	if err != nil || len(raw) != 32 {
		t.Errorf("base64 of %d bytes: %v", len(raw), err)
	}
	if r := receipt(t, e, 1); r.TokensSent != 0 || r.Outcome != OutcomeComplete {
		t.Errorf("receipt %+v", r)
	}
}

func TestMetricsNamesAndValues(t *testing.T) {
	cfg := fast()
	cfg.Engine = "sglang"
	e := start(t, cfg)
	post(t, e.URL()+"/v1/completions", `{"prompt":"`+words(32)+`","max_tokens":4}`)
	post(t, e.URL()+"/v1/completions", `{"prompt":"`+words(32)+`","max_tokens":4}`)
	_, body := do(t, http.MethodGet, e.URL()+"/metrics", "")
	for _, want := range []string{
		`vllm:num_requests_running{model_name="sim-model"} 0`,
		`vllm:num_requests_waiting{model_name="sim-model"} 0`,
		`vllm:kv_cache_usage_perc{model_name="sim-model"} 0`,
		`vllm:gpu_cache_usage_perc{model_name="sim-model"} 0`,
		`vllm:prefix_cache_queries_total{model_name="sim-model"} 64`,
		`vllm:prefix_cache_hits_total{model_name="sim-model"} 16`,
		`vllm:prompt_tokens_total{model_name="sim-model"} 48`,
		`vllm:generation_tokens_total{model_name="sim-model"} 8`,
		`vllm:request_success_total{model_name="sim-model"} 2`,
		`block_size="16"`,
		`sglang:num_running_reqs{model_name="sim-model"} 0`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

func TestReceiptKeepsWhatCame(t *testing.T) {
	e := start(t, fast())
	const body = `{"prompt":"hi there","max_tokens":3,"stream":true,"priority":1}`
	post(
		t, e.URL()+"/v1/completions", body,
		"X-Request-Id", "r1", "X-Infera-Request-Id", "i1", "X-Infera-Attempt-Id", "r1/m1",
		"Authorization", "Bearer k", "Traceparent", "00-1-2-01", "X-Data-Parallel-Rank", "3",
	)
	r := receipt(t, e, 0)
	for name, ok := range map[string]bool{
		"ids":           r.RequestID == "r1" && r.InferaRequestID == "i1" && r.AttemptID == "r1/m1",
		"path":          r.Method == http.MethodPost && r.Path == "/v1/completions" && r.Proto == "HTTP/1.1" && r.Leg == "mixed",
		"body":          r.BytesIn == int64(len(body)) && len(r.BodySHA256) == 64 && r.ContentLength == int64(len(body)),
		"fields":        slices.Equal(r.BodyFields, []string{"max_tokens", "priority", "prompt", "stream"}),
		"tokens":        r.PromptTokens == 3 && r.TokensSent == 3 && r.EventsSent == 4,
		"authorization": r.Authorization && r.Headers["authorization"] == "",
		"headers":       r.Headers["traceparent"] == "00-1-2-01" && r.Headers["x-data-parallel-rank"] == "3",
		"outcome":       r.Outcome == OutcomeComplete && r.Status == 200 && r.Finish == "length" && r.AbortedAt == nil,
		"times":         r.StartedAt != nil && r.FirstTokenAt != nil && !r.FirstTokenAt.Before(*r.StartedAt) && !r.EndedAt.Before(*r.FirstTokenAt),
	} {
		if !ok {
			t.Errorf("%s in %+v", name, r)
		}
	}
}

func TestReceiptsOverHTTP(t *testing.T) {
	cfg := fast()
	cfg.ReceiptsLimit = 3
	e := start(t, cfg)
	for i := range 5 {
		post(t, e.URL()+"/v1/completions", `{"prompt":"hi","max_tokens":1}`, "X-Request-Id", fmt.Sprint("r", i))
	}
	receipt(t, e, 2)
	_, lines := do(t, http.MethodGet, e.URL()+"/receipts", "")
	if got := strings.Count(lines, "\n"); got != 3 || !strings.HasPrefix(lines, `{"seq":2,`) {
		t.Errorf("%d receipts of 5 kept, want the last 3:\n%s", got, lines)
	}
	_, array := do(t, http.MethodGet, e.URL()+"/receipts?format=array&request_id=r4", "")
	if list := decode[[]Receipt](t, array); len(list) != 1 || list[0].RequestID != "r4" {
		t.Errorf("selected %s", array)
	}
	if resp, _ := do(t, http.MethodDelete, e.URL()+"/receipts", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: status %d", resp.StatusCode)
	}
	if n := len(e.Receipts()); n != 0 {
		t.Errorf("%d receipts after DELETE", n)
	}
}

func TestOfficialClient(t *testing.T) {
	cfg := fast()
	cfg.APIKey = "secret"
	e := start(t, cfg)
	c := openai.NewClient(option.WithBaseURL(e.URL()+"/v1"), option.WithAPIKey("secret"), option.WithMaxRetries(0), option.WithHTTPClient(client))
	params := openai.ChatCompletionNewParams{
		Model: "sim-model", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
		MaxCompletionTokens: openai.Int(6), StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	stream := c.Chat.Completions.NewStreaming(t.Context(), params)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatal("a chunk does not belong to the answer before it")
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	whole, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if got := acc.Choices[0].Message.Content; got != whole.Choices[0].Message.Content || got == "" {
		t.Errorf("streamed %q, unary %q", got, whole.Choices[0].Message.Content)
	}
	if acc.Usage.CompletionTokens != 6 || whole.Usage.CompletionTokens != 6 {
		t.Errorf("usage %d and %d, want 6", acc.Usage.CompletionTokens, whole.Usage.CompletionTokens)
	}
}

func TestALargeBodyIsTaken(t *testing.T) {
	cfg := fast()
	cfg.MaxModelLen = 2_000_000
	e := start(t, cfg)
	prompt := words(400_000) // 2 MB
	var buf bytes.Buffer
	fmt.Fprintf(&buf, `{"prompt":"%s","max_tokens":1}`, prompt)
	got := decode[answer](t, post(t, e.URL()+"/v1/completions", buf.String()))
	if got.Usage.PromptTokens != 400_000 {
		t.Errorf("%d prompt tokens", got.Usage.PromptTokens)
	}
	if r := receipt(t, e, 0); r.BytesIn != int64(buf.Len()) {
		t.Errorf("receipt of %d bytes, sent %d", r.BytesIn, buf.Len())
	}
}
