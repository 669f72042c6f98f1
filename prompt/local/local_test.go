package local_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pointsman/internal/testkit"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/prompt/local"
	"pointsman/prompt/template"
	"pointsman/prompt/tokens"
)

// chatTemplate is small, but tells roles, tools and the generation prompt apart.
const chatTemplate = `{%- for m in messages %}[{{ m.role }}]{{ m.content }}{%- endfor %}` +
	`{%- if tools %}{{ tools | tojson }}{%- endif %}{%- if add_generation_prompt %}[assistant]{%- endif %}`

// modelDir is a directory with a small real tokenizer and a chat template.
func modelDir(t *testing.T, dir, jinja string) {
	t.Helper()
	raw, err := os.ReadFile("../tokens/testdata/golden/llama2/tokenizer.json")
	fatal(t, err)
	fatal(t, os.MkdirAll(dir, 0o755))
	fatal(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), raw, 0o600))
	if jinja != "" {
		fatal(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(jinja), 0o600))
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// workers answers what is declined, as a worker's /tokenize would.
type workers struct{ asked int }

var fromWorkers = []uint32{7, 7, 7}

func (w *workers) Tokenize(_ context.Context, _ *prompt.Request, dst []uint32) ([]uint32, error) {
	w.asked++
	return append(dst, fromWorkers...), nil
}

func start(t *testing.T, path string, next prompt.Tokenizer) *audit.Chain {
	t.Helper()
	return chain(startWith(t, path, local.DefaultConfig()), next)
}

func startWith(t *testing.T, path string, cfg local.Config) *local.Tokenizer {
	t.Helper()
	cfg.Path, cfg.Check = path, 10*time.Millisecond
	dialect := func(model string) (template.Dialect, bool) { return template.VLLM, model != "unserved" }
	tok, err := local.New(cfg, dialect, slog.New(slog.DiscardHandler))
	fatal(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := tok.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return tok
}

// chain asks own, then next unless it is nil.
func chain(own, next prompt.Tokenizer) *audit.Chain {
	links := []audit.Link{{Source: prompt.SourceFiles, Tokenizer: own}}
	if next != nil {
		links = append(links, audit.Link{Source: prompt.SourceWorker, Tokenizer: next})
	}
	return audit.NewChain(audit.New(audit.DefaultConfig(), nil, slog.New(slog.DiscardHandler), time.Now), links...)
}

func scan(t *testing.T, kind prompt.Kind, body string) *prompt.Request {
	t.Helper()
	r := new(prompt.Request)
	fatal(t, r.Scan(kind, nil, []byte(body)))
	return r
}

// ask repeats until the answer is as wanted: a model is loaded beside requests.
func ask(t *testing.T, tok prompt.Tokenizer, r *prompt.Request, want []uint32) {
	t.Helper()
	var got []uint32
	var err error
	testkit.Until(t, fmt.Sprintf("the ids %v", want), func() bool {
		got, err = tok.Tokenize(t.Context(), r, nil)
		return err == nil && slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("ids %v, error %v", got, err) })
}

func encode(t *testing.T, dir, text string, specials tokens.Specials) []uint32 {
	t.Helper()
	tok, err := tokens.Load(dir)
	fatal(t, err)
	ids, err := tok.Encode(nil, []byte(text), specials)
	fatal(t, err)
	return ids
}

func TestRequestsBecomeTheEnginesIDs(t *testing.T) {
	dir := t.TempDir()
	modelDir(t, dir, chatTemplate)
	tok := start(t, dir, nil)
	tests := []struct {
		name     string
		kind     prompt.Kind
		body     string
		text     string
		specials tokens.Specials
	}{
		{"a chat is rendered, without special tokens", prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"hello world"}]}`, "[user]hello world[assistant]", tokens.WithoutSpecials},
		{"tools are in the prompt", prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}`, `[user]x[{"type": "function", "function": {"name": "f", "description": null, "parameters": {}}}][assistant]`, tokens.WithoutSpecials},
		{"a prompt gets its special tokens", prompt.Completions, `{"model":"m","prompt":"hello \u0077orld"}`, "hello world", tokens.WithSpecials},
		{"unless it asks for none", prompt.Completions, `{"model":"m","prompt":"hello","add_special_tokens":false}`, "hello", tokens.WithoutSpecials},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ask(t, tok, scan(t, tt.kind, tt.body), encode(t, dir, tt.text, tt.specials))
		})
	}
}

func TestWhatIsDeclinedGoesToTheNextSource(t *testing.T) {
	dir := t.TempDir()
	modelDir(t, dir, chatTemplate)
	w := &workers{}
	tok := start(t, dir, w)
	tests := []struct {
		name string
		kind prompt.Kind
		body string
	}{
		{"Anthropic's form", prompt.Messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`},
		{"a template of the client's", prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template":"{{ 1 }}"}`},
		{"a batch", prompt.Completions, `{"model":"m","prompt":["a","b"]}`},
		{"a model that nobody serves", prompt.Chat, `{"model":"unserved","messages":[{"role":"user","content":"x"}]}`},
		{"what the engine refuses", prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"add_generation_prompt":true,"continue_final_message":true}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := w.asked
			ask(t, tok, scan(t, tt.kind, tt.body), fromWorkers)
			if w.asked == before {
				t.Error("the next source was not asked")
			}
		})
	}
}

func TestAModelThatCannotBeHonouredIsLeftToTheNextSource(t *testing.T) {
	tests := map[string]func(t *testing.T, dir string){
		"no files": func(*testing.T, string) {},
		"a tokenizer that is none": func(t *testing.T, dir string) {
			t.Helper()
			modelDir(t, dir, chatTemplate)
			fatal(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model":{"type":"Unigram","vocab":[]}}`), 0o600))
		},
		"a template that is none": func(t *testing.T, dir string) {
			t.Helper()
			modelDir(t, dir, "{% for %}")
		},
	}
	for name, arrange := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			arrange(t, dir)
			tok := start(t, dir, &workers{})
			ask(t, tok, scan(t, prompt.Completions, `{"model":"m","prompt":"hello"}`), fromWorkers)
		})
	}
}

func TestEachModelHasItsDirectoryAndChangesAreNoticed(t *testing.T) {
	root := t.TempDir()
	modelDir(t, root, "{{ 'common' }}")
	own := filepath.Join(root, "org", "one")
	modelDir(t, own, "{{ 'own' }}")
	tok := start(t, root, nil)
	chat := func(model string) *prompt.Request {
		return scan(t, prompt.Chat, `{"model":"`+model+`","messages":[{"role":"user","content":"x"}]}`)
	}
	ask(t, tok, chat("org/one"), encode(t, root, "own", tokens.WithoutSpecials))
	ask(t, tok, chat("other"), encode(t, root, "common", tokens.WithoutSpecials))
	ask(t, tok, chat("../escape"), encode(t, root, "common", tokens.WithoutSpecials))
	modelDir(t, own, "{{ 'changed' }}")
	ask(t, tok, chat("org/one"), encode(t, root, "changed", tokens.WithoutSpecials))
}

func TestUntilAModelIsLoadedTheNextSourceAnswers(t *testing.T) {
	dir := t.TempDir()
	modelDir(t, dir, chatTemplate)
	cfg := local.DefaultConfig()
	cfg.Path = dir
	w := &workers{}
	tok, err := local.New(cfg, func(string) (template.Dialect, bool) { return template.VLLM, true }, slog.New(slog.DiscardHandler))
	fatal(t, err)
	got, err := chain(tok, w).Tokenize(t.Context(), scan(t, prompt.Completions, `{"model":"m","prompt":"hello"}`), []uint32{1})
	if err != nil || !slices.Equal(got, append([]uint32{1}, fromWorkers...)) || w.asked != 1 {
		t.Errorf("ids %v, error %v, fallback asked %d times", got, err, w.asked)
	}
}

func TestConfigFaults(t *testing.T) {
	for name, change := range map[string]func(*local.Config){
		"no path":          func(c *local.Config) { c.Path = "" },
		"a negative cache": func(c *local.Config) { c.CacheBytes = -1 },
		"no check":         func(c *local.Config) { c.Check = 0 },
	} {
		cfg := local.DefaultConfig()
		cfg.Path = "x"
		change(&cfg)
		if cfg.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
