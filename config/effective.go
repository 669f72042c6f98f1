package config

import (
	"fmt"
	"slices"
	"strings"
)

// Misspelt returns a warning for each variable of environ (as os.Environ gives
// it) that looks like one of the program's but is none. Others are left alone:
// a Pod's environment holds the worker's variables too.
func (c *Config) Misspelt(environ []string) []string {
	var known, out []string
	for _, s := range c.rows() {
		known = append(append(known, s.envs()...), s.legacy...)
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "INFERA_") && !strings.HasPrefix(name, "LLB_") || slices.Contains(known, name) {
			continue
		}
		for _, k := range known {
			if distance(name, k) <= 2 {
				out = append(out, fmt.Sprintf("variable %s is not read: did you mean %s?", name, k))
				break
			}
		}
	}
	return out
}

// Effective is one setting as the program uses it.
type Effective struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Unit   string `json:"unit"`             // int, string, seconds, ms, bool, or the words it may be
	Source Source `json:"source"`           // default, file, env, flag, pool, env:LLB_…
	From   string `json:"from,omitempty"`   // the flag, variable or key that said it
	Ignore string `json:"ignore,omitempty"` // why it has no effect, for Infera's flags that have none
}

// Effective returns every setting of the program in the order of the help text.
// Secrets show only whether they are set.
func (c *Config) Effective() []Effective {
	var out []Effective
	for _, s := range c.rows() {
		e := Effective{Name: s.name, Value: s.value.get(), Unit: s.value.kind, Source: FromDefault, Ignore: s.unused}
		if o, ok := c.origin[s.name]; ok {
			e.Source, e.From = o.source, o.from
		}
		if s.secret && e.Value != "" {
			e.Value = "(set)"
		}
		out = append(out, e)
	}
	return out
}
