package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman/internal/simengine"
	"pointsman/kvindex"
	"pointsman/prompt"
	"pointsman/prompt/local"
	"pointsman/prompt/template"
)

const tinyTemplate = `{%- for m in messages %}{%- if m.role == 'critic' %}{{ raise_exception('no critics') }}{%- endif %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// tokensModel makes a directory with a small real tokenizer and a chat template.
func tokensModel(t *testing.T, tokenizer, jinja string) string {
	t.Helper()
	dir := t.TempDir()
	if tokenizer != "" {
		raw, err := os.ReadFile("../../prompt/tokens/testdata/golden/" + tokenizer + "/tokenizer.json")
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "tokenizer.json"), string(raw))
	}
	if jinja != "" {
		writeFile(t, filepath.Join(dir, "chat_template.jinja"), jinja)
	}
	return dir
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func bodyFile(t *testing.T, body string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "body.json"), body)
}

// askTokens runs the command with --json and decodes its answer.
func askTokens(t *testing.T, body string, args ...string) (tokensReport, error) {
	t.Helper()
	out, err := run(t, append([]string{"tokens", "--json", "--body", bodyFile(t, body)}, args...)...)
	var report tokensReport
	if bad := json.Unmarshal([]byte(out), &report); bad != nil && (err == nil || errors.Is(err, errDiffer)) {
		t.Fatalf("%v: %s", bad, out)
	}
	return report, err
}

const longChat = `{"model":"m","messages":[{"role":"user","content":"the quick brown fox jumps over the lazy dog again and again"}]}`

func TestTokensPrintsWhatTheRouterMatchesBy(t *testing.T) {
	dir := tokensModel(t, "qwen2", tinyTemplate)
	report, err := askTokens(t, longChat, "--model", dir, "--block-size", "8", "--ids", "--text")
	if err != nil {
		t.Fatal(err)
	}
	if !report.Exact || report.Reason != prompt.ReasonExact || report.Tokens != len(report.IDs) || report.Bytes != len(report.Text) {
		t.Errorf("%+v", report)
	}
	if want := "<|im_start|>user\nthe quick brown fox jumps over the lazy dog again and again<|im_end|>\n<|im_start|>assistant\n"; report.Text != want {
		t.Errorf("text %q, want %q", report.Text, want)
	}
	files, err := local.Open(dir, template.VLLM)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := files.Tokenizer().Encode(nil, []byte(report.Text), false)
	if err != nil {
		t.Fatal(err)
	}
	hashes := kvindex.HashTokens(nil, 0, ids, 8)
	if len(hashes) < 3 || len(report.Blocks) != len(hashes) || report.LeftOver != len(ids)-8*len(hashes) {
		t.Fatalf("%d blocks, %d left over of %d ids", len(report.Blocks), report.LeftOver, len(ids))
	}
	out, err := run(t, "tokens", "--body", bodyFile(t, longChat), "--model", dir, "--block-size", "8")
	if err != nil {
		t.Fatal(err)
	}
	mustSay(t, out, "chat, model m", "reason exact", report.Blocks[0], report.Blocks[len(hashes)-1])
	if strings.Contains(out, "quick") {
		t.Errorf("the prompt's text is printed without --text:\n%s", out)
	}
}

func TestBlocksOfASaltedPromptAreOthers(t *testing.T) {
	dir := tokensModel(t, "qwen2", tinyTemplate)
	plain, err := askTokens(t, longChat, "--model", dir, "--block-size", "4")
	if err != nil {
		t.Fatal(err)
	}
	salted, err := askTokens(t, strings.Replace(longChat, "{", `{"cache_salt":"s",`, 1), "--model", dir, "--block-size", "4")
	if err != nil || salted.Tokens != plain.Tokens || salted.Blocks[0] == plain.Blocks[0] {
		t.Errorf("%v: %+v and %+v", err, plain, salted)
	}
}

func TestTheEndpointIsToldByTheBody(t *testing.T) {
	dir := tokensModel(t, "qwen2", tinyTemplate)
	for _, tt := range []struct {
		name, body, endpoint, reason string
		args                         []string
		exact                        bool
	}{
		{"messages are a chat", longChat, "chat", prompt.ReasonExact, nil, true},
		{"a prompt is a completion", `{"model":"m","prompt":"the quick brown fox jumps over it"}`, "completions", prompt.ReasonExact, nil, true},
		{"ids are taken as they are", `{"model":"m","prompt":[1,2,3,4,5]}`, "completions", prompt.ReasonExact, nil, true},
		{"a system key is Anthropic's", strings.Replace(longChat, "{", `{"system":"s",`, 1), "messages", prompt.ReasonNoTokens, nil, false},
		{"as the flag says", longChat, "messages", prompt.ReasonNoTokens, []string{"--endpoint", "messages"}, false},
		{"images are not tokens here", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}}]}]}`, "chat", prompt.ReasonMultimodal, nil, false},
		{"less than a block", `{"model":"m","prompt":"a"}`, "completions", prompt.ReasonShortPrompt, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			report, err := askTokens(t, tt.body, append(tt.args, "--model", dir, "--block-size", "4")...)
			if err != nil || report.Endpoint != tt.endpoint || report.Reason != tt.reason || report.Exact != tt.exact {
				t.Errorf("%v: %+v", err, report)
			}
			if !tt.exact && report.Note == "" {
				t.Error("it does not say why it is approximated")
			}
		})
	}
}

func TestTokensSaysWhatIsWrong(t *testing.T) {
	good := tokensModel(t, "qwen2", tinyTemplate)
	unigram := t.TempDir()
	writeFile(t, filepath.Join(unigram, "tokenizer.json"), `{"model":{"type":"Unigram","vocab":[]}}`)
	cut := t.TempDir()
	writeFile(t, filepath.Join(cut, "tokenizer.json"), `{"model":{"type":"BPE","vocab":{"a"`)
	for _, tt := range []struct {
		name string
		args []string
		body string
		want []string
	}{
		{"no --model", nil, longChat, []string{"--model"}},
		{"no tokenizer.json", []string{"--model", t.TempDir()}, longChat, []string{"holds no tokenizer", "tokenizer.json"}},
		{"a refused tokenizer", []string{"--model", unigram}, longChat, []string{"refused because of its model", "Unigram"}},
		{"a tokenizer that is cut off", []string{"--model", cut}, longChat, []string{"cannot be used", "malformed"}},
		{"a refused template", []string{"--model", tokensModel(t, "qwen2", "a\n{% include 'b' %}")}, longChat, []string{"template", "refused", "the tag 'include'", ":2:"}},
		{"a template that raises", []string{"--model", good}, strings.Replace(longChat, "user", "critic", 1), []string{"the engine answers 400", "no critics"}},
		{"a body that is no JSON", []string{"--model", good}, `{"model":`, []string{"the body is refused", "byte"}},
		{"a body without a model", []string{"--model", good}, `{"messages":[]}`, []string{"names no model"}},
		{"an engine that is none", []string{"--model", good, "--engine", "llama.cpp"}, longChat, []string{"vllm or sglang"}},
		{"an endpoint that is none", []string{"--model", good, "--endpoint", "edit"}, longChat, []string{"completions"}},
		{"blocks of nothing", []string{"--model", good, "--block-size", "0"}, longChat, []string{"block size"}},
		{"a worker for what is approximated", []string{"--model", good, "--worker", "127.0.0.1:1", "--endpoint", "messages"}, longChat, []string{"nothing to compare"}},
		{"a worker that is not there", []string{"--model", good, "--worker", "127.0.0.1:1"}, longChat, []string{"127.0.0.1:1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := askTokens(t, tt.body, tt.args...)
			if err == nil {
				t.Fatal("no error")
			}
			mustSay(t, err.Error(), tt.want...)
		})
	}
}

// realWorker answers /tokenize by a model's files, with front ahead of the ids.
func realWorker(t *testing.T, dir string, front ...uint32) string {
	t.Helper()
	files, err := local.Open(dir, template.VLLM)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		r := new(prompt.Request)
		if err = r.Scan(prompt.Chat, nil, raw); err != nil {
			t.Error(err)
		}
		ids, err := files.Tokenize(req.Context(), r, front)
		if err != nil {
			t.Error(err)
		}
		if err = json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "tokens": ids}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestTokensComparesWithAWorker(t *testing.T) {
	dir := tokensModel(t, "qwen2", tinyTemplate)
	other := tokensModel(t, "qwen2", strings.Replace(tinyTemplate, "{{ m.content }}", "{{ m.content | upper }}", 1))

	report, err := askTokens(t, longChat, "--model", dir, "--worker", realWorker(t, dir))
	if err != nil || !report.Worker.Equal || report.Worker.At != -1 || report.Worker.Tokens != report.Tokens {
		t.Errorf("the same files: %v: %+v", err, report.Worker)
	}
	report, err = askTokens(t, longChat, "--model", dir, "--worker", realWorker(t, other))
	if !errors.Is(err, errDiffer) {
		t.Fatalf("another template: error %v", err)
	}
	w := report.Worker
	if w.Equal || w.Before != "<|im_start|>user\n" || w.At < 1 || !strings.HasPrefix("the quick", w.Ours[0].Text) || !strings.HasPrefix("THE QUICK", w.Theirs[0].Text) {
		t.Errorf("another template: %+v", w)
	}
	out, err := run(t, "tokens", "--body", bodyFile(t, longChat), "--model", dir, "--worker", realWorker(t, dir, 7))
	if !errors.Is(err, errDiffer) {
		t.Errorf("a token in front: error %v", err)
	}
	mustSay(t, out, "number 0, from 0, is the first that differs", "the worker puts a token in front")
}

// The simulated engine has a tokenizer of its own, so over its HTTP server every
// model's files are the wrong ones.
func TestTokensFindsTheWrongTokenizerOfARunningEngine(t *testing.T) {
	cfg := simengine.DefaultConfig()
	cfg.Model = "m"
	cfg.KV.Port = -1
	engine, err := simengine.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	dir := tokensModel(t, "qwen2", tinyTemplate)
	out, err := run(t, "tokens", "--body", bodyFile(t, longChat), "--model", dir, "--worker", engine.URL())
	if !errors.Is(err, errDiffer) {
		t.Fatalf("error %v:\n%s", err, out)
	}
	mustSay(t, out, engine.URL(), "number 0, from 0, is the first that differs", `ours    `, `"<|im_start|>"`, "is it the same model?")

	_, err = askTokens(t, strings.Replace(longChat, `"m"`, `"unserved"`, 1), "--model", dir, "--worker", engine.URL())
	if err == nil || errors.Is(err, errDiffer) {
		t.Fatalf("a model that it does not serve: error %v", err)
	}
	mustSay(t, err.Error(), "404", `"unserved"`)
}
