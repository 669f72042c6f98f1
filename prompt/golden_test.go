package prompt

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// summary writes all that routing takes from a body.
func summary(t *testing.T, kind Kind, body []byte) string {
	t.Helper()
	var r Request
	if err := r.Scan(kind, nil, body); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kind=%v model=%s stream=%v n=%d best_of=%d max_tokens=%d\n", r.Kind, r.Model, r.Stream, r.N, r.BestOf, r.MaxTokens)
	fmt.Fprintf(&b, "lora=%q salt=%q retention=%v tools=%v multimodal=%v images=%016x prompts=%d\n",
		r.LoRA, r.CacheSalt, r.Retention, r.Tools, r.Multimodal, r.Images, r.Prompts())
	show := func(m Message) {
		fmt.Fprintf(&b, "%s:", m.Role)
		if m.IsText {
			fmt.Fprintf(&b, " %q", m.Content)
		}
		for _, p := range m.Parts {
			fmt.Fprintf(&b, " [%d %s %q]", p.Kind, p.Type, p.Text)
		}
		if m.ToolCalls != nil {
			fmt.Fprintf(&b, " tool_calls=%s", m.ToolCalls)
		}
		b.WriteByte('\n')
	}
	if m, ok := r.System(); ok {
		show(m)
	}
	for m := range r.Messages() {
		show(m)
	}
	var out Prepared
	NewPreparer(Config{}, nil).Prepare(t.Context(), &r, []int{16, 32}, &out)
	fmt.Fprintf(&b, "tokens=%d approx=%v reason=%s\n", out.Tokens, out.Approx, out.Reason)
	for _, blocks := range out.Blocks {
		fmt.Fprintf(&b, "blocks of %d: %016x\n", blocks.Size, blocks.Hashes)
	}
	return b.String()
}

func TestGoldenBodies(t *testing.T) {
	kinds := map[string]Kind{"chat": Chat, "completions": Completions, "messages": Messages}
	files, err := filepath.Glob("testdata/bodies/*.json")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d bodies, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(file, ".json")
			got := summary(t, kinds[strings.TrimPrefix(filepath.Ext(name), ".")], body)
			if *update {
				if err = os.WriteFile(name+".golden", []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name + ".golden")
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
