package template

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// What is not built is refused at load, by its name and line.
func TestUnbuiltFeaturesAreRefusedByNameAndLine(t *testing.T) {
	for what, src := range map[string]string{
		"the filter 'escape'":               "a\n{{ x|escape }}",
		"the filter 'nope'":                 "a\n{% if false %}{{ x|nope }}{% endif %}",
		"the filter or test 'nope'":         "\n{{ x|map('nope') }}",
		"the test 'nope'":                   "\n{{ x is nope }}",
		"the tag 'include'":                 "\n{% include 'x' %}",
		"the tag 'import'":                  "\n{% import 'x' as y %}",
		"the tag 'extends'":                 "\n{% extends 'x' %}",
		"the tag 'autoescape'":              "\n{% autoescape true %}{% endautoescape %}",
		"a recursive loop":                  "\n{% for a in b recursive %}{% endfor %}",
		"the method 'encode'":               "\n{{ x.encode('utf-8') }}",
		"'break' outside of a loop":         "\n{% break %}",
		"the name 'super'":                  "{% block a %}{{ super() }}{% endblock %}",
		"the function 'lipsum'":             "{{ lipsum() }}",
		"the escape \\N{…} in a string":     "\n{{ '\\N{DIGIT ONE}' }}",
		"a scoped or required block":        "\n{% block a scoped %}{% endblock %}",
		"a block inside of a loop or macro": "\n{% for x in y %}{% block a %}{% endblock %}{% endfor %}",
		"the filter 'safe' other than at the end of a print statement": "\n{% set a = x|safe %}",
	} {
		_, err := Parse("model", src)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: error %v, want ErrUnsupported", src, err)
			continue
		}
		if !strings.Contains(e.Message, what) {
			t.Errorf("%q: message %q does not name %q", src, e.Message, what)
		}
		if strings.HasPrefix(src, "\n") && e.Line != 2 || e.Template != "model" {
			t.Errorf("%q: at %s:%d, want model:2", src, e.Template, e.Line)
		}
	}
}

func TestBrokenSourcesAreSyntaxErrors(t *testing.T) {
	for _, src := range []string{
		"{{", "{{ x", "{% if %}", "{% if x %}", "{% endif %}", "{% nope %}", "{{ 'x }}", "{{ x y }}", "{{ (1 }}", "{{ 1) }}",
		"{% for in x %}{% endfor %}", "{% for a b %}", "{# x", "{% raw %}x", "{{ }}", "{% set 1 = 2 %}", "{{ x|  }}", "{{ x. }}",
		"{{ f(a=1, 2) }}", "{{ f(a=1, a=2) }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f(a, a) %}{% endmacro %}",
		"{{ a is b is c }}", "{% set true = 1 %}", "{% for loop in x %}{% endfor %}", "{% call x %}{% endcall %}", "{{ ? }}", "\xff",
		"{% else %}", "{% if x %}{% else %}{% elif y %}{% endif %}", "{{ '\\x1' }}", "{% %}", "{%",
	} {
		if _, err := Parse("broken", src); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: error %v, want ErrSyntax", src, err)
		}
	}
}

func TestErrorsSayWhereAndWhat(t *testing.T) {
	tpl := mustParse(t, "a\n{% for m in messages %}\n{{ raise_exception('no ' ~ m.role) }}{% endfor %}")
	_, err := tpl.Render(nil, &Input{Messages: []byte(`[{"role":"critic"}]`)}, Limits{})
	if err == nil || err.Error() != "test:3: TemplateError: no critic" || !errors.Is(err, ErrTemplate) {
		t.Errorf("error %v", err)
	}
}

func TestBadInputIsNamedAsSuch(t *testing.T) {
	tpl := mustParse(t, `{{ messages|tojson }}`)
	for name, in := range map[string]Input{
		"no messages":               {},
		"messages no array":         {Messages: []byte(`{}`)},
		"broken JSON":               {Messages: []byte(`[{"role":`)},
		"more after the end":        {Messages: []byte(`[] []`)},
		"invalid UTF-8":             {Messages: []byte("[\"\xff\"]")},
		"a lone surrogate":          {Messages: []byte(`["\ud800"]`)},
		"a low surrogate":           {Messages: []byte(`["\udc00x"]`)},
		"a control character":       {Messages: []byte("[\"a\x01\"]")},
		"tools no array":            {Messages: []byte(`[]`), Tools: []byte(`"x"`)},
		"kwargs no object":          {Messages: []byte(`[]`), Kwargs: []byte(`[]`)},
		"a leading zero":            {Messages: []byte(`[01]`)},
		"a trailing comma":          {Messages: []byte(`[1,]`)},
		"an object's comma":         {Messages: []byte(`[{"a":1,}]`)},
		"vLLM: a number":            {Messages: []byte(`[1]`), Dialect: VLLM},
		"vLLM: no role":             {Messages: []byte(`[{"content":"x"}]`), Dialect: VLLM},
		"vLLM: unknown part":        {Messages: []byte(`[{"role":"user","content":[{"type":"hologram"}]}]`), Dialect: VLLM},
		"SGLang: number":            {Messages: []byte(`[{"role":"user","content":7}]`), Dialect: SGLang},
		"a tool of no object":       {Messages: []byte(`[]`), Tools: []byte(`[1]`), Dialect: VLLM},
		"a tool without a function": {Messages: []byte(`[]`), Tools: []byte(`[{}]`), Dialect: SGLang},
	} {
		out, err := tpl.Render([]byte("x"), &in, Limits{})
		if !errors.Is(err, ErrInput) || string(out) != "x" {
			t.Errorf("%s: got %q, %v; want ErrInput", name, out, err)
		}
	}
}

func TestJSONBecomesPythonValues(t *testing.T) {
	tpl := mustParse(t, `{{ messages[0] }}`)
	for json, want := range map[string]string{
		`null`: "None", `true`: "True", `-0`: "0", `-0.0`: "-0.0", `1e2`: "100.0", `1E400`: "inf", `123456789012345678901234567890`: "123456789012345678901234567890",
		`"\u00e9\ud83d\ude42\n\/"`: "é🙂\n/", `{"a":1,"b":2,"a":3}`: "{'a': 3, 'b': 2}", `[ 1 , [ ] , { } ]`: "[1, [], {}]", `NaN`: "nan", `-Infinity`: "-inf",
		`{"01":0,"02":0,"03":0,"04":0,"05":0,"06":0,"07":0,"08":0,"09":0,"10":0,"11":0,"12":0,"13":0,"01":1}`: "{'01': 1, '02': 0, '03': 0, '04': 0, '05': 0, '06': 0, '07': 0, '08': 0, '09': 0, '10': 0, '11': 0, '12': 0, '13': 0}",
	} {
		out, err := tpl.Render(nil, &Input{Messages: []byte("[" + json + "]")}, Limits{})
		if err != nil || string(out) != want {
			t.Errorf("%s: got %q, %v; want %q", json, out, err, want)
		}
	}
}

func TestLoadFindsTemplatesAsTransformersDoes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	render := func(name string, in Input) string {
		t.Helper()
		set, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		tpl := set.Template(name)
		if name == "" {
			if tpl, err = set.For(&in); err != nil {
				t.Fatal(err)
			}
		}
		in.Messages = []byte(`[]`)
		out, err := tpl.Render(nil, &in, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if _, err := Load(dir); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("empty directory: %v", err)
	}
	write("tokenizer_config.json", `{"bos_token":{"content":"<s>"},"eos_token":"</s>","unk_token":null,
		"chat_template":[{"name":"default","template":"d{{bos_token}}{{eos_token}}{{unk_token is defined}}"},{"name":"tool_use","template":"t{{tools|length}}"},{"name":"rag","template":"r{{documents|length}}"}]}`)
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"":         {Input{}, "d<s></s>False"},
		"tool_use": {Input{Tools: []byte(`[{}]`)}, "t1"},
		"rag":      {Input{Documents: []byte(`[{},{}]`)}, "r2"},
	} {
		if got := render(name, c.in); got != c.want {
			t.Errorf("%q: got %q, want %q", name, got, c.want)
		}
	}
	if got := render("", Input{Tools: []byte(`[{}]`)}); got != "t1" {
		t.Errorf("with tools: %q", got)
	}
	write("chat_template.json", `{"chat_template":"processor"}`)
	if got := render("", Input{}); got != "processor" {
		t.Errorf("chat_template.json: %q", got)
	}
	write("chat_template.jinja", "file\n")
	write("additional_chat_templates/extra.jinja", "extra")
	if got := render("", Input{}) + render("extra", Input{}); got != "fileextra" {
		t.Errorf("jinja files: %q", got)
	}
	write("chat_template.jinja", "{% include 'x' %}")
	if _, err := Load(dir); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an unsupported template: %v", err)
	}
	write("tokenizer_config.json", `{"chat_template":7}`)
	if _, err := Load(dir); err == nil {
		t.Error("a number as template was loaded")
	}
	write("tokenizer_config.json", `{`)
	if _, err := Load(dir); err == nil {
		t.Error("a broken configuration was loaded")
	}
}

func TestOneTemplateServesManyGoroutines(t *testing.T) {
	tpl := mustParse(t, `{% set ns = namespace(n=0) %}{% macro f(x) %}<{{ x }}>{% endmacro %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ f(m.content) }}{% endfor %}{{ ns.n }}`)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			in := Input{Messages: messagesOf(g+1, strings.Repeat("x", g))}
			want := strings.Repeat("<"+strings.Repeat("x", g)+">", g+1) + string(rune('1'+g))
			for range 50 {
				out, err := tpl.Render(nil, &in, Limits{})
				if err != nil || string(out) != want {
					t.Errorf("got %q, %v; want %q", out, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The macro has fewer variables than the template, so the filter's are not there.
func TestTheFilterOfALoopIsEvaluatedInTheLoopsScope(t *testing.T) {
	tpl := mustParse(t, "{% set a = 1 %}{% set b = 2 %}{% macro f(l) %}{{ l.length }}{{ l.last }}{% endmacro %}{% for x in 'abc' if x != 'b' %}{{ f(loop) }}{{ x }}{% endfor %}")
	got, err := tpl.Render(nil, &Input{Messages: []byte("[]")}, Limits{})
	if err != nil || string(got) != "2Falsea2Truec" {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"{{ x|map('upper')|list }}", "{% for a, b in c.items() if a %}{{ loop.index }}{% else %}{% endfor %}", "{% macro f(a, b=1) %}{{ caller() }}{% endmacro %}{% call(x) f(1) %}{{ x }}{% endcall %}", "{%- set ns.a = 'x' ~ 1 -%}", "{% raw %}{{ {% endraw %}{# c #}", "{{ {'a': [1, (2,)]}['a'][::-1] if x is not none else y }}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		tpl, err := Parse("fuzz", src)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		out, err := tpl.Render(nil, &Input{
			Messages: []byte(`[{"role":"user","content":"é x\n"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5]}}}]}]`),
			Tools:    []byte(`[{"type":"function","function":{"name":"f"}}]`),
		}, Limits{Steps: 20000, Memory: 8 << 20, Output: 1 << 20})
		var e *Error
		if err != nil && !errors.As(err, &e) || e != nil && e.Class == classInternal {
			t.Fatalf("%q: error %v", src, err)
		}
		if len(out) > 1<<20 {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

func FuzzInput(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[{"function":{"name":"f"}}],"chat_template_kwargs":{"a":1}}`), byte(1))
	f.Add([]byte(`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{"}}]}],"continue_final_message":true,"add_generation_prompt":false}`), byte(2))
	tpl, err := Parse("fuzz", `{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}{% endfor %}{{ tools|tojson if tools }}`)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, dialect byte) {
		in, err := FromChat(body, Dialect(dialect%3))
		if err != nil {
			if !errors.Is(err, ErrInput) {
				t.Fatalf("error %v", err)
			}
			return
		}
		_, err = tpl.Render(nil, &in, Limits{Memory: 8 << 20})
		var e *Error
		if err != nil && !errors.As(err, &e) || e != nil && e.Class == classInternal {
			t.Fatalf("error %v", err)
		}
	})
}
