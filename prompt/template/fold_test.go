package template

import (
	"errors"
	"strings"
	"testing"
)

// The values are those of jinja2 3.1.6.
func TestSlicesOfConstantsAreComputedAsJinjasCompilerDoes(t *testing.T) {
	for src, want := range map[string]string{
		"{{ (1)[:2] }}|":                                        "|",
		"{{ (true)[:2] is defined }}":                           "False",
		"{% if (1)[:2] %}a{% endif %}":                          "!TypeError",
		"{% set a = (true)[:2] %}{{ a }}":                       "!TypeError",
		"{{ (1)[::2]|round(1) }}":                               "!TypeError", // an undefined cannot be rounded: left to the rendering
		"{{ [(1)[:2]] }}":                                       "[Undefined]",
		"{% set a = [(1)[:2]] %}":                               "!TypeError", // no value that compiled code can hold
		"{% set a = [(1)[:2]]|length %}{{ a }}":                 "1",
		"{% if (true)[:2] is not defined %}a{% endif %}":        "a",
		"{{ x[0] if (true)[:2] else 'b'|upper }}":               "B",
		"{% if ('abc'[1.5:]) is undefined %}u{% endif %}":       "u",
		"{{ 'abc'[::0] }}":                                      "!ValueError",
		"{{ ('abc'[:2]|map('upper')|list)[:1] }}":               "['A']",
		"{% set a = 'abc'[1:] ~ x %}{{ a }}":                    "bc",
		"{{ nothing[:2] }}":                                     "!UndefinedError",
		"{% for c in 'abc'[:2] %}{{ c }}{% endfor %}":           "ab",
		"{{ (1)[:2]|safe }}":                                    "",
		"{{ {'a':1}[:1] }}":                                     "",
		"{% set y = (false)[1:] or 'z' %}{{ y }}":               "z",
		"{{ (1 if false)[:2] }}":                                "!UndefinedError",
		"{% with a = (1)[:2] is defined %}{{ a }}{% endwith %}": "False",
	} {
		tpl, err := Parse("t", src)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		out, err := tpl.Render(nil, &Input{Messages: []byte("[]")}, Limits{})
		got := string(out)
		if e, ok := errors.AsType[*Error](err); ok {
			got = "!" + e.Class
		}
		if got != want {
			t.Errorf("%s: %q, want %q", src, got, want)
		}
	}
}

func TestFoldingIsBounded(t *testing.T) {
	if _, err := Parse("t", strings.Repeat("{{ (1)[:2] }}", foldBudget+1)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
	tpl, err := Parse("t", "{{ ('a' * 100000000)[:2] }}{{ [[1, 2]] * 100000000 }}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tpl.Render(nil, &Input{Messages: []byte("[]")}, Limits{}); !errors.Is(err, ErrLimit) {
		t.Errorf("error %v, want ErrLimit", err)
	}
}
