package template

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

// parityCase is one line of a case file: a template, or a rendering of one.
type parityCase struct {
	Template string          `json:"template"` // its name
	Source   *string         `json:"source,omitempty"`
	Special  []Special       `json:"special,omitempty"`
	Messages json.RawMessage `json:"messages,omitempty"`
	Tools    json.RawMessage `json:"tools,omitempty"`
	Docs     json.RawMessage `json:"documents,omitempty"`
	Kwargs   json.RawMessage `json:"kwargs,omitempty"`
	Generate bool            `json:"generate,omitempty"`
	Continue bool            `json:"continue,omitempty"`

	Want *parityResult `json:"want,omitempty"`
}

// parityResult is what the reference, or this package, makes of a case.
type parityResult struct {
	Text    string `json:"text"`
	Class   string `json:"class,omitempty"`
	Message string `json:"message,omitempty"`
}

// parityTime is the time of strftime_now in recorded cases.
func parityTime() time.Time { return time.Date(2026, time.March, 7, 9, 5, 3, 0, time.UTC) }

// render runs one case against the templates seen so far.
func (c *parityCase) render(known map[string]*Template, failed map[string]error) parityResult {
	fail := func(err error) parityResult {
		var e *Error
		if !errors.As(err, &e) {
			return parityResult{Class: "untyped", Message: err.Error()}
		}
		return parityResult{Class: e.Class, Message: e.Message}
	}
	if c.Source != nil {
		t, err := Parse(c.Template, *c.Source)
		if err != nil {
			failed[c.Template] = err
		} else {
			known[c.Template] = t.WithSpecial(c.Special)
		}
	}
	if err := failed[c.Template]; err != nil {
		return fail(err)
	}
	out, err := known[c.Template].Render(nil, &Input{
		Messages: c.Messages, Tools: c.Tools, Documents: c.Docs, Kwargs: c.Kwargs,
		AddGenerationPrompt: c.Generate, ContinueFinalMessage: c.Continue, Now: parityTime(),
	}, Limits{})
	if err != nil {
		return fail(err)
	}
	return parityResult{Text: string(out)}
}

// eachCase calls f for every line of a case file.
func eachCase(tb testing.TB, path string, f func(line int, c *parityCase)) {
	tb.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	for i, line := range bytes.Split(bytes.TrimSpace(raw), []byte("\n")) {
		var c parityCase
		if err := json.Unmarshal(line, &c); err != nil {
			tb.Fatalf("%s:%d: %v", path, i+1, err)
		}
		f(i+1, &c)
	}
}

// TestRecordedRenderingsOfJinja replays what jinja2 made of templates in
// transformers' environment, recorded by tools/parity_templates.py --record.
func TestRecordedRenderingsOfJinja(t *testing.T) {
	known, failed := map[string]*Template{}, map[string]error{}
	n, failing := 0, 0
	eachCase(t, "testdata/golden.jsonl", func(line int, c *parityCase) {
		got := c.render(known, failed)
		if c.Want == nil {
			return
		}
		n++
		if c.Want.Class != "" {
			failing++
		}
		if got.Class != c.Want.Class || got.Text != c.Want.Text {
			t.Errorf("golden.jsonl:%d %s: got %+v, want %+v", line, c.Template, got, *c.Want)
		}
	})
	if n < 300 || failing < 30 {
		t.Errorf("%d cases, %d of them failing: too few to prove anything", n, failing)
	}
}

// TestParityCases renders the cases of a file that tools/parity_templates.py made,
// and writes the results for it to compare. It is no test of its own.
func TestParityCases(t *testing.T) {
	cases, results := os.Getenv("TEMPLATE_CASES"), os.Getenv("TEMPLATE_RESULTS")
	if cases == "" || results == "" {
		t.Skip("TEMPLATE_CASES and TEMPLATE_RESULTS name the files of tools/parity_templates.py")
	}
	f, err := os.Create(results)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	known, failed := map[string]*Template{}, map[string]error{}
	eachCase(t, cases, func(_ int, c *parityCase) {
		if err := enc.Encode(c.render(known, failed)); err != nil {
			t.Fatal(err)
		}
	})
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
}
