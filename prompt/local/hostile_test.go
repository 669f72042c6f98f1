package local_test

import (
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/internal/testkit"
	"pointsman/prompt"
	"pointsman/prompt/local"
)

// loaded waits until the model's files have been read, well or not.
func loaded(t *testing.T, tok *local.Tokenizer) {
	t.Helper()
	r := scan(t, prompt.Completions, `{"model":"m","prompt":"hello"}`)
	r.Base = "m"
	testkit.Until(t, "the model loaded", func() bool {
		_, err := tok.Tokenize(t.Context(), r, nil)
		return err == nil || errors.Is(err, local.ErrDeclined)
	})
}

// prepare makes what the picker gets of a body, for blocks of four tokens.
func prepare(ctx context.Context, t *testing.T, tok prompt.Tokenizer, kind prompt.Kind, body string) prompt.Prepared {
	t.Helper()
	var out prompt.Prepared
	prompt.NewPreparer(prompt.DefaultConfig(), tok).Prepare(ctx, scan(t, kind, body), []int{4}, &out)
	return out
}

// results returns how often a prompt ended with a result.
func results(t *testing.T, tok *local.Tokenizer, result string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	fatal(t, tok.Register(reg))
	families, err := reg.Gather()
	fatal(t, err)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "pointsman_tokenizer_local_total" && label.GetValue() == result {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

// hostilePrompts are texts of about size bytes.
func hostilePrompts(size int) map[string]string {
	noise := make([]byte, size*3/4)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	return map[string]string{
		"spaces":     strings.Repeat(" ", size),
		"marks":      strings.Repeat("\u0301\u0323", size/4),
		"one letter": strings.Repeat("a", size),
		"base64":     base64.StdEncoding.EncodeToString(noise),
	}
}

func TestPromptsBeyondTheBoundAreApproximatedAndSaySo(t *testing.T) {
	dir := t.TempDir()
	modelDir(t, dir, chatTemplate)
	tok := startWith(t, dir, local.DefaultConfig())
	loaded(t, tok)
	check := func(name string, kind prompt.Kind, body string) {
		before := results(t, tok, "too_long")
		out := prepare(t.Context(), t, tok, kind, body)
		if out.Reason != prompt.ReasonTooLong || !out.Approx || len(out.Blocks) != 1 || len(out.Blocks[0].Hashes) == 0 {
			t.Errorf("%s: reason %s, %d block lists", name, out.Reason, len(out.Blocks))
		}
		if results(t, tok, "too_long") != before+1 {
			t.Errorf("%s: the result is not counted as too_long", name)
		}
	}
	for name, text := range hostilePrompts(10 << 20) {
		check(name, prompt.Completions, `{"model":"m","prompt":"`+text+`"}`)
	}
	// Not more JSON than may be rendered, but a longer prompt.
	text := hostilePrompts(2 << 20)["base64"]
	check("a chat", prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"`+text+`"}]}`)
}

func TestPromptsThatTakeTooLongAreGivenUp(t *testing.T) {
	dir := t.TempDir()
	modelDir(t, dir, chatTemplate)
	cfg := local.DefaultConfig()
	cfg.MaxBytes, cfg.Timeout = 64<<20, time.Nanosecond
	tok := startWith(t, dir, cfg)
	loaded(t, tok)
	cfg.Timeout = time.Hour
	patient := startWith(t, dir, cfg)
	loaded(t, patient)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, text := range hostilePrompts(200_000) {
		body := `{"model":"m","prompt":"` + text + `"}`
		if out := prepare(t.Context(), t, tok, prompt.Completions, body); out.Reason != prompt.ReasonNoTokens || len(out.Blocks[0].Hashes) == 0 {
			t.Errorf("%s: reason %s", name, out.Reason)
		}
		if out := prepare(gone, t, patient, prompt.Completions, body); out.Reason != prompt.ReasonNoTokens {
			t.Errorf("%s, the client has gone: reason %s", name, out.Reason)
		}
	}
	if n, m := results(t, tok, "timeout"), results(t, patient, "timeout"); n != 4 || m != 4 {
		t.Errorf("%v and %v timeouts are counted, want 4 each", n, m)
	}
}

// Whatever a request says, it is approximated and so still routed.
func TestBadRequestsAreApproximatedAndSaySo(t *testing.T) {
	const strict = `{%- for m in messages %}{%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('unknown role') }}{%- endif %}{{ m.content + '!' }}{%- endfor %}`
	dir := t.TempDir()
	modelDir(t, dir, strict)
	tok := startWith(t, dir, local.DefaultConfig())
	loaded(t, tok)
	deep := strings.Repeat("[", 60) + strings.Repeat("]", 60)
	for _, tt := range []struct{ name, body, result string }{
		{"an unknown role", `{"model":"m","messages":[{"role":"critic","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here"}]}`, "template"},
		{"no content", `{"model":"m","messages":[{"role":"user"},{"role":"user","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here"}]}`, "exact"},
		{"content of a wrong type", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here"},{"type":"text","text":7}]}]}`, "invalid_input"},
		{"no role", `{"model":"m","messages":[{"content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here, and it goes on and on"}]}`, "invalid_input"},
		{"call arguments that are no JSON", `{"model":"m","messages":[{"role":"assistant","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]}`, "exact"},
		{"tools of a wrong type", `{"model":"m","messages":[{"role":"user","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here"}],"tools":[7]}`, "invalid_input"},
		{"template settings of a wrong type", `{"model":"m","messages":[{"role":"user","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here"}],"chat_template_kwargs":[]}`, "invalid_input"},
		{"deeply nested settings", `{"model":"m","messages":[{"role":"user","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here"}],"chat_template_kwargs":{"x":` + deep + `}}`, "exact"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := results(t, tok, tt.result)
			out := prepare(t.Context(), t, tok, prompt.Chat, tt.body)
			want := prompt.ReasonNoTokens
			if tt.result == "exact" {
				want = prompt.ReasonExact
			}
			if out.Reason != want || len(out.Blocks) == 0 || len(out.Blocks[0].Hashes) == 0 {
				t.Errorf("reason %s, %d block lists; want %s", out.Reason, len(out.Blocks), want)
			}
			if results(t, tok, tt.result) != before+1 {
				t.Errorf("the result is not counted as %s", tt.result)
			}
		})
	}
}

func TestTextThatIsNotUnicodeIsNeverTokenized(t *testing.T) {
	dir := t.TempDir()
	modelDir(t, dir, chatTemplate)
	tok := startWith(t, dir, local.DefaultConfig())
	loaded(t, tok)
	for _, text := range []string{`\ud800`, `\udc00\ud800`, `\ud83d\ude00\ude00`} {
		body := `{"model":"m","messages":[{"role":"user","content":"` + text + ` and a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens that fills its blocks"}]}`
		if out := prepare(t.Context(), t, tok, prompt.Chat, body); out.Reason != prompt.ReasonNoTokens || len(out.Blocks[0].Hashes) == 0 {
			t.Errorf("%s: reason %s", text, out.Reason)
		}
	}
	for _, raw := range []string{"\xff", "\xed\xa0\x80", "\xc0\x80"} { // refused with 400 before anybody tokenizes
		if err := new(prompt.Request).Scan(prompt.Chat, nil, []byte(`{"model":"m","messages":[{"role":"user","content":"`+raw+`"}]}`)); err == nil {
			t.Errorf("%q was read", raw)
		}
	}
}

func TestTemplatesThatDoHarmCostTheirModelOnly(t *testing.T) {
	for name, jinja := range map[string]string{
		"loops":                  `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
		"recurses":               `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`,
		"nests a million deep":   `{{ ` + strings.Repeat("(", 1_000_000) + "1" + strings.Repeat(")", 1_000_000) + ` }}`,
		"nests fewer deep":       `{{ ` + strings.Repeat("(", 50_000) + "1" + strings.Repeat(")", 50_000) + ` }}`,
		"doubles a string":       `{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
		"raises":                 `{{ raise_exception('no') }}`,
		"uses what is not built": `{% include 'x' %}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			modelDir(t, dir, jinja)
			tok := startWith(t, dir, local.DefaultConfig())
			loaded(t, tok)
			body := `{"model":"m","messages":[{"role":"user","content":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here, and more"}]}`
			if out := prepare(t.Context(), t, tok, prompt.Chat, body); out.Reason != prompt.ReasonNoTokens || len(out.Blocks[0].Hashes) == 0 {
				t.Errorf("reason %s", out.Reason)
			}
		})
	}
}

func TestTokenizerFilesThatDoHarmCostTheirModelOnly(t *testing.T) {
	for name, arrange := range map[string]func(path string) error{
		"cut off": func(path string) error { return os.Truncate(path, 1000) },
		"made of merges in a circle": func(path string) error {
			return os.WriteFile(path, []byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"ba":3},"merges":["ab a","a ab","b a","a b"]}}`), 0o600)
		},
		"nested a million deep": func(path string) error {
			return os.WriteFile(path, []byte(`{"normalizer":`+strings.Repeat(`{"type":"Sequence","normalizers":[`, 1_000_000)), 0o600)
		},
		"huge":  func(path string) error { return os.Truncate(path, 300<<20) },
		"empty": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			modelDir(t, dir, chatTemplate)
			fatal(t, arrange(filepath.Join(dir, "tokenizer.json")))
			tok := startWith(t, dir, local.DefaultConfig())
			loaded(t, tok)
			body := `{"model":"m","prompt":"a text that is long enough to fill a block of the sixty-four bytes that stand for sixteen tokens is here, and more of it"}`
			if out := prepare(t.Context(), t, tok, prompt.Completions, body); out.Reason != prompt.ReasonNoTokens || len(out.Blocks[0].Hashes) == 0 {
				t.Errorf("reason %s", out.Reason)
			}
		})
	}
}
