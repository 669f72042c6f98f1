package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pointsman/internal/simengine"
	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// toolTemplate is a chat template in the shape of those of real models: the
// begin-of-text token, tools at the head, turns with their roles.
const toolTemplate = `{{- bos_token }}
{%- if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}{% endfor %}[/tools]{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content if m.content is not none else '' }}
{%- for call in m.tool_calls or [] %}[call]{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}`

// asked numbers the requests of request.
var asked atomic.Int64

// modelFiles makes a model's directory: a small tokenizer of the named kind, which
// prompt/tokens checks against the reference, and toolTemplate.
func modelFiles(t *testing.T, kind string) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := os.ReadFile(filepath.Join(theRig.root, "prompt/tokens/testdata/golden", kind, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"tokenizer.json": raw, "chat_template.jinja": []byte(toolTemplate)}
	if kind == "llama2" {
		files["tokenizer_config.json"] = []byte(`{"bos_token":"<s>","eos_token":"</s>"}`)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// realFleet is a fleet of vLLM engines that serve the model of one directory,
// behind an EPP that was given another, or the same.
func realFleet(t *testing.T, engines, epp string, more ...string) *stack.Stack {
	t.Helper()
	workers := make([]stack.WorkerConfig, 2)
	for i := range workers {
		workers[i] = stack.WorkerConfig{Args: append(fast(), append([]string{"--model-files", engines}, more...)...)}
	}
	names := []string{"--lora-adapters", "sql=" + stack.DefaultModel}
	s := startFleet(t, stack.Config{
		Workers: workers, Policy: "kv-aware", OverlapWeight: 20,
		EPPArgs: append([]string{"--router-tokenizer-path", epp}, names...), ForwarderArgs: names,
	})
	// The files are loaded for the first prompts, which a worker tokenizes meanwhile.
	for _, w := range s.Workers {
		eventually(t, "the EPP's tokenizer", func(context.Context) error {
			request(t, s, "/v1/completions", map[string]any{"prompt": "warm up " + w.ID}) //nolint:contextcheck // bounded by the test
			if audited(t, s, "pointsman_tokenizer_loaded", nil) == 0 {                    //nolint:contextcheck // the same
				return errNotYet
			}
			return nil
		})
	}
	return s
}

// audited is a sum of the EPP's series.
func audited(t *testing.T, s *stack.Stack, name string, labels map[string]string) float64 {
	t.Helper()
	m, err := s.Metrics(t.Context(), s.EPPs[0].Admin)
	if err != nil {
		t.Fatal(err)
	}
	return m.Sum(name, labels)
}

// request sends a request with an ID of its own and returns its ended receipt.
func request(t *testing.T, s *stack.Stack, path string, body map[string]any) simengine.Receipt {
	t.Helper()
	requestID := id(t, fmt.Sprint(asked.Add(1)))
	full := map[string]any{"model": stack.DefaultModel, "max_tokens": 4}
	maps.Copy(full, body)
	raw, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	a := send(t, http.DefaultClient, http.MethodPost, s.URL+path, bytes.NewReader(raw), map[string]string{"X-Request-Id": requestID, "Content-Type": "application/json"})
	if a.status != http.StatusOK {
		t.Fatalf("%s: status %d: %.300s", path, a.status, a.body)
	}
	return theReceipt(t, s, requestID)
}

// states returns the audit's states of a form, one for each worker that has one.
func states(t *testing.T, s *stack.Stack, form string) (out []string) {
	t.Helper()
	m, err := s.Metrics(t.Context(), s.EPPs[0].Admin)
	if err != nil {
		t.Fatal(err)
	}
	m.Each("pointsman_audit_state", func(labels map[string]string, _ float64) {
		if labels["form"] == form {
			out = append(out, strings.TrimSpace(labels["state"]+" "+labels["reason"]))
		}
	})
	slices.Sort(out)
	return slices.Compact(out)
}

// wantState waits for the audit of the last answer.
func wantState(t *testing.T, s *stack.Stack, form string, want ...string) {
	t.Helper()
	eventually(t, "the audit's verdict on "+form, func(context.Context) error {
		if got := states(t, s, form); !slices.Equal(got, want) { //nolint:contextcheck // bounded by the test
			return fmt.Errorf("states %q, want %q", got, want)
		}
		return nil
	})
}

// TestAWrongTokenizerIsNoticedWithinTwentyRequests gives the EPP the files of
// another model than the engines have. Their counts tell; from then on workers
// tokenize, so that repeated prompts hit all the same.
func TestAWrongTokenizerIsNoticedWithinTwentyRequests(t *testing.T) {
	t.Parallel()
	s := realFleet(t, modelFiles(t, "llama2"), modelFiles(t, "qwen2"))
	for _, w := range s.Workers { // before any request
		eventually(t, "the canary of "+w.ID, func(context.Context) error {
			m, err := s.Metrics(t.Context(), s.EPPs[0].Admin) //nolint:contextcheck // bounded by the test
			if err != nil {
				return err
			}
			seen := errNotYet
			m.Each("pointsman_audit_canary", func(labels map[string]string, v float64) {
				if labels["worker_id"] == w.ID && v == 0 {
					seen = nil
				}
			})
			return seen
		})
	}
	for i := range 20 {
		request(t, s, "/v1/chat/completions", map[string]any{"messages": []traffic.Message{{Role: "user", Content: words(500+i, 40)}}})
	}
	wantState(t, s, "chat", "drifting count")
	chat := map[string]string{"form": "chat"}
	if n := audited(t, s, "pointsman_audit_compared_total", map[string]string{"form": "chat", "result": "drift"}); n < 4 || n >= 20 {
		t.Errorf("%v counts differed; the files should have been left after some", n)
	}
	if audited(t, s, "pointsman_audit_source", map[string]string{"form": "chat", "source": "worker"}) != 1 {
		t.Error("the workers are not asked for the ids of chats")
	}
	before := audited(t, s, "pointsman_audit_compared_total", map[string]string{"form": "chat", "result": "exact"})
	first := request(t, s, "/v1/chat/completions", map[string]any{"messages": []traffic.Message{{Role: "user", Content: words(900, 80)}}})
	again := request(t, s, "/v1/chat/completions", map[string]any{"messages": []traffic.Message{{Role: "user", Content: words(900, 80)}}})
	if again.WorkerID != first.WorkerID || again.CachedTokens < first.PromptTokens-17 {
		t.Errorf("%d of %d tokens cached on %s after %s", again.CachedTokens, again.PromptTokens, again.WorkerID, first.WorkerID)
	}
	eventually(t, "the comparison of both", func(context.Context) error {
		if audited(t, s, "pointsman_audit_compared_total", map[string]string{"form": "chat", "result": "exact"}) < before+2 { //nolint:contextcheck // bounded by the test
			return fmt.Errorf("%v compared in all", audited(t, s, "pointsman_audit_compared_total", chat)) //nolint:contextcheck // the same
		}
		return nil
	})
}

// TestRealTokensHitTheirPrefix has the EPP use the engines' own files: what a
// conversation with tools, a completion with BOS and an adapter's prompt have in
// common with an earlier one is found, exactly, and adapters' blocks stay apart.
func TestRealTokensHitTheirPrefix(t *testing.T) { //nolint:tparallel // its parts use one fleet in turn
	t.Parallel()
	files := modelFiles(t, "llama2")
	s := realFleet(t, files, files, "--lora", "sql")
	t.Run("a conversation with tools", func(t *testing.T) {
		conversationWithTools(t, s)
		wantState(t, s, "tools", "exact")
	})
	t.Run("BOS on completions", func(t *testing.T) {
		text := words(3000, 120)
		hits(t, s, "/v1/completions", map[string]any{"prompt": text}, map[string]any{"prompt": text + " and more"})
		wantState(t, s, "completions", "exact")
	})
	t.Run("an adapter and its base share no blocks", func(t *testing.T) {
		text := words(4000, 120)
		base := request(t, s, "/v1/completions", map[string]any{"prompt": text})
		first := request(t, s, "/v1/completions", map[string]any{"model": "sql", "prompt": text})
		if base.PromptTokens != first.PromptTokens || first.CachedTokens != 0 {
			t.Errorf("base %+v, adapter %+v", base, first)
		}
		hits(t, s, "/v1/completions", map[string]any{"model": "sql", "prompt": text}, map[string]any{"model": "sql", "prompt": text + " more"})
		wantState(t, s, "lora", "exact")
	})
	if n := audited(t, s, "pointsman_audit_compared_total", map[string]string{"result": "drift"}); n != 0 {
		t.Errorf("%v counts differ", n)
	}
	for _, result := range []string{"over", "under"} {
		if n := audited(t, s, "pointsman_audit_hits_total", map[string]string{"result": result}); n != 0 {
			t.Errorf("%v predicted hits are %s what the engines found", n, result)
		}
	}
}

// hits asks for first and then for second, which goes on where first ends: all
// whole blocks of first must be found, by the same engine.
func hits(t *testing.T, s *stack.Stack, path string, first, second map[string]any) {
	t.Helper()
	one := request(t, s, path, first)
	waitForBlocks(t, s, one.WorkerID, func(n float64) bool { return int(n) >= one.PromptTokens/16 })
	two := request(t, s, path, second)
	if want := one.PromptTokens/16*16 - 16; two.WorkerID != one.WorkerID || two.CachedTokens < want {
		t.Errorf("%d of %d tokens cached on %s, want at least %d on %s", two.CachedTokens, two.PromptTokens, two.WorkerID, want, one.WorkerID)
	}
}

// conversationWithTools goes on for some turns, tool calls and all. Each must find
// all whole blocks of what was rendered for the turn before.
func conversationWithTools(t *testing.T, s *stack.Stack) {
	t.Helper()
	tools := json.RawMessage(`[{"type":"function","function":{"name":"weather","description":"` + words(2000, 60) + `","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`)
	var talk []any
	var before simengine.Receipt
	for turn := range 4 {
		talk = append(talk, map[string]any{"role": "user", "content": "Question. " + words(2100+turn, 40)})
		rc := request(t, s, "/v1/chat/completions", map[string]any{"messages": talk, "tools": tools})
		// The turn before ends in what asks for an answer, some tokens that turn into others.
		if want := before.PromptTokens/16*16 - 32; turn > 0 && (rc.WorkerID != before.WorkerID || rc.CachedTokens < want) {
			t.Errorf("turn %d: %d of %d tokens cached on %s, want at least %d on %s", turn, rc.CachedTokens, rc.PromptTokens, rc.WorkerID, want, before.WorkerID)
		}
		talk = append(talk,
			map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
				"id": fmt.Sprint("call-", turn), "type": "function", "function": map[string]any{"name": "weather", "arguments": `{"city":"Zürich"}`},
			}}},
			map[string]any{"role": "tool", "tool_call_id": fmt.Sprint("call-", turn), "content": "rain, " + words(2200+turn, 20)})
		before = rc
	}
}
