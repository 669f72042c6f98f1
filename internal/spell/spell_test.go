package spell_test

import (
	"testing"

	"pointsman/internal/spell"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"url", "uri", 1}, {"kitten", "sitting", 3}} {
		if got := spell.Distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	if got := spell.Nearest("modell", []string{"url", "model", "models"}); got != "model" {
		t.Errorf("nearest is %q", got)
	}
	if got := spell.Nearest("x", nil); got != "" {
		t.Errorf("nearest of none is %q", got)
	}
}
