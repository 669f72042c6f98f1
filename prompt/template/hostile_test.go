package template

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

func messagesOf(n int, content string) []byte {
	var b strings.Builder
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"role":"` + []string{"user", "assistant"}[i%2] + `","content":"` + content + `"}`)
	}
	b.WriteByte(']')
	return []byte(b.String())
}

// What a template does must end in an error of its own, never in the process.
func TestHostileTemplatesAreStopped(t *testing.T) {
	for name, src := range map[string]string{
		"loops for ever":               `{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}`,
		"a silent endless loop":        `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
		"a macro that calls itself":    `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`,
		"two macros in turn":           `{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}`,
		"a caller that calls":          `{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}`,
		"doubles a string":             `{% set ns = namespace(s='abcdefgh') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
		"doubles by tilde":             `{% set ns = namespace(s='abcdefgh') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}`,
		"doubles a list":               `{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
		"nests a list":                 `{% set ns = namespace(s=[]) %}{% for i in range(90000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}`,
		"nests a list and dumps it":    `{% set ns = namespace(s=[]) %}{% for i in range(9000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson }}`,
		"nests lists and compares":     `{% set ns = namespace(s=[], t=[]) %}{% for i in range(9000) %}{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s == ns.t }}`,
		"repeats a string":             `{{ 'a' * 100000000000 }}`,
		"repeats a list":               `{{ ([1] * 100000000000)|length }}`,
		"pads a string":                `{{ 'a'.ljust(100000000000) }}`,
		"pads by format":               `{{ '%100000000000d' % 1 }}`,
		"pads by str.format":           `{{ '{:>100000000000}'.format(1) }}`,
		"replaces the empty string":    `{% set s = 'a' * 1000000 %}{{ s.replace('', 'b' * 1000) }}`,
		"a power":                      `{{ 2 ** 100000000000 }}`,
		"squares":                      `{% set ns = namespace(n=3) %}{% for i in range(64) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}`,
		"a wide indent":                `{{ 'a\nb'|indent(100000000000) }}`,
		"a wide tojson":                `{{ [1]|tojson(indent=100000000000) }}`,
		"a deep tojson, wide":          `{% set ns = namespace(s=[]) %}{% for i in range(150) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson(indent=1000) }}`,
		"shared lists printed":         `{% set ns = namespace(s=[]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}`,
		"shared lists compared":        `{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}`,
		"indexes a long string":        `{% set s = 'é' * 1000000 %}{% for i in range(90000) %}{% if s[900000] == 'a' %}{% endif %}{% endfor %}`,
		"indexes it from its end":      `{% set s = 'é' * 1000000 %}{% for i in range(90000) %}{% if s[-900000] == 'a' %}{% endif %}{% endfor %}`,
		"searches a long string":       `{% set s = 'a' * 1000000 %}{% for i in range(90000) %}{% if 'b' in s %}{% endif %}{% endfor %}`,
		"strips a long string":         `{% set s = ' ' * 1000000 %}{% for i in range(90000) %}{% if s.strip() %}{% endif %}{% endfor %}`,
		"a generator of generators":    `{% for i in range(100000)|map('string')|map('upper')|select|list * 1000 %}{{ i }}{% endfor %}`,
		"a dict with many number keys": `{% set ns = namespace(d={}) %}{% for i in range(90000) %}{% set ns.d = dict(ns.d, **{'k' ~ i: i}) %}{% endfor %}`,
		"sorts much":                   `{% for i in range(1000) %}{% set x = range(100000)|sort %}{% endfor %}`,
		"sigmas":                       `{{ ('Σ' * 200000).lower()|length }}{% for i in range(1000) %}{% set x = ('Σ' * 200000).lower() %}{% endfor %}`,
		"unpacks arguments":            `{% macro f() %}{{ varargs|length }}{% endmacro %}{% for i in range(1000) %}{{ f(*range(100000)) }}{% endfor %}`,
		"a long integer printed":       `{{ 10 ** 4000 * 10 ** 4000 }}`,
		"fills the output":             `{% set s = 'a' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}`,
		"captures again and again":     `{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}`,
		"recursive template text":      `{% for i in range(100000) %}{{ messages|tojson }}{% endfor %}`,
	} {
		t.Run(name, func(t *testing.T) {
			tpl, err := Parse(name, src)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out, err := tpl.Render([]byte("kept"), &Input{Messages: messagesOf(2, "hi")}, Limits{})
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("rendered %d bytes", len(out))
			}
			if !errors.Is(err, ErrLimit) && !errors.Is(err, ErrTemplate) {
				t.Errorf("error %v, want a limit or Python's own", err)
			}
			if string(out) != "kept" {
				t.Errorf("dst changed to %d bytes", len(out))
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 256<<20 {
				t.Errorf("allocated %d MiB", grown>>20)
			}
		})
	}
}

func TestHostileSourcesAreRefusedAtLoad(t *testing.T) {
	deep := func(open, inner, shut string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(shut, n)
	}
	for name, src := range map[string]string{
		"parentheses":     `{{ ` + deep("(", "1", ")", 100000) + ` }}`,
		"lists":           `{{ ` + deep("[", "1", "]", 100000) + ` }}`,
		"dicts":           `{{ ` + deep("{1:", "1", "}", 50000) + ` }}`,
		"subscripts":      `{{ ` + deep("a[", "1", "]", 80000) + ` }}`,
		"calls":           `{{ ` + deep("a(", "1", ")", 80000) + ` }}`,
		"chained calls":   `{{ a` + strings.Repeat("()", 100000) + ` }}`,
		"chained items":   `{{ a` + strings.Repeat("[0]", 80000) + ` }}`,
		"chained filters": `{{ a` + strings.Repeat("|d", 100000) + ` }}`,
		"nots":            `{{ ` + strings.Repeat("not ", 60000) + `1 }}`,
		"minuses":         `{{ ` + strings.Repeat("-", 200000) + `1 }}`,
		"a sum":           `{{ 1` + strings.Repeat("+1", 100000) + ` }}`,
		"powers":          `{{ 1` + strings.Repeat("**1", 80000) + ` }}`,
		"ors":             `{{ 1` + strings.Repeat(" or 1", 50000) + ` }}`,
		"inline ifs":      `{{ 1` + strings.Repeat(" if 1 else 1", 20000) + ` }}`,
		"ifs":             deep("{% if 1 %}", "", "{% endif %}", 10000),
		"loops":           deep("{% for a in b %}", "", "{% endfor %}", 8000),
		"macros":          deep("{% macro f() %}", "", "{% endmacro %}", 8000),
		"a huge source":   strings.Repeat("a", maxSource+1),
		"tuple targets":   `{% set ` + deep("(", "a", ",)", 60000) + ` = 1 %}`,
		"many names":      manyNames(maxNames + 1),
	} {
		_, err := Parse(name, src)
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrSyntax) {
			t.Errorf("%s: error %v, want a refusal", name, err)
		}
	}
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("{{a" + strings.Repeat("b", i%40) + strings.Repeat("c", i/40) + "}}")
	}
	return b.String()
}

func TestDeepJSONIsRefused(t *testing.T) {
	tpl := mustParse(t, `{{ messages|length }}`)
	deep := strings.Repeat("[", 100000) + strings.Repeat("]", 100000)
	for _, in := range []Input{
		{Messages: []byte(deep)},
		{Messages: []byte(`[]`), Tools: []byte(strings.Repeat(`[{"a":`, 50000))},
		{Messages: []byte(`[]`), Kwargs: []byte(`{"a":` + deep + `}`)},
	} {
		if _, err := tpl.Render(nil, &in, Limits{}); !errors.Is(err, ErrLimit) {
			t.Errorf("error %v, want ErrLimit", err)
		}
	}
}

func TestLimitsOfTheCaller(t *testing.T) {
	tpl := mustParse(t, `{% for m in messages %}{{ m.content }}{% endfor %}`)
	in := Input{Messages: messagesOf(100, "0123456789")}
	for name, lim := range map[string]Limits{
		"steps":  {Steps: 50},
		"memory": {Memory: 1000},
		"output": {Output: 999},
		"depth":  {Depth: 1},
	} {
		if _, err := tpl.Render(nil, &in, lim); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: error %v, want ErrLimit", name, err)
		}
	}
	out, err := tpl.Render(nil, &in, Limits{Output: 1000, Steps: 1000})
	if err != nil || len(out) != 1000 {
		t.Errorf("got %d bytes, %v; want 1000 within the limits", len(out), err)
	}
}

func mustParse(tb testing.TB, src string) *Template {
	tb.Helper()
	t, err := Parse("test", src)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}
